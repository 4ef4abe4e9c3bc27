"""From a table in a file to the folder of an event store, piece by piece: memory does not grow with its events."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from lightning_tgnn.algorithms.streams.large_columns import ordered_pieces
from lightning_tgnn.checks import InvalidArgumentError, check_path
from lightning_tgnn.data.readers.read import check_arguments, open_table
from lightning_tgnn.data.readers.table import Table, are_whole
from lightning_tgnn.data.streams.columns import check_calendar, notice_merged_times
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.kept_adjacency import write_adjacency
from lightning_tgnn.data.streams.node_ids import LONGEST_ID, NodeNumbering
from lightning_tgnn.data.streams.store_manifest import write_manifest
from lightning_tgnn.files.new_folder import check_new, new_folder
from lightning_tgnn.files.npy_file import NpyWriter, map_npy, pieces
from lightning_tgnn.files.whole import new_file

_ORDERED_AT_ONCE = 1 << 22
Report = Callable[[int], None]
"""Takes the events read so far."""


@dataclass
class _Found:
    """What is known of a file once it has been read.

    Attributes:
        numbering: From its ids to numbers.
        events: Rows.
        last_time: Of the latest row.
        sorted: No time is below the one before.
        whole_labels: int64 holds all labels.
    """

    numbering: NodeNumbering
    events: int = 0
    last_time: float = -np.inf
    sorted: bool = True
    whole_labels: bool = True

    def add(self, chunk: Mapping[str, np.ndarray]) -> None:
        """Look at the next rows."""
        time = chunk["time"]
        self.sorted &= bool(time[0] >= self.last_time) and not np.any(time[1:] < time[:-1])
        self.last_time = time[-1]
        self.events += len(time)
        self.whole_labels &= "labels" not in chunk or are_whole(chunk["labels"])


def convert_events(
    path: str | Path,
    folder: str | Path,
    *,
    format: str = "auto",
    columns: Mapping[str, Any] | None = None,
    bipartite: bool | None = None,
    longest_id: int = LONGEST_ID,
    report: Report = lambda events: None,
) -> EventStore:
    """Write the events of a text or Parquet file to a new folder, with their adjacency, and open it.

    The store is what `read_events` gives, but only a few million numbers of the file are in memory at a time, beside
    the distinct ids. Rows that are not sorted by time are sorted on disk.

    Args:
        path: The file.
        folder: New or empty; it appears only when it is complete.
        format: As in `read_events`, and so are ``columns`` and ``bipartite``.
        columns: As there.
        bipartite: As there.
        longest_id: As there.
        report: Told the events read so far, now and then.

    Raises:
        InvalidArgumentError: An argument cannot work, or the folder is taken or cannot be written.
        DataError: The file holds something that must not be trained on.
    """
    columns = check_arguments(format, columns, bipartite, longest_id)
    path, folder = check_path("path", path), check_path("folder", folder)
    check_new(folder)
    table = open_table(path, format=format, columns=columns, bipartite=bipartite, longest_id=longest_id)
    table = table.with_levels()
    with new_folder(folder, keep_other=False) as partial:
        found = _write_columns(table, partial, report)
        node_ids = found.numbering.node_ids
        table.check_ids(node_ids)
        np.save(partial / "node_ids.npy", node_ids)
        _settle(partial, found)
        origin = table.origin(apart=found.numbering.apart, text_ids=node_ids.dtype.kind == "U")
        write_manifest(partial, len(node_ids), edge_feature_names=table.feature_names, origin=origin)
        table.notice_unused()
        write_adjacency(partial)
    return EventStore.open(folder)


def _write_columns(table: Table, folder: Path, report: Report) -> _Found:
    found = _Found(table.numbering())
    with ColumnFiles(folder) as files:
        for chunk in table.chunks():
            found.add(chunk)
            src, dst = found.numbering.add(chunk["src"], chunk["dst"])
            files.append({**chunk, "src": src, "dst": dst})
            report(found.events)
    found.numbering.close()
    return found


def _settle(folder: Path, found: _Found) -> None:
    """Give the columns the numbers, the types and the order that only the end of the file has shown."""
    numbering = found.numbering
    rewrite(folder / "src.npy", np.int64, numbering.src_numbers)
    rewrite(folder / "dst.npy", np.int64, numbering.dst_numbers)
    labels = folder / "labels.npy"
    if labels.is_file() and found.whole_labels:
        rewrite(labels, np.int64, rows_of)
    if not found.sorted:
        warnings.warn("events were not sorted by time; sorted them, equal times in input order", stacklevel=3)
        _sort(folder)
    time = map_npy(folder / "time.npy")
    check_calendar(time)
    notice_merged_times(time, stacklevel=3)


def _sort(folder: Path) -> None:
    order = folder / "order.npy"
    with ColumnFiles(folder) as files:
        for positions in ordered_pieces(map_npy(folder / "time.npy"), _ORDERED_AT_ONCE):
            files.append({order.stem: positions})
    in_order = map_npy(order)
    for name in ("src", "dst", "time", "labels", "edge_features"):
        path = folder / f"{name}.npy"
        if path.is_file():
            rewrite(path, map_npy(path).dtype, lambda column: _gathered(column, in_order))
    order.unlink()


def _gathered(column: np.ndarray, order: np.ndarray) -> Iterator[np.ndarray]:
    for positions in rows_of(order):
        yield column[positions]


class ColumnFiles(ExitStack):
    """Writes columns side by side, each with the type of its first rows; leaving the context completes the files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._files: dict[str, NpyWriter] = {}

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Write the next rows of every column."""
        for name, values in rows.items():
            if name not in self._files:
                path = self._folder / f"{name}.npy"
                self._files[name] = self.enter_context(NpyWriter(path, values.dtype))
            self._files[name].append(values)


def rewrite(path: Path, dtype: DTypeLike, change: Callable[[np.ndarray], Iterator[np.ndarray]]) -> None:
    """Put what ``change`` makes of a column's array, mapped, in its place."""
    changed = path.with_suffix(".changed")
    with NpyWriter(changed, dtype) as file:
        for rows in change(map_npy(path)):
            file.append(rows)
    changed.replace(path)


