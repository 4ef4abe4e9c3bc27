"""Node state cut over ranks by node: rows are fetched from their owners and updates sent to them (Sven, section 3)."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_tgnn.comm import Conversation, Conversations
from lightning_tgnn.state.nodes.announcer import Announcer
from lightning_tgnn.state.nodes.local import LocalStateStore, as_own_rows, check_same_spec
from lightning_tgnn.state.nodes.row_cache import KeptElsewhere, Marks, RowCache
from lightning_tgnn.state.nodes.step_fetch import PieceFetch, StepFetch
from lightning_tgnn.state.nodes.update_exchange import UpdateRouter
from lightning_tgnn.state.nodes.wire import MailCodec, RowCodec
from lightning_tgnn.types import (
    AnnouncedRows,
    FetchHandle,
    PiecewiseStore,
    RowAnnouncer,
    RowExchange,
    StateRows,
    StateSpec,
    StateUpdate,
)

_TABLES = tuple(field.name for field in fields(StateRows))


class ShardedStateStore(PiecewiseStore):
    """Memory and mailbox of the nodes that this rank owns, and access to all other nodes.

    Two maps lead to a row (Sven, section 4.1): node to rank, on every rank, and node to local row, on its owner; both
    are on the CPU. All ranks have to call `fetch`, `commit` and all other methods that exchange data equally often, in
    the same order.

    Transfers are exact but smaller than whole rows. Rows that are unchanged since this rank fetched them are not sent
    again. A mail's first half is left out if it equals the memory of its row (`StateSpec.own_half`). The features of
    its event travel as the event's number.

    Args:
        spec: Number of nodes and widths.
        owner: int64 [N], the rank of every node.
        exchange: Between the ranks.
        device: Where the rows are kept.
        row_cache_mb: Megabytes (2^20 bytes) of fetched rows that a rank keeps; 0 for none.
        omit_own_half: Leave out what is already in the row.
        edge_features: float32 [E, d_edge] of the stream, for mails without theirs; None sends them.
    """

    reads_tables = True
    router: UpdateRouter

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
        self.owner = owner.cpu()
        self.own_nodes = (self.owner == exchange.rank).nonzero().squeeze(1)
        self.local_row = torch.full_like(self.owner, -1)
        self.local_row[self.own_nodes] = torch.arange(len(self.own_nodes))
        self._device = torch.device(device)
        self._row_there = self.local_row.to(device)
        self.local = LocalStateStore(replace(spec, num_nodes=len(self.own_nodes)), device)
        # A model that mails something else has its mails sent whole.
        looked_up = edge_features if spec.event_features else None
        mails = MailCodec(spec, own_half=omit_own_half and spec.own_half, edge_features=looked_up)
        self.row_codec = RowCodec(mails)
        # What lies in rows or can be looked up is not sent: so mails are made where they are to lie.
        self.router = UpdateRouter(self.owner, exchange, mails, makes_mails=omit_own_half)
        self.cache = RowCache(
            spec.num_nodes, self.row_codec.width, int(row_cache_mb * 2**20) if exchange.ranks > 1 else 0, device
        )
        # Ranks whose caches never make room have what they were sent; the others have to say what they lack.
        self.kept_elsewhere = None
        if not self.cache.makes_room:
            keeps = self.cache.capacity > 0
            self.kept_elsewhere = KeptElsewhere(exchange.ranks, len(self.own_nodes), keeps=keeps)
        self.marks = Marks(spec.num_nodes)
        self.announcer: RowAnnouncer | None = None
        # Remote rows asked for, and how many of them the cache had.
        self.asked, self.found = 0, 0
        # Nodes that the latest step has changed, on whatever rank; on the CPU.
        self._changed = self.owner[:0]
        self._announced: AnnouncedRows | None = None  # of the step that is under way
        # Into how many pieces the fetch is cut that a saved run had asked for ahead; 0 where there was none.
        self._pieces = 0
        self._talks = Conversations()
        self._commit: ShardedCommit | None = None
        self._ahead: StepFetch | None = None
        self._latest: StepFetch | None = None

    @property
    def ranks(self) -> int:
        """How many ranks share the rows."""
        return self.exchange.ranks

    @property
    def position(self) -> int:
        """Events of the stream that the state has taken in."""
        self.settle()
        return self.local.position

    def fetch(self, nodes: Tensor) -> FetchHandle:
        """Start to read the rows of the distinct ``nodes``."""
        self._drop_ahead()
        return self.fetch_pieces(nodes, 1)[0]

    def fetch_pieces(self, nodes: Tensor, pieces: int, announced: AnnouncedRows | None = None) -> list[PieceFetch]:
        """Start to read the rows of the distinct ``nodes`` in pieces: first what is here, then what arrives.

        Args:
            nodes: int64 [U]; the nodes given to `ask_ahead`, if it asked for this fetch.
            pieces: Number of pieces; the number given to `ask_ahead` counts, if it asked for this fetch.
            announced: What the ranks have announced to each other of this fetch, on all of them or none.

        Raises:
            InvalidArgumentError: Other nodes were asked for ahead, or announced.
        """
        self.settle()
        step, self._ahead = self._ahead, None
        pieces, self._pieces = self._pieces or pieces, 0
        self._announced = announced
        if self.exchange.ranks == 1:
            return StepFetch(self, nodes, pieces, self._changed).handles()
        if step is None:
            step = self._begin(nodes, pieces, self._changed, announced)
            self._talks.finish()
        elif announced is None or step.announced is not announced:
            step.check_same(nodes)
        self._latest = step
        return step.start()

    def ask_ahead(self, nodes: Tensor, changing: Tensor, pieces: int, announced: AnnouncedRows | None = None) -> None:
        """Ask for the rows of the next step; rows that this step leaves unchanged travel while it computes.

        Call it before `commit`, whose messages are larger, on all ranks, and then `carry_on`.

        Args:
            nodes: int64 [U], distinct, of the next `fetch_pieces`.
            changing: int64 [C], nodes whose rows are about to change.
            pieces: Number of pieces of the next fetch.
            announced: What the ranks have announced to each other of the next fetch, on all of them or none.

        Raises:
            InvalidArgumentError: ``nodes`` are not the announced ones.
        """
        if self.exchange.ranks > 1:
            self.settle()  # what an earlier commit changes is not among `changing`
            self._ahead = self._begin(nodes, pieces, self._on_cpu(changing), announced, ahead=True)

    def _begin(
        self, nodes: Tensor, pieces: int, changed: Tensor, announced: AnnouncedRows | None, *, ahead: bool = False
    ) -> StepFetch:
        self._keep_all()
        step = StepFetch(self, nodes, pieces, changed, ahead=ahead, announced=announced)
        self._talks.begin(step.conversation())
        return step

    def _keep_all(self) -> None:
        """Keep the rows of the latest fetch that were never waited for, because their owners count them as kept."""
        if self._latest is not None:
            self._latest.arrive_all()

    def _on_cpu(self, changed: Tensor) -> Tensor:
        """Return the nodes that the step under way changes; announced nodes need no wait for a GPU."""
        return changed.cpu() if changed.device.type == "cpu" or self._announced is None else self._announced.changed

    def announce_over(self, exchange: RowExchange) -> None:
        """Have batches announced over an exchange of the same ranks that nothing else uses, from now on."""
        self.announcer = self.announcer or Announcer(self.owner, exchange)  # loaders that are there know the one
        self.announcer.talk_over(exchange)

    def carry_on(self) -> None:
        """Send messages that had to wait for others to arrive; call it when they are likely to have, on all ranks."""
        self._talks.carry_on()

    def commit(self, update: StateUpdate) -> ShardedCommit:
        """Start to send the writes of this rank's events to the owners; of several ranks' writes the latest counts.

        Cached rows that the step changes on any rank are forgotten; see `StateUpdate.changed`.
        """
        if self._commit is not None:
            self.settle()
        self._changed = self._on_cpu(update.changed)
        self._commit = ShardedCommit(self, update.to(self._device), self._changed)
        self._talks.begin(self._commit.conversation())
        return self._commit

    def finish_talks(self) -> None:
        """Send all that is still to be sent."""
        self._talks.finish()

    def settle(self) -> None:
        """Finish messages under way, and apply a commit, before others use the exchange or read the rows."""
        self._talks.finish()
        if self._commit is not None:
            self._commit.wait()
            self._commit = None

    def _drop_ahead(self) -> None:
        """Forget the rows asked for ahead, because something else comes first."""
        self.settle()
        self._pieces = 0
        if self._ahead is not None:
            self._ahead.arrive_all()
            self._ahead = None
        self._announced = None

    def apply(self, update: StateUpdate, changed: Tensor) -> None:
        """Apply the updates that the ranks have sent, and forget changed nodes, int64 [C], on the CPU."""
        self._keep_all()  # what was read before must not be kept behind this
        rows, mail_rows = self._row_there[update.nodes], self._row_there[update.mail_nodes]
        self.local.commit(replace(update, nodes=rows, mail_nodes=mail_rows))
        self.cache.drop(changed)
        if self.kept_elsewhere is not None:
            here = self.local_row[changed]
            self.kept_elsewhere.drop(here[here >= 0])

    def reset(self) -> None:
        """Return to the state before the first event."""
        self._forget()
        self._changed = self._changed[:0]
        self.local.reset()

    def held(self) -> StateRows:
        """Return this rank's rows, for statistics; on all ranks. They are no copies."""
        self.settle()
        return self.local.rows

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot of this rank's rows for `restore`."""
        self._drop_ahead()
        return {"changed": self._changed, **self.local.snapshot()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put a snapshot back."""
        self._forget()
        self._changed = snapshot["changed"]
        self.local.restore(snapshot)

    def _forget(self) -> None:
        self._drop_ahead()
        self._keep_all()
        self.cache.clear()
        if self.kept_elsewhere is not None:
            self.kept_elsewhere.clear()

    def state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the rows of all ranks in the order of the nodes, on rank 0; the others return no rows.

        The form is as in `LocalStateStore`, so that any number of ranks can load it.
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
                state[name] = torch.empty_like(rows).index_copy_(0, order.to(rows.device), rows)
        return state

    def sharded_state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the same as `state_dict` with this rank's rows alone, which are no copies; nothing is sent."""
        start = int((self.owner < self.exchange.rank).sum())
        return as_own_rows(self._on_this_rank(snapshot), start, self.spec.num_nodes, self.own_nodes)

    def _on_this_rank(self, snapshot: dict[str, Any] | None) -> dict[str, Any]:
        self.settle()
        state = {**self.local.state_dict(snapshot), "spec": asdict(self.spec)}
        state["changed"] = self._changed if snapshot is None else snapshot["changed"]
        state["pieces"] = 0 if self._ahead is None else len(self._ahead.pieces)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load this rank's rows of the state that `state_dict` returned on rank 0.

        Raises:
            CheckpointError: The state is of another graph or another model.
        """
        check_same_spec(state, self.spec)
        own = self.own_nodes
        rows = {name: state[name][own] for name in _TABLES}
        self._forget()
        self._changed = state.get("changed", own[:0])[:].cpu()  # one process keeps none; a folder has a `SavedTable`
        self.local.put({"position": state["position"], **rows})
        self._pieces = state.get("pieces", 0)


class UpdatedStore(Protocol):
    """A store that applies the updates of all ranks.

    Attributes:
        router: Sends the updates.
    """

    router: UpdateRouter

    def finish_talks(self) -> None:
        """Send all messages that are still to be sent."""
        ...

    def apply(self, update: StateUpdate, changed: Tensor) -> None:
        """Apply the updates that the ranks have sent, and forget the changed nodes."""
        ...


class ShardedCommit:
    """The writes of this rank's events on their way to the owners.

    Args:
        store: What it is written to.
        update: Of this rank.
        changed: int64 [C], on the CPU, nodes that the ranks change.
    """

    def __init__(self, store: UpdatedStore, update: StateUpdate, changed: Tensor) -> None:
        self._store, self._changed, self._done = store, changed, False
        self._under_way = store.router.start(update)

    def conversation(self) -> Conversation:
        """Send the writes of the ranks."""
        return self._under_way.conversation()

    def wait(self) -> None:
        """Apply the updates that the ranks have sent."""
        if not self._done:
            self._done = True
            self._store.finish_talks()
            self._store.apply(self._under_way.merged(), self._changed)
