"""Node state cut over ranks by node: rows are fetched from their owners and updates sent to them (Sven, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import organize
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.comm import Conversation, Conversations
from lightning_tgnn.state.nodes.local import LocalStateStore, as_own_rows, check_same_spec
from lightning_tgnn.state.nodes.routed_update import UpdateRouter
from lightning_tgnn.state.nodes.row_cache import RowCache
from lightning_tgnn.state.nodes.step_fetch import PieceFetch, StepFetch
from lightning_tgnn.state.nodes.update_exchange import by_owner
from lightning_tgnn.state.nodes.wire import MailCodec, RowCodec
from lightning_tgnn.types import FetchHandle, RowExchange, Stages, StateRows, StateSpec, StateUpdate, UpdatedRows

_TABLES = tuple(field.name for field in fields(StateRows))


class ShardedStateStore:
    """Memory and mailbox of the nodes that this rank owns, and the way to all others.

    Two maps lead to a row (Sven, section 4.1): node to rank, on every rank, and node to local row, on its owner. All
    ranks have to call `fetch`, `commit` and what else exchanges data the same number of times in the same order.

    What is sent is exact and less than whole rows: rows that nobody has changed since this rank fetched them are not
    sent again; a mail's first half is left out where it equals the memory of its row (`StateSpec.own_half`); the
    features of its event travel as the event's number.

    Args:
        spec: Number of nodes and widths.
        owner: int64 [N], the rank of every node.
        exchange: Between the ranks.
        device: Where the rows are kept.
        row_cache_mb: Megabytes (2^20 bytes) of fetched rows that a rank keeps; 0 for none.
        omit_own_half: Leave out what is already in the row.
        edge_features: float32 [E, d_edge] of the stream, for mails without theirs; None sends them.
    """

    def __init__(
        self,
        spec: StateSpec,
        owner: Tensor,
        exchange: RowExchange,
        device: torch.device | str = "cpu",
        *,
        row_cache_mb: float = 256,
        omit_own_half: bool = True,
        edge_features: Tensor | None = None,
    ) -> None:
        self.spec = spec
        self.exchange = exchange
        self.owner = owner.to(device)
        self.own_nodes = (self.owner == exchange.rank).nonzero().squeeze(1)
        self.local_row = torch.full_like(self.owner, -1)
        self.local_row[self.own_nodes] = torch.arange(len(self.own_nodes), device=device)
        self.local = LocalStateStore(replace(spec, num_nodes=len(self.own_nodes)), device)
        # A model that mails something else has its mails sent whole.
        looked_up = edge_features if spec.event_features else None
        mails = MailCodec(spec, own_half=omit_own_half and spec.own_half, edge_features=looked_up)
        self.row_codec = RowCodec(mails)
        # What lies in rows or can be looked up is not sent: so mails are made where they are to lie.
        self.router = UpdateRouter(owner.cpu(), exchange, mails, makes_mails=omit_own_half)
        self.cache = RowCache(
            spec.num_nodes, self.row_codec.width, int(row_cache_mb * 2**20) if exchange.ranks > 1 else 0, device
        )
        # Remote rows asked for, and those of them that the cache had.
        self.asked, self.found = 0, 0
        # Nodes that the latest step has changed, on whatever rank.
        self._changed = self.owner[:0]
        # Into how many pieces the fetch is cut that a saved run had asked for ahead; 0 where there was none.
        self._pieces = 0
        self._talks = Conversations()
        self._commit: _Commit | None = None
        self._ahead: StepFetch | None = None

    @property
    def ranks(self) -> int:
        """How many ranks share the rows."""
        return self.exchange.ranks

    @property
    def position(self) -> int:
        """Events of the stream that the state has taken in."""
        self._settle()
        return self.local.position

    def fetch(self, nodes: Tensor) -> FetchHandle:
        """Start to read the rows of the distinct ``nodes``."""
        self._drop_ahead()
        return self.fetch_pieces(nodes, 1)[0]

    def fetch_pieces(self, nodes: Tensor, pieces: int) -> list[PieceFetch]:
        """Start to read the rows of the distinct ``nodes`` in pieces: first what is here, then what arrives.

        Args:
            nodes: int64 [U]; those given to `ask_ahead`, where this is the fetch that was asked for there.
            pieces: How many; where they were asked for ahead, that number counts.

        Raises:
            InvalidArgumentError: Other nodes were asked for ahead.
        """
        self._settle()
        step, self._ahead = self._ahead, None
        pieces, self._pieces = self._pieces or pieces, 0
        if self.exchange.ranks == 1:
            return StepFetch(self, nodes, pieces, self._changed).handles()
        if step is None:
            step = StepFetch(self, nodes, pieces, self._changed)
            self._talks.begin(step.conversation())
            self._talks.finish()
        elif not torch.equal(step.nodes, nodes.to(step.nodes.device)):
            cure = "train on the batches of the DataModule in their order, or set fetch_ahead=False"
            raise InvalidArgumentError(refusal("batch", "the one that was announced", "another", cure))
        return step.start()

    def ask_ahead(self, nodes: Tensor, changing: Tensor, pieces: int) -> None:
        """Ask for the rows of the next step; those that this step leaves alone travel behind its computation.

        Call it before `commit`, whose messages are larger, on all ranks, and then `carry_on`.

        Args:
            nodes: int64 [U], distinct, of the next `fetch_pieces`.
            changing: int64 [C], nodes whose rows are about to change.
            pieces: Into how many the next fetch is cut.
        """
        if self.exchange.ranks > 1:
            self._settle()  # what an earlier commit changes is not among `changing`
            self._ahead = StepFetch(self, nodes, pieces, changing, ahead=True)
            self._talks.begin(self._ahead.conversation())

    def carry_on(self) -> None:
        """Send what could not be sent before something had arrived: call it where that is likely, on all ranks."""
        self._talks.carry_on()

    def commit(self, update: StateUpdate) -> _Commit:
        """Start to send what this rank's events write to the owners; of several ranks' writes the latest counts.

        Rows that the step changes on whatever rank are forgotten here: see `StateUpdate.changed`.
        """
        if self._commit is not None:
            self._settle()
        self._commit = _Commit(self, update.to(self.owner.device))
        self._changed = update.changed
        self._talks.begin(self._commit.conversation())
        return self._commit

    def finish_talks(self) -> None:
        """Send all that is still to be sent."""
        self._talks.finish()

    def _settle(self) -> None:
        """Finish what is under way, and write a commit."""
        self._talks.finish()
        if self._commit is not None:
            self._commit.wait()
            self._commit = None

    def _drop_ahead(self) -> None:
        """Forget what was asked for ahead: something else comes first."""
        self._settle()
        self._pieces = 0
        if self._ahead is not None:
            self._ahead.arrive(0)
            self._ahead = None

    def update_at_owners(
        self, entries: Tensor, stages: Stages, update: Callable[[StateRows], UpdatedRows]
    ) -> tuple[Tensor, Tensor]:
        """Let the owners apply pending mails and send the result for every entry, repeated or not (DepComm).

        Args:
            entries: int64 [L], nodes.
            stages: Told when the update begins and ends.
            update: Returns memory and its time of rows.

        Returns:
            Memory [L, d_mem], whose gradient goes back to the owners, and its time, float64 [L].
        """
        self._settle()
        device, exchange = entries.device, self.exchange
        nodes = entries.to(self.owner.device)
        order, sent = by_owner(self.owner[nodes], exchange.ranks)
        received = exchange.counts(torch.tensor(sent).unsqueeze(1), "request").squeeze(1).tolist()
        asked = organize(exchange.start(nodes[order], sent, received, "request").wait())
        rows = self.local.fetch(self.local_row[asked.distinct]).wait().to(device)
        with stages("update"):
            memory, time = update(rows)
        place = asked.position.to(device)
        arriving = exchange.start(time[place], received, sent, "dispatch")
        arrived = exchange.with_gradient(memory.index_select(0, place), received, sent, "dispatch")
        back = order.argsort().to(device)
        return arrived.index_select(0, back), arriving.wait()[back]

    def reset(self) -> None:
        """Return to the state before the first event."""
        self._forget()
        self._changed = self._changed[:0]
        self.local.reset()

    def held(self) -> StateRows:
        """Return this rank's rows, for statistics; on all ranks. They are no copies."""
        self._settle()
        return self.local.rows

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of this rank's rows."""
        self._drop_ahead()
        return {"changed": self._changed, **self.local.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put a snapshot back."""
        self._forget()
        self._changed = snapshot.get("changed", self._changed[:0])  # one process keeps none
        self.local.restore(snapshot)

    def _forget(self) -> None:
        self._drop_ahead()
        self.cache.clear()

    def state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the rows of all ranks in the order of the nodes, on rank 0; the others return no rows.

        The form is that of `LocalStateStore`, so that any number of ranks can load it.
        """
        state = self._on_this_rank(snapshot)
        ranks, rank = self.exchange.ranks, self.exchange.rank
        sizes = torch.bincount(self.owner, minlength=ranks).tolist()
        sent = [sizes[rank], *[0] * (ranks - 1)]
        received = sizes if rank == 0 else [0] * ranks
        # Rows come rank by rank, each in the order of its nodes.
        order = self.owner.argsort(stable=True)
        for name in _TABLES:
            rows = self.exchange.start(state.pop(name), sent, received, "checkpoint").wait()
            if rank == 0:
                state[name] = torch.empty_like(rows).index_copy_(0, order, rows)
        return state

    def sharded_state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what `state_dict` does, with this rank's rows of the tables, which are no copies; nothing is sent."""
        start = int((self.owner < self.exchange.rank).sum())
        return as_own_rows(self._on_this_rank(snapshot), start, self.spec.num_nodes, self.own_nodes)

    def _on_this_rank(self, snapshot: dict[str, Any] | None) -> dict[str, Any]:
        self._settle()
        state = {**self.local.state_dict(snapshot), "spec": asdict(self.spec)}
        state["changed"] = (self._changed if snapshot is None else snapshot["changed"]).cpu()
        state["pieces"] = 0 if self._ahead is None else len(self._ahead.pieces)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over this rank's rows of what `state_dict` returned on rank 0.

        Raises:
            CheckpointError: It is of another graph or another model.
        """
        check_same_spec(state, self.spec)
        own = self.own_nodes.cpu()
        changed = state.get("changed", own[:0]).to(self.owner.device)
        rows = {name: state[name][own] for name in _TABLES}
        self.restore({"position": state["position"], "changed": changed, **rows})
        self._pieces = state.get("pieces", 0)


class _Commit:
    """A commit under way."""

    def __init__(self, store: ShardedStateStore, update: StateUpdate) -> None:
        self._store, self._done = store, False
        self._under_way = store.router.start(update)

    def conversation(self) -> Conversation:
        """Send what the ranks write."""
        return self._under_way.conversation()

    def wait(self) -> None:
        """Apply what the ranks have sent."""
        if self._done:
            return
        self._done = True
        store = self._store
        store.finish_talks()
        update = self._under_way.merged()
        rows, mail_rows = store.local_row[update.nodes], store.local_row[update.mail_nodes]
        store.local.commit(replace(update, nodes=rows, mail_nodes=mail_rows))
        store.cache.drop(update.changed)
