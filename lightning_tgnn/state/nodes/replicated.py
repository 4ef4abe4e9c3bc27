"""The whole node state on every rank: reads are local, updates go to all ranks (DepCache; Sven, section 2.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.state.nodes.local import LocalStateStore, as_own_rows, share_of
from lightning_tgnn.state.nodes.update_exchange import UpdateRouter
from lightning_tgnn.state.nodes.wire import MailCodec
from lightning_tgnn.types import CommitHandle, FetchHandle, RowExchange, StateRows, StateSpec, StateUpdate


class ReplicatedStateStore(LocalStateStore):
    """Memory and mailbox of every node, kept equal on all ranks by an all-gather of the updates.

    Args:
        spec: Number of nodes and widths.
        exchange: Between the ranks.
        device: Where the rows are kept.
        makes_mails: Send the written memories and make mails from them here, if that gives the same mails. Otherwise
            mails are sent, without the parts that are in a row or can be looked up.
        edge_features: float32 [E, d_edge] of the stream, for mails without theirs; None sends them.
    """

    router: UpdateRouter

    def __init__(
        self,
        spec: StateSpec,
        exchange: RowExchange,
        device: torch.device | str = "cpu",
        *,
        makes_mails: bool = True,
        edge_features: Tensor | None = None,
    ) -> None:
        super().__init__(spec, device)
        self.exchange = exchange
        looked_up = edge_features if makes_mails and spec.event_features else None
        codec = MailCodec(spec, own_half=makes_mails and spec.own_half, edge_features=looked_up)
        self.router = UpdateRouter(None, exchange, codec, makes_mails=makes_mails)
        self._under_way: _Commit | None = None

    @property
    def ranks(self) -> int:
        """How many ranks share the rows."""
        return self.exchange.ranks

    @property
    def position(self) -> int:
        """Events of the stream that the state has taken in."""
        self._settle()
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        self._position = position

    def fetch(self, nodes: Tensor) -> FetchHandle:
        """Read the rows of the distinct ``nodes``."""
        self._settle()
        return super().fetch(nodes)

    def commit(self, update: StateUpdate) -> CommitHandle:
        """Start to send the writes of this rank's events to all ranks; of several ranks' writes the latest counts."""
        self._settle()
        self._under_way = _Commit(self, update.to(self.rows.memory.device))
        return self._under_way

    def apply(self, update: StateUpdate) -> None:
        """Write an update that all ranks have."""
        super().commit(update)

    def reset(self) -> None:
        """Return to the state before the first event."""
        self._settle()
        super().reset()

    def held(self) -> StateRows:
        """Return this rank's share of the rows for statistics, each row on exactly one rank. They are no copies."""
        self._settle()
        rank, ranks = self.exchange.rank, self.exchange.ranks
        return StateRows(**{name: table[rank::ranks] for name, table in self._tables().items()})

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot for `restore`."""
        self._settle()
        return super().snapshot()

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put a snapshot back."""
        self._settle()
        super().restore(snapshot)

    def put(self, state: dict[str, Any]) -> None:
        """Write whole tables and the position."""
        self._settle()
        super().put(state)

    def state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return tensors and plain values that hold the whole state, or the state of a snapshot."""
        self._settle()
        return super().state_dict(snapshot)

    def sharded_state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the same as `state_dict`, with this rank's share of the tables as rows that are no copies."""
        own = share_of(self.exchange.rank, self.exchange.ranks, self.spec.num_nodes)
        state = self.state_dict(snapshot)
        state |= {name: state[name][own] for name in self._tables()}
        return as_own_rows(state, own.start, self.spec.num_nodes)

    def _settle(self) -> None:
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None


class _Commit:
    """A commit under way."""

    def __init__(self, store: ReplicatedStateStore, update: StateUpdate) -> None:
        self._store, self._done = store, False
        self._under_way = store.router.start(update)
        for _ in self._under_way.conversation():
            pass  # reading is local: there is nothing to do between its messages

    def wait(self) -> None:
        """Apply the updates that the ranks have sent."""
        if not self._done:
            self._done = True
            self._store.apply(self._under_way.merged())