def rows_of(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of an array, some millions of values at a time."""
    for piece in pieces(len(array), array[:1].size):
        yield array[piece]


def write_csv(store: EventStore, path: Path) -> Path:
    """Write a stream, in the users' ids, to a new file, which appears only when it is complete.

    Its header is ``src,dst,time``, then ``label`` and ``feature_0, …`` where the store has them.

    Raises:
        InvalidArgumentError: The file exists or cannot be written, or the store has what a CSV of events cannot hold.
    """
    if path.exists():
        raise InvalidArgumentError("output", "a new file", str(path), "choose another or remove it")
    if store.node_features is not None or (store.labels is not None and store.labels.ndim > 1):
        received = "node features or several labels per event"
        raise InvalidArgumentError("output", "a folder for such a stream", received, "drop .csv")
    with new_file(path) as partial:
        _write(store, partial)
    return path


def _write(store: EventStore, path: Path) -> None:
    import pandas as pd

    ids = np.arange(store.num_nodes) if store.node_ids is None else store.node_ids
    with path.open("w", encoding="utf-8", newline="") as file:
        for piece in pieces(len(store), 3 + store.edge_feature_dim):
            columns = {"src": ids[store.src[piece]], "dst": ids[store.dst[piece]], "time": store.time[piece]}
            if store.labels is not None:
                columns["label"] = store.labels[piece]
            if store.edge_features is not None:
                features = store.edge_features[piece].numpy()
                columns |= {f"feature_{i}": features[:, i] for i in range(features.shape[1])}
            pd.DataFrame(columns).to_csv(file, header=not piece.start, index=False, lineterminator="\n")
