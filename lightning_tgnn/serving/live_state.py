"""The state of a model that follows a stream: node state, latest neighbours, and the batch that is still open."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import last_mails, organize
from lightning_tgnn.algorithms.streams.room import with_room
from lightning_tgnn.files.whole import interrupts_wait
from lightning_tgnn.serving.change import Change, OldTableRows
from lightning_tgnn.serving.recent_neighbors import FeatureLog, RecentNeighbors
from lightning_tgnn.tasks import MemoryTask
from lightning_tgnn.types import EventBatch, QueryBatch, SharedBatch, StateRows, UpdatedRows

_NODES_PER_PIECE = 16_384


class Events(NamedTuple):
    """Events as they come: ``src``, ``dst`` int64 [B], ``time`` float64 [B], ``features`` float32 [B, d_edge]."""

    src: Tensor
    dst: Tensor
    time: Tensor
    features: Tensor


@runtime_checkable
class _LocalRows(Protocol):
    """A `StateStore` of one process: its rows can be changed in place."""

    rows: StateRows
    position: int


class _Before:
    """A state as it was, while batches are taken in: with it they can be undone."""

    def __init__(self, live: LiveState) -> None:
        self._live, store = live, live.store
        self._rows, self._recent = (
            OldTableRows([*vars(store.rows).values()]),
            OldTableRows([*live.recent.tables.values()]),
        )
        self._row_column = [*live.recent.tables].index("row")
        self._position, self._moment = store.position, live.recent.moment
        self._used: int | None = live.features.mark()
        self._open, self._num_parts, self._num_open = live.open, len(live.open), live.num_open

    def keep(self, batch: EventBatch) -> None:
        """Keep the rows that a batch changes."""
        changed = torch.cat([batch.nodes[: batch.num_written], batch.mail_nodes]).unique()
        self._rows.keep(changed)
        self._recent.keep(torch.cat([batch.src, batch.dst]).unique())

    def rows_of_features(self) -> list[Tensor]:
        """Return the tables that say where features are kept; they are about to be renumbered."""
        self._used = None
        return [*self._recent.kept_of(self._row_column), self._moment.tables["row"]]

    def put_back(self) -> None:
        """Undo all batches; may be called again where it has broken off."""
        live = self._live
        for nodes in self._rows.put_back():
            live.memory.mark_changed(nodes)
        self._recent.put_back()
        live.store.position, live.recent.moment = self._position, self._moment
        if self._used is not None:
            live.features.rewind(self._used)
        del self._open[self._num_parts :]
        live.open, live.num_open = self._open, self._num_open
        live.version += 1


class LiveState:
    """Takes in events in batches of a fixed size, as training does, and answers after any number of them.

    After ``n`` events the state equals the state at the end of an epoch over them in batches of ``batch_size`` events,
    with a shorter last batch. It does not depend on how the events were handed over. For an answer the open batch is
    taken in as if it ended here. When more events come, the rows that it changed are put back.

    Args:
        task: A memory-based temporal GNN in evaluation mode with its node state, in this process.
        recent: Latest neighbours.
        features: Their edge features.
        node_features: float32 [N, d_node] or None.
        batch_size: Events per batch.

    Attributes:
        version: A number that changes whenever answers may change.
        memory: The memory of every node with its pending mails applied.
        node_features: float32 [N, d_node] or None.
        open: The events of the batch that is still open, as they came.
        num_open: How many they are.
    """

    def __init__(
        self,
        task: MemoryTask,
        recent: RecentNeighbors,
        features: FeatureLog,
        node_features: Tensor | None,
        batch_size: int,
    ) -> None:
        self.task = task
        self.recent = recent
        self.features = features
        self.batch_size = batch_size
        self.version = 0
        self.node_features = node_features
        self._features = {} if node_features is None else {"node": node_features}
        self.memory = FreshMemory(task)
        self.open: list[Events] = []
        self.num_open = 0  # counted as they come: a batch of single events has as many parts
        self._settled: _Before | None = None  # before the open batch was taken in for an answer
        self._unsettled: _Before | None = None  # before it began to be: that has broken off

    @property
    def store(self) -> _LocalRows:
        """Where node state lives."""
        store = self.task.state_store
        assert isinstance(store, _LocalRows)
        return store

    @property
    def num_events(self) -> int:
        """Events of the stream that have been taken in or wait in the open batch."""
        held = self.task.state_store.position
        return held if self._settled is not None else held + self.num_open

    @property
    def is_settled(self) -> bool:
        """Whether an answer has all events."""
        return self._unsettled is None and (self._settled is not None or not self.num_open)

    def append(self, events: Events, change: Change | None = None) -> None:
        """Add events; a batch that is full is taken in.

        Args:
            events: What has happened, in order.
            change: What is to be undone if it breaks off; None where nobody continues then.
        """
        self.version += 1
        self._reopen()
        before = None
        if change is not None:
            before = _Before(self)
            change.on_undo(before.put_back)
        start = 0
        while start < len(events.src):
            end = min(start + self.batch_size - self.num_open, len(events.src))
            self.open.append(Events(*(column[start:end] for column in events)))
            self.num_open += end - start
            start = end
            if self.num_open == self.batch_size:
                self._close(before)

    def close_batch(self, change: Change | None = None) -> None:
        """Take in the open batch for good, as at the end of a split; ``change`` is as for `append`."""
        self.version += 1
        self._reopen()
        if self.open:
            before = None
            if change is not None:
                before = _Before(self)
                change.on_undo(before.put_back)
            self._close(before)

    def _close(self, before: _Before | None) -> None:
        self._make_room(before)
        self._take_in(self._batch(self.open_events()), before)
        self._forget_open()

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.task.state_store.spec.num_nodes

    def resize(self, num_nodes: int, new_features: Tensor) -> None:
        """Have node state for so many nodes, of which new ones are as before the first event.

        Args:
            num_nodes: N.
            new_features: float32 [A, d_node], features of the new nodes.
        """
        self.version += 1
        self._reopen()
        if self.node_features is not None:
            held = len(self.node_features)
            self._features = with_room(
                self._features, num_nodes, lambda count: {"node": torch.zeros(count, new_features.shape[1])}
            )
            self.node_features = self._features["node"][:num_nodes]
            self.node_features[held:] = new_features
        _resize(self.task, num_nodes)
        self.recent.resize(num_nodes)
        self.memory.resize(num_nodes)

    def skip_to(self, position: int) -> None:
        """Count the stream's events up to ``position`` as taken in; skipped events change no memory."""
        self.store.position = position

    def settle(self) -> None:
        """Take in the open batch for an answer."""
        if self.is_settled:
            return
        self._reopen()
        self._make_room()
        self._unsettled = _Before(self)
        self._take_in(self._batch(self.open_events()), self._unsettled)
        self._settled, self._unsettled = self._unsettled, None

    def query(self, nodes: Tensor, times: Tensor) -> tuple[Any, QueryBatch]:
        """Return the memory and the neighbours that a question about ``nodes`` at ``times`` needs.

        Args:
            nodes: int64 [R].
            times: float64 [R], since the first event of the stream.
        """
        self.settle()
        if self.task.sampled_roots == "all":
            found = self.recent.at(nodes, times)
            neighbors, time, row = found["neighbor"], found["time"], found["row"]
        else:
            neighbors = row = nodes.new_empty(0, 0)
            time = times.new_empty(0, 0)
        mask = neighbors >= 0
        known = torch.where(mask, neighbors, nodes[: len(neighbors)].unsqueeze(1))
        own = organize(torch.cat([nodes, known.flatten()]))
        batch = QueryBatch(
            nodes=own.distinct,
            num_roots=int(own.position[: len(nodes)].max()) + 1 if len(nodes) else 0,
            root_index=own.position[: len(nodes)],
            root_times=times,
            neighbor_index=own.position[len(nodes) :].view(neighbors.shape),
            neighbor_time=time,
            neighbor_mask=mask,
            neighbor_edge=row.clamp(min=0) if self.features.width else nodes.new_empty(0, 0),
            edge_features=self.features.table if self.features.width else torch.empty(0, 0),
            node_features=self._for_nodes(own.distinct),
        )
        return self.memory.read(own.distinct), batch.to(self.task.device)

    def _for_nodes(self, nodes: Tensor) -> Tensor:
        return torch.empty(len(nodes), 0) if self.node_features is None else self.node_features[nodes]

    def open_events(self) -> Events:
        """Return the events of the batch that is still open."""
        return Events(*(torch.cat(columns) for columns in zip(*self.open, strict=True)))

    def _forget_open(self) -> None:
        self.open, self.num_open = [], 0

    def reset(self) -> None:
        """Return to the state before the first event."""
        self.version += 1
        self._forget_open()
        self._settled = self._unsettled = None
        self.task.state_store.reset()
        self.recent.clear()
        self.features.forget_others(self.recent.rows)
        self.memory.mark_changed()

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values that hold the state, the open batch by itself."""
        self._reopen()
        return {
            "state": self.task.state_store.state_dict(),
            "recent": self.recent.state_dict(),
            "features": self.features.held().clone(),
            "node_features": self.node_features,
            "batch_size": self.batch_size,
            "open": self.open_events()._asdict() if self.open else None,
        }

    @classmethod
    def from_state_dict(cls, task: MemoryTask, state: dict[str, Any], num_nodes: int) -> LiveState:
        """Return the state that `state_dict` has described, around a task with its weights."""
        _resize(task, num_nodes)
        task.state_store.load_state_dict(state["state"])
        recent, features = (
            RecentNeighbors.from_state_dict(state["recent"]),
            FeatureLog(state["features"].to(task.device)),
        )
        live = cls(task, recent, features, state["node_features"], state["batch_size"])
        if state["open"] is not None:
            live.append(Events(**state["open"]))
        return live

    def _reopen(self) -> None:
        """Undo what `settle` did."""
        for before in (self._settled, self._unsettled):
            if before is not None:
                before.put_back()
        self._settled = self._unsettled = None

    def _make_room(self, before: _Before | None = None) -> None:
        """Drop features without a reference instead of letting their table grow."""
        if self.features.width and not self.features.has_room(self.num_open):
            kept = [] if before is None else before.rows_of_features()
            with interrupts_wait():  # some tables renumbered and others not could not be undone
                self.features.forget_others([*self.recent.rows, *kept])

    def _take_in(self, batch: EventBatch, before: _Before | None) -> None:
        if before is not None:
            before.keep(batch)
        self.task.take_in(batch.to(self.task.device))
        ends = torch.stack([batch.src, batch.dst], dim=1)
        rows = self.features.append(batch.edge_features) if self.features.width else batch.events
        self.recent.add(ends, batch.time, rows)
        self.memory.mark_changed(batch.nodes[: batch.num_written])
        self.memory.mark_changed(batch.mail_nodes)

    def _batch(self, events: Events) -> EventBatch:
        """Return the batch that only changes node state, as `EventLoader.replay` makes it."""
        count, position = len(events.src), self.task.state_store.position
        ends = torch.stack([events.src, events.dst], dim=1)
        mails_neighbors = self.task.sampled_roots == "events"
        mail_nodes, mail_source = last_mails(
            ends, self.recent.before_each(ends, events.time) if mails_neighbors else None
        )
        own = organize(torch.cat([events.src, events.dst]))
        return EventBatch.writing(
            torch.arange(position, position + count),
            torch.stack([events.src, events.dst]),
            events.time,
            own.distinct,
            own.position,
            (mail_nodes, mail_source),
            SharedBatch(position, position + count),
            edge_features=events.features,
            node_features=self._for_nodes(own.distinct),
        )


def _resize(task: MemoryTask, num_nodes: int) -> None:
    assert task.model is not None
    task.model.resize(num_nodes)
    task.state_store.resize(num_nodes)


class FreshMemory:
    """Every node's memory with its pending mails applied; asks the model only for nodes that have changed.

    Args:
        task: Its node state is in `task.state_store`.
    """

    def __init__(self, task: MemoryTask) -> None:
        self._task = task
        spec, device = task.state_spec, task.device
        self._room: dict[str, Tensor] = {
            "memory": torch.zeros(0, spec.memory_dim, device=device),
            "time": torch.zeros(0, dtype=torch.float64, device=device),
            "stale": torch.ones(0, dtype=torch.bool),
        }
        self._refreshing = threading.Lock()
        self.resize(spec.num_nodes)

    def resize(self, num_nodes: int) -> None:
        """Have rows for so many nodes."""

        def empty(count: int) -> dict[str, Tensor]:
            fills = {"memory": 0, "time": 0, "stale": True}
            return {name: table.new_full((count, *table.shape[1:]), fills[name]) for name, table in self._room.items()}

        self._room = with_room(self._room, num_nodes, empty)
        self._memory, self._time, self._stale = self._room.values()

    def mark_changed(self, nodes: Tensor | slice = slice(None)) -> None:
        """Forget the memory of ``nodes``, or of all."""
        self._stale[nodes] = True

    def read(self, nodes: Tensor) -> UpdatedRows:
        """Return the rows of distinct nodes (int64 [U], on the CPU)."""
        with self._refreshing:  # rows that are read by others meanwhile are not among them
            for piece in nodes[self._stale[nodes]].split(_NODES_PER_PIECE):
                self._refresh(piece)
        index = nodes.to(self._memory.device)
        return UpdatedRows(self._memory.index_select(0, index), self._time[index])

    def _refresh(self, nodes: Tensor) -> None:
        index = nodes.to(self._memory.device)
        rows = self._task.fetch(index).wait()
        self._memory[index], self._time[index] = rows.memory, rows.memory_time
        # A row without mail stays as it is, and most of a large catalogue has none.
        has_mail = (rows.mail_count > 0).nonzero().squeeze(1)
        updated = self._task.apply_mail(StateRows(*(table[has_mail] for table in vars(rows).values())))
        self._memory[index[has_mail]], self._time[index[has_mail]] = updated.memory, updated.memory_time
        self._stale[nodes] = False
