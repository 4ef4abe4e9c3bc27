"""The process that holds a copy of node state, and reads and writes it in the order of the batches (DistTGL, 3.3)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import organize
from lightning_tgnn.comm import mapped, views
from lightning_tgnn.state.nodes.local import LocalStateStore, merged_memory, table_shapes
from lightning_tgnn.types import ServedCounts, StateRows, StateSpec, StateUpdate

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
READ, WRITE, SETTLE, MEET, MAP, RESET = "read", "write", "settle", "meet", "map", "reset"
ROWS, WRITTEN, MET = "rows", "written", "met"
TABLES, UPDATE = "tables", "update"


_COUNTS = [field.name for field in fields(ServedCounts)]


def shared_shapes(spec: StateSpec) -> Shapes:
    """Return shape and type of the tables that the ranks and the process share, with `ServedCounts` in its order."""
    counts = (len(fields(ServedCounts)),), torch.float64
    return {"position": ((1,), torch.int64), "served": counts, **table_shapes(spec)}


def row_shapes(spec: StateSpec, count: int) -> Shapes:
    """Return shape and type of the arrays for a read of this many nodes: the nodes, and their rows."""
    return {"nodes": ((count,), torch.int64), **table_shapes(replace(spec, num_nodes=count))}


def update_shapes(spec: StateSpec, written: int, mailed: int) -> Shapes:
    """Return shape and type of an update with this many memories and mails."""
    return {
        "nodes": ((written,), torch.int64),
        "memory": ((written, spec.memory_dim), torch.float32),
        "memory_time": ((written,), torch.float64),
        "mail_nodes": ((mailed,), torch.int64),
        "mails": ((mailed, spec.mail_dim), torch.float32),
        "mail_time": ((mailed,), torch.float64),
        "mail_event": ((mailed,), torch.int64),
    }


def serve(connections: list[Connection], spec: StateSpec, lanes: int) -> None:
    """Answer the ranks of a copy of node state until all have ended, or one has ended for whom others wait.

    The ranks are in ``lanes`` of equal size, which take turns. In its turn each rank of a lane may read, and has to
    write once. When all have written, their writes become one update. The process waits without using the processor.

    Args:
        connections: Connections to the ranks, lane by lane, and within a lane in the order of their events.
        spec: Widths of the rows.
        lanes: How many groups of ranks take turns.
    """
    torch.set_num_threads(1)
    places = {connection: place for place, connection in enumerate(connections)}
    memory = _Memory(connections, spec, lanes)
    while places and not memory.is_stuck:
        woken_by, begin = wait(places), perf_counter()
        for ready in woken_by:
            assert isinstance(ready, Connection)
            try:
                message = ready.recv()
            except (EOFError, OSError):
                memory.gone.add(places.pop(ready))
            else:
                memory.take(places[ready], message)
        memory.count(waves=1, queued=memory.queued)
        while memory.moves_on():
            pass
        memory.count(busy=perf_counter() - begin)


class _Memory:
    """A copy of node state, with the reads and writes that ranks have asked for.

    Attributes:
        gone: Places of ranks that have ended.
    """

    def __init__(self, connections: list[Connection], spec: StateSpec, lanes: int) -> None:
        self._connections, self._spec, self._lanes = connections, spec, lanes
        self._ranks_per_lane = len(connections) // lanes
        self._lane = 0
        self._buffers: dict[tuple[int, str], Tensor] = {}
        self._reads: dict[int, int] = {}
        self._writes: dict[int, tuple[int, int, int]] = {}
        self._meets: dict[int, Any] = {}
        self._settles: set[int] = set()
        self._counts: Tensor | None = None  # until the first rank shows where
        self.gone: set[int] = set()

    @property
    def _turn(self) -> range:
        """The places of the lane whose turn it is."""
        return range(self._lane * self._ranks_per_lane, (self._lane + 1) * self._ranks_per_lane)

    @property
    def queued(self) -> int:
        """How many reads and writes are still to be done."""
        return len(self._reads) + len(self._writes)

    def count(self, **amounts: float) -> None:
        """Add to the `ServedCounts` that ranks see."""
        if self._counts is not None:
            for name, amount in amounts.items():
                self._counts[_COUNTS.index(name)] += amount

    @property
    def is_stuck(self) -> bool:
        """Whether a rank waits for a rank that has ended."""
        owes = self.gone & (set(self._turn) - self._writes.keys())
        return bool(owes and (self._reads or self._settles)) or bool(self._meets and self.gone)

    def _answer(self, place: int, *answer: object) -> None:
        with suppress(OSError):  # it has ended, which shows where it is read from
            self._connections[place].send(answer)

    def take(self, place: int, message: tuple[Any, ...]) -> None:
        """Note a message from the rank in a place."""
        kind, *values = message
        if kind == READ:
            (self._reads[place],) = values
        elif kind == WRITE:
            written, mailed, position = values
            self._writes[place] = written, mailed, position
        elif kind == SETTLE:
            self._settles.add(place)
        elif kind == MEET:
            (self._meets[place],) = values
        else:
            name, path, size = values
            memory = mapped(path, size)
            if name == TABLES:
                tables = views(memory, shared_shapes(self._spec))
                self._position, self._counts = tables.pop("position"), tables.pop("served")
                self._store = LocalStateStore(self._spec, rows=StateRows(**tables))
            else:
                self._buffers[place, name] = memory
            self._answer(place, MAP)

    def moves_on(self) -> bool:
        """Do the possible reads and writes; return whether a lane has ended its turn, so that more may be possible."""
        ranks = self._turn
        for place in ranks:
            if place in self._reads and place not in self._writes:
                self._read(place, self._reads.pop(place))
        if self._writes.keys() >= set(ranks):
            self._write(ranks)
            self._lane = (self._lane + 1) % self._lanes
            return True
        for place in self._settles - self._writes.keys():
            self._settles.discard(place)
            self._answer(place, WRITTEN)
        if len(self._meets) == len(self._connections):
            assert not self._writes, "ranks have met in the middle of a turn"
            self._meet()
        return False

    def _read(self, place: int, count: int) -> None:
        shared = views(self._buffers[place, ROWS], row_shapes(self._spec, count))
        nodes = shared["nodes"]
        for field in fields(StateRows):
            torch.index_select(getattr(self._store.rows, field.name), 0, nodes, out=shared[field.name])
        self.count(rows_read=count)
        self._answer(place, ROWS)

    def _write(self, ranks: range) -> None:
        updates = []
        for place in ranks:
            written, mailed, position = self._writes.pop(place)
            self.count(rows_written=written + mailed)
            shared = views(self._buffers[place, UPDATE], update_shapes(self._spec, written, mailed))
            updates.append(StateUpdate(**shared, position=position, changed=shared["nodes"][:0], together=None))
        # A turn that only reads writes no nodes; of a model without state, no turn does.
        if any(len(update.nodes) for update in updates) or not self._spec.memory_dim:
            self._store.commit(merged_update(updates, self._spec))
            self._position.fill_(updates[0].position)

    def _meet(self) -> None:
        asked = {place: self._meets.pop(place) for place in list(self._meets)}
        self._reads.clear()  # asked for ahead, of a turn that something has come before
        lane, begin = self._lane, next(iter(asked.values()))
        if begin == RESET:
            self._store.reset()
            self._position.zero_()
            begin = 0
        self._lane = lane if begin is None else begin
        for place in asked:
            self._answer(place, MET, lane, int(self._position))


def merged_update(updates: list[StateUpdate], spec: StateSpec) -> StateUpdate:
    """Return the update of ranks that hold consecutive events; see `merged_memory`."""
    if len(updates) == 1:
        return updates[0]
    whole = {
        field.name: torch.cat([getattr(update, field.name) for update in updates])
        for field in fields(StateUpdate)
        if field.name not in ("position", "changed", "together")
    }
    nodes, memory, time = merged_memory(whole["nodes"], whole["memory"], whole["memory_time"], spec)
    receivers = organize(whole["mail_nodes"])
    return StateUpdate(
        nodes=nodes,
        memory=memory,
        memory_time=time,
        mail_nodes=receivers.distinct,
        mails=whole["mails"][receivers.last],
        mail_time=whole["mail_time"][receivers.last],
        mail_event=whole["mail_event"][receivers.last],
        position=updates[0].position,
        changed=updates[0].changed,
    )
