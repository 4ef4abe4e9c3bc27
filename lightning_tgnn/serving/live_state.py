"""The state of a model that follows a stream: node state, latest neighbours, and the batch that is still open."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import last_mails, organize
from lightning_tgnn.serving.feature_log import FeatureLog
from lightning_tgnn.serving.fresh_memory import FreshMemory
from lightning_tgnn.serving.recent_neighbors import RecentNeighbors
from lightning_tgnn.tasks import MemoryTask
from lightning_tgnn.types import EventBatch, QueryBatch, SharedBatch, StateRows


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


class _Backup:
    """Rows of some tables as they were."""

    def __init__(self, tables: list[Tensor], nodes: Tensor) -> None:
        self._tables = tables
        self.nodes = nodes
        self._rows = [table[nodes.to(table.device)] for table in tables]

    def put_back(self) -> None:
        for table, rows in zip(self._tables, self._rows, strict=True):
            table[self.nodes.to(table.device)] = rows


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
        self._node_features = node_features
        self._memory = FreshMemory(task)
        self._open: list[Events] = []
        self._num_open = 0
        self._backups: list[_Backup] = []
        self._is_settled = True

    @property
    def _store(self) -> _LocalRows:
        store = self.task.state_store
        assert isinstance(store, _LocalRows)
        return store

    @property
    def num_events(self) -> int:
        """Events of the stream that have been taken in or wait in the open batch."""
        held = self.task.state_store.position
        return held if self._backups else held + self.num_open

    @property
    def num_open(self) -> int:
        """Events of the batch that is still open."""
        return self._num_open  # counted as they come: a batch of single events has as many parts

    def append(self, events: Events) -> None:
        """Add events; a batch that is full is taken in."""
        self.version += 1
        self._reopen()
        start = 0
        while start < len(events.src):
            end = min(start + self.batch_size - self.num_open, len(events.src))
            self._open.append(Events(*(column[start:end] for column in events)))
            self._num_open += end - start
            start = end
            if self.num_open == self.batch_size:
                self.close_batch()
        self._is_settled = not self._open

    def close_batch(self) -> None:
        """Take in the open batch for good, as at the end of a split."""
        self.version += 1
        self._reopen()
        if self._open:
            self._make_room()
            self._take_in(self._batch(self.open_events()))
            self._forget_open()
        self._is_settled = True

    def skip_to(self, position: int) -> None:
        """Count the stream's events up to ``position`` as taken in; skipped events change no memory."""
        self._store.position = position

    def settle(self) -> None:
        """Take in the open batch for an answer."""
        if self._is_settled:
            return
        self._make_room()
        batch = self._batch(self.open_events())
        store = self._store
        changed = torch.cat([batch.nodes[: batch.num_written], batch.mail_nodes]).unique()
        ends = torch.cat([batch.src, batch.dst]).unique()
        self._backups = [
            _Backup(list(vars(store.rows).values()), changed),
            _Backup(list(self.recent.tables.values()), ends),
        ]
        self._position, self._used, self._moment = store.position, self.features.mark(), self.recent.moment
        self._take_in(batch)
        self._is_settled = True

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
            node_features=self._of_nodes(own.distinct),
        )
        return self._memory.read(own.distinct), batch.to(self.task.device)

    def _of_nodes(self, nodes: Tensor) -> Tensor:
        return torch.empty(len(nodes), 0) if self._node_features is None else self._node_features[nodes]

    def open_events(self) -> Events:
        """Return the events of the batch that is still open."""
        return Events(*(torch.cat(columns) for columns in zip(*self._open, strict=True)))

    def _forget_open(self) -> None:
        self._open.clear()
        self._num_open = 0

    def reset(self) -> None:
        """Return to the state before the first event."""
        self.version += 1
        self._forget_open()
        self._backups = []
        self._is_settled = True
        self.task.state_store.reset()
        self.recent.clear()
        self.features.forget_others(self.recent.rows)
        self._memory.mark_changed()

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values that hold the state, the open batch by itself."""
        self._reopen()
        self._is_settled = not self._open
        return {
            "state": self.task.state_store.state_dict(),
            "recent": self.recent.state_dict(),
            "features": self.features.held().clone(),
            "node_features": self._node_features,
            "batch_size": self.batch_size,
            "open": self.open_events()._asdict() if self._open else None,
        }

    @classmethod
    def from_state_dict(cls, task: MemoryTask, state: dict[str, Any]) -> LiveState:
        """Return the state that `state_dict` has described, around a task with its weights."""
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
        for backup in self._backups:
            backup.put_back()
            self._memory.mark_changed(backup.nodes)
        if self._backups:
            self._store.position = self._position
            self.features.rewind(self._used)
            self.recent.moment = self._moment
        self._backups = []

    def _make_room(self) -> None:
        """Drop features without a reference instead of letting their table grow."""
        if self.features.width and not self.features.has_room(self.num_open):
            self.features.forget_others(self.recent.rows)

    def _take_in(self, batch: EventBatch) -> None:
        self.task.take_in(batch.to(self.task.device))
        ends = torch.stack([batch.src, batch.dst], dim=1)
        rows = self.features.append(batch.edge_features) if self.features.width else batch.events
        self.recent.add(ends, batch.time, rows)
        self._memory.mark_changed(batch.nodes[: batch.num_written])
        self._memory.mark_changed(batch.mail_nodes)

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
            node_features=self._of_nodes(own.distinct),
        )
