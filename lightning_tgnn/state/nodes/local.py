"""Node state in the memory of one process."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.decayed_sums import added, sum_by_node
from lightning_tgnn.algorithms.streams.dedup import first_positions, organize
from lightning_tgnn.algorithms.streams.room import with_room
from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.types import (
    CommitHandle,
    FetchHandle,
    OwnRows,
    StateRows,
    StateSpec,
    StateStore,
    StateUpdate,
    is_asynchronous,
)

_MOST_REPEATED = 1 << 14
"""Rows that a snapshot on an asynchronous device may keep before it looks for repeated nodes."""


class _Fetched:
    """A fetch that is complete."""

    def __init__(self, rows: StateRows) -> None:
        self._rows = rows

    def wait(self) -> StateRows:
        return self._rows


class _Committed:
    """A commit that is complete."""

    def wait(self) -> None:
        return None


class LocalStateStore(StateStore):
    """Memory and mailbox of every node, on one device of one process.

    Args:
        spec: Number of nodes and widths.
        device: Where the rows are kept; fetched rows are on the device of the given nodes.
        rows: Tables to keep the rows in instead, with the shapes of `table_shapes`.
    """

    position: int = 0  # of events
    reads_tables = True

    def __init__(self, spec: StateSpec, device: torch.device | str = "cpu", *, rows: StateRows | None = None) -> None:
        self.spec, self.position = spec, 0
        # The first to ask may be an evaluation: tensors made under its inference mode could never be trained on.
        with torch.inference_mode(False):
            self.rows = rows or StateRows(**_empty(spec, spec.num_nodes, device))
        self._room = self.rows
        self._snapshots: list[ref[OldRows]] = []
        self._scratch: StateRows | None = None

    def resize(self, num_nodes: int) -> None:
        """Have rows for so many nodes, while no snapshot is held; memory is taken for twice as many at a time."""
        with torch.inference_mode(False):
            device = self._room.memory.device
            room = with_room(vars(self._room), num_nodes, lambda count: _empty(self.spec, count, device))
        self.spec = replace(self.spec, num_nodes=num_nodes)
        self._room, self._scratch = StateRows(**room), None
        self.rows = self._room.split(num_nodes)[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_snapshots": self._held_snapshots(), "_scratch": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _snapshots=[ref(old) for old in state["_snapshots"]])

    def fetch(self, nodes: Tensor) -> FetchHandle:
        """Read the rows of the distinct ``nodes``."""
        index = nodes.to(self.rows.memory.device)
        rows = StateRows(**{name: table.index_select(0, index) for name, table in self._tables().items()})
        return _Fetched(rows.to(nodes.device))

    def commit(self, update: StateUpdate) -> CommitHandle:
        """Write memory and deliver mails; a full mailbox loses its oldest mail."""
        update = update.to(self.rows.memory.device)
        self._keep_old(update.nodes)
        self._keep_old(update.mail_nodes)
        _write(update, self.rows, self.spec)
        self.position = update.position
        return _Committed()

    def commit_first(self, update: StateUpdate, written: Tensor, sent: Tensor) -> None:
        """Write the first rows of an update and deliver its first mails, without asking how many these are.

        The others go to a scratch row behind all nodes. For CUDA graphs: `position` stays, no snapshot may be held.

        Args:
            update: On the device of the rows.
            written: int64 [], how many rows.
            sent: int64 [], how many mails.
        """
        nodes, mail_nodes = (
            torch.where(torch.arange(len(given), device=given.device) < count, given, self.spec.num_nodes)
            for given, count in ((update.nodes, written), (update.mail_nodes, sent))
        )
        _write(replace(update, nodes=nodes, mail_nodes=mail_nodes), self.with_scratch_row(), self.spec)

    def with_scratch_row(self) -> StateRows:
        """Return the tables of all rows with one more row behind them; from now on `rows` are views of these tables."""
        if self._scratch is None:
            with torch.inference_mode(False):
                self._scratch = StateRows(
                    **{name: torch.cat([table, torch.zeros_like(table[:1])]) for name, table in self._tables().items()}
                )
            self.rows = self._room = self._scratch.split(self.spec.num_nodes)[0]
        return self._scratch

    @property
    def has_snapshots(self) -> bool:
        """Whether a snapshot is held."""
        return bool(self._held_snapshots())

    def write(self, nodes: Tensor, rows: StateRows) -> None:
        """Write whole rows of the distinct ``nodes``."""
        self._keep_old(nodes)
        for name, table in self._tables().items():
            table[nodes] = getattr(rows, name)

    def _keep_old(self, nodes: Tensor | None = None) -> None:
        """Have the held snapshots keep the rows of distinct ``nodes`` (by default all) before they are written."""
        for old in self._held_snapshots():
            old.keep(self.rows, nodes)

    def reset(self) -> None:
        """Return to the state before the first event."""
        self._keep_old()
        for table in self._tables().values():
            table.zero_()
        self.position = 0

    def held(self) -> StateRows:
        """Return the rows that this rank counts for statistics, each row on exactly one rank. They are no copies."""
        return self.rows

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot for `restore`. As long as it is held, it keeps the old rows of nodes that are written."""
        old = OldRows(self.rows)
        self._snapshots = [ref(held) for held in (*self._held_snapshots(), old)]
        return {"position": self.position, "old": old}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put a snapshot back."""
        old = snapshot["old"]
        for other in self._held_snapshots():
            if other is not old:
                other.keep(self.rows, old.nodes)
        old.put_back(self.rows)
        self.position = snapshot["position"]

    def _held_snapshots(self) -> list[OldRows]:
        """Return the rows kept by the snapshots that are still held, in the order in which they were taken."""
        return [old for held in self._snapshots if (old := held()) is not None]

    def put(self, state: dict[str, Any]) -> None:
        """Write whole tables, [N, ...], or objects that return them when indexed, and the position."""
        self._keep_old()
        for name, table in self._tables().items():
            table.copy_(state[name][:])
        self.position = state["position"]

    def state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return tensors and plain values that hold the whole state, or the state of a snapshot."""
        if snapshot is None:
            return {"spec": asdict(self.spec), "position": self.position, **self._tables()}
        return {"spec": asdict(self.spec), "position": snapshot["position"], **vars(snapshot["old"].whole(self.rows))}

    def sharded_state_dict(self, snapshot: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the same as `state_dict`, with tables as rows of the only rank; they are no copies."""
        return as_own_rows(self.state_dict(snapshot), 0, self.spec.num_nodes)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned.

        Raises:
            CheckpointError: The state is of another graph or another model, or damaged.
        """
        check_same_spec(state, self.spec)
        for name, table in self._tables().items():
            given = state.get(name)
            # A tensor, or a table that is read when it is asked for.
            shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
            if shape != table.shape or dtype != table.dtype:
                received = type(given).__name__ if shape is None else f"{dtype} {list(shape)}"
                cure = "give a file that was written whole"
                raise CheckpointError(name, f"{table.dtype} {list(table.shape)}", received, cure)
        self.put(state)

    def _tables(self) -> dict[str, Tensor]:
        return {field.name: getattr(self.rows, field.name) for field in fields(self.rows)}


def _write(update: StateUpdate, rows: StateRows, spec: StateSpec) -> None:
    memory, time = update.memory, update.memory_time
    if spec.decays:
        held = rows.memory[update.nodes], rows.memory_time[update.nodes]
        memory, time = added(*held, memory, time, spec.decays)
    rows.memory.index_copy_(0, update.nodes, memory)
    rows.memory_time.index_copy_(0, update.nodes, time)
    if not spec.mailbox_size:
        return
    slot = rows.mail_count[update.mail_nodes] % rows.mails.shape[1]
    rows.mails[update.mail_nodes, slot] = update.mails
    rows.mail_time[update.mail_nodes, slot] = update.mail_time
    rows.mail_event[update.mail_nodes, slot] = update.mail_event
    rows.mail_count[update.mail_nodes] += 1


def merged_memory(nodes: Tensor, memory: Tensor, time: Tensor, spec: StateSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Return what several ranks write, by distinct node: the sum where writes add up, else the last one.

    Args:
        nodes: int64 [n], in the order of the ranks, which hold consecutive events.
        memory: float32 [n, d_mem].
        time: float64 [n].
        spec: Widths of the rows.
    """
    if spec.decays:
        return sum_by_node(nodes, memory, time, spec.decays)
    once = organize(nodes)
    return once.distinct, memory[once.last], time[once.last]


def as_own_rows(state: dict[str, Any], start: int, size: int, nodes: Tensor | None = None) -> dict[str, Any]:
    """Return a state whose tables are the rows of a rank, see `OwnRows`."""
    tables = {field.name: OwnRows(state[field.name], start, size, nodes) for field in fields(StateRows)}
    return {**state, **tables}


def share_of(place: int, places: int, size: int) -> slice:
    """Return the rows that are a rank's share if all ranks write or copy at once."""
    each = -(-size // places)
    return slice(min(place * each, size), min((place + 1) * each, size))


def state_bytes(spec: StateSpec) -> int:
    """Return the bytes of the tables of all rows."""
    return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in table_shapes(spec).values())


def table_shapes(spec: StateSpec) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of the tables of all rows, by name."""
    size, slots = spec.num_nodes, spec.mailbox_size
    return {
        "memory": ((size, spec.memory_dim), torch.float32),
        "memory_time": ((size,), torch.float64),
        "mails": ((size, slots, spec.mail_dim), torch.float32),
        "mail_time": ((size, slots), torch.float64),
        "mail_event": ((size, slots), torch.int64),
        "mail_count": ((size,), torch.int64),
    }


def _empty(spec: StateSpec, count: int, device: torch.device | str) -> dict[str, Tensor]:
    """Return tables of rows as they are before the first event."""
    shapes = table_shapes(replace(spec, num_nodes=count)).items()
    return {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes}


def check_same_spec(state: dict[str, Any], spec: StateSpec) -> None:
    """Refuse a saved state of another graph or another model.

    Raises:
        CheckpointError: The saved state is of another graph or another model.
    """
    # Earlier files do not say whether mails have the features of their events: all had.
    saved = {"event_features": True, "decays": (), **state["spec"]}
    if saved | {"decays": tuple(saved["decays"])} != asdict(spec):
        cure = "use the stream and the model widths that the checkpoint was trained with"
        raise CheckpointError("node state", f"of {asdict(spec)}", state["spec"], cure)


class OldRows:
    """The rows of some tables as they are now, whatever is written to the tables later.

    Call `keep` before each write to the tables. An evaluation writes only to the nodes of its own split, whereas a copy
    of all rows would take as much memory again as node state.

    Args:
        rows: The tables of all rows.
    """

    def __init__(self, rows: StateRows) -> None:
        # Written to later, and perhaps outside the inference mode of who asks: tensors made there could not be.
        with torch.inference_mode(False):
            self._is_kept = torch.zeros(len(rows.memory), dtype=torch.bool, device=rows.memory.device)
        self._kept: list[tuple[Tensor, StateRows]] = []
        self._rows = 0  # of all that is kept

    def keep(self, rows: StateRows, nodes: Tensor | None = None) -> None:
        """Keep the rows of distinct ``nodes`` (int64 [n], by default all) that have not been written to before.

        On an asynchronous device rows are kept at every write, without a look at which are new: `put_back` writes the
        first ones last.
        """
        if nodes is None:
            nodes = (~self._is_kept).nonzero().squeeze(1)
        elif not is_asynchronous(nodes):
            nodes = nodes[~self._is_kept[nodes]]
        if not len(nodes):
            return
        self._is_kept.index_fill_(0, nodes, True)
        self._kept.append(
            (nodes, StateRows(**{name: table.index_select(0, nodes) for name, table in _tables(rows).items()}))
        )
        self._rows += len(nodes)
        if self._rows > max(2 * len(self._is_kept), _MOST_REPEATED):
            self._keep_first()

    def _keep_first(self) -> None:
        """Forget rows of nodes of which earlier rows are kept."""
        nodes = torch.cat([kept for kept, _ in self._kept])
        tables = [torch.cat(parts) for parts in zip(*(vars(rows).values() for _, rows in self._kept), strict=True)]
        first = first_positions(nodes)
        self._kept = [(nodes[first], StateRows(*(table[first] for table in tables)))]
        self._rows = len(first)

    @property
    def nodes(self) -> Tensor:
        """int64 [n], the distinct nodes whose rows are kept."""
        return self._is_kept.nonzero().squeeze(1)

    def put_back(self, rows: StateRows) -> None:
        """Write the rows to the tables."""
        for nodes, kept in reversed(self._kept):
            for name, table in _tables(rows).items():
                table.index_copy_(0, nodes, getattr(kept, name))

    def whole(self, rows: StateRows) -> StateRows:
        """Return all rows as they were, in tables of their own."""
        copy = StateRows(**{name: table.clone() for name, table in _tables(rows).items()})
        self.put_back(copy)
        return copy


def _tables(rows: StateRows) -> dict[str, Tensor]:
    return {field.name: getattr(rows, field.name) for field in fields(rows)}
