"""The event stream: sorted columns in memory or memory-mapped from a folder."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_path
from lightning_tgnn.data.arrays import as_array
from lightning_tgnn.data.graphs.checks import check_ends
from lightning_tgnn.data.streams.columns import (
    check_calendar,
    check_forms,
    count_nodes,
    feature_names,
    first_destination,
    float_column,
    label_column,
    node_column,
    node_id_column,
    notice_merged_integers,
    notice_merged_times,
    single_column,
)
from lightning_tgnn.data.streams.node_ids import number_given
from lightning_tgnn.data.streams.store_manifest import (
    COLUMNS,
    MANIFEST,
    Origin,
    digest_of_file,
    fingerprint_of,
    read_manifest,
    write_manifest,
)
from lightning_tgnn.files.new_folder import check_new, new_folder
from lightning_tgnn.files.npy_file import map_npy, mapped_tensor, pieces, refuse_link


@dataclass(frozen=True, eq=False)
class EventStore:
    """A stream of timed edges, sorted by time, equal times in input order.

    Build one with `from_arrays` or `open`.

    Attributes:
        src: int64 [E], source nodes.
        dst: int64 [E], destination nodes.
        time: float64 [E], non-decreasing.
        num_nodes: Nodes are ``0 .. num_nodes - 1``.
        edge_features: float32 [E, d_edge] or None.
        node_features: float32 [N, d_node] or None.
        labels: [E] or [E, L], numeric, or None.
        node_ids: [N], the user's own id of every node (integers or strings), or None if ids are the node numbers.
        fingerprint: Digest of ``src``, ``dst``, ``time`` and the number of nodes.
        folder: Where the store was opened, or None.
        edge_feature_names: [d_edge], the names of the edge features, each once; None if unknown.
        origin: What was assumed of the table that it was read from; None of a store that was not read from one.
    """

    src: Tensor
    dst: Tensor
    time: Tensor
    num_nodes: int
    edge_features: Tensor | None
    node_features: Tensor | None
    labels: Tensor | None
    node_ids: np.ndarray | None
    fingerprint: str
    folder: Path | None = None
    edge_feature_names: tuple[str, ...] | None = None
    origin: Origin | None = None

    @classmethod
    def from_arrays(
        cls,
        src: ArrayLike,
        dst: ArrayLike,
        time: ArrayLike,
        edge_features: ArrayLike | None = None,
        node_features: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        num_nodes: int | None = None,
        node_ids: Sequence[Any] | np.ndarray | None = None,
        bipartite: bool = False,
        edge_feature_names: Sequence[str] | None = None,
        origin: Origin | None = None,
    ) -> EventStore:
        """Check, number the nodes, sort by time (stable, with a warning if it was not) and hold the columns in memory.

        ``src`` and ``dst`` are ids, any integers or strings: nodes are numbered in ascending order of their ids, as
        `read_events` does, and ``node_ids`` of the store leads back. If ``num_nodes``, ``node_features`` or
        ``node_ids`` is given, ``src`` and ``dst`` are node numbers ``0 .. N-1`` already, and are not renumbered.

        Args:
            src: Ids of the sources [E], or their numbers.
            dst: Ids of the destinations [E], or their numbers.
            time: Numbers [E], finite.
            edge_features: Numbers [E, d_edge], finite.
            node_features: Numbers [N, d_node], finite, the row of every node number.
            labels: Finite numbers [E] or [E, L]; whole ones are classes from 0, negative ones are none.
            num_nodes: N, where ``src`` and ``dst`` are node numbers.
            node_ids: [N], the user's own id of every node number.
            bipartite: Number the ids of sources and destinations apart, sources first.
            edge_feature_names: [d_edge], the names of the edge features.
            origin: What was assumed of the table that they were read from.

        Raises:
            InvalidArgumentError: ``bipartite`` is set for node numbers.
            DataError: A column is empty, of the wrong length or type, negative, NaN or infinite.

        >>> store = EventStore.from_arrays(["ann", "bob"], ["bob", "cid"], [0.0, 1.0])
        >>> store.src.tolist(), store.dst.tolist(), store.node_ids.tolist()
        ([0, 1], [1, 2], ['ann', 'bob', 'cid'])
        """
        kind = str(getattr(time, "dtype", "")).removeprefix("torch.")
        notice_merged_integers(as_array("time", time), stacklevel=3)
        time = float_column("time", time, np.float64, ndim=1)
        if not isinstance(src, Sized) or isinstance(src, str) or getattr(src, "ndim", 1) == 0:
            cure = "give a list or an array, an iterator as list(iterator)"
            raise DataError("src", "a column of ids", type(src).__name__, cure)
        count = len(src)
        if count == 0:
            raise DataError("src", "a column of at least one event", "0 events", "check what was read")
        columns = {"dst": as_array("dst", dst), "time": time}
        if edge_features is not None:
            columns["edge_features"] = float_column("edge_features", edge_features, np.float32, ndim=2)
        if labels is not None:
            columns["labels"] = label_column(labels)
        for name, column in columns.items():
            if len(np.atleast_1d(column)) != count:
                received = len(np.atleast_1d(column))
                raise DataError(name, f"of the length of src, {count}", received, "give a row per event")
        rows = None if node_features is None else float_column("node_features", node_features, np.float32, ndim=2)
        names = feature_names(edge_feature_names, columns.get("edge_features"))
        if num_nodes is None and rows is None and node_ids is None:
            src, columns["dst"], node_ids = number_given(src, dst, apart=bipartite)
            num_nodes = int(max(src.max(), columns["dst"].max())) + 1
        else:
            if bipartite:
                cure = "number the destinations after the sources yourself, or leave node numbers to be made"
                raise InvalidArgumentError("bipartite", "left out for node numbers", True, cure)
            src, columns["dst"], node_ids = node_column("src", src), node_column("dst", dst), node_id_column(node_ids)
            num_nodes = count_nodes(src, columns["dst"], num_nodes=num_nodes, node_features=rows, node_ids=node_ids)
            if node_ids is not None:
                first_destination(node_ids, src, columns["dst"])

        if np.any(time[1:] < time[:-1]):
            warnings.warn("events were not sorted by time; sorted them, equal times in input order", stacklevel=2)
            order = np.argsort(time, kind="stable")
            src = src[order]
            columns = {name: column[order] for name, column in columns.items()}
        if origin is None or not origin.dates:
            check_calendar(columns["time"])
        notice_merged_times(columns["time"], given=kind, stacklevel=2)
        return cls(
            src=_tensor(src),
            dst=_tensor(columns["dst"]),
            time=_tensor(columns["time"]),
            num_nodes=num_nodes,
            edge_features=_optional_tensor(columns.get("edge_features")),
            node_features=_optional_tensor(rows),
            labels=_optional_tensor(columns.get("labels")),
            node_ids=node_ids,
            fingerprint=fingerprint_of(src, columns["dst"], columns["time"], num_nodes),
            edge_feature_names=names,
            origin=origin,
        )

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = False) -> EventStore:
        """Open a saved store. Columns are mapped, not read, so only types and shapes are checked.

        Args:
            folder: What `save` has written.
            verify: Read all of it and compare it with what was saved, see `verify`.

        Raises:
            DataError: The folder holds no store, or one that is damaged or of another version, or a file is a symbolic
                link.
        """
        folder = check_path("folder", folder)
        manifest = read_manifest(folder)
        arrays: dict[str, np.ndarray | None] = dict.fromkeys(COLUMNS)
        for name, expected in manifest["columns"].items():
            arrays[name] = _map_column(folder / f"{name}.npy", expected)
        src, dst, time = arrays["src"], arrays["dst"], arrays["time"]
        if src is None or dst is None or time is None:
            raise DataError(str(folder), "a store with src, dst and time", sorted(manifest["columns"]), "save it again")
        check_forms(folder, arrays, manifest["num_nodes"])
        opened = cls(
            src=_tensor(src),
            dst=_tensor(dst),
            time=_tensor(time),
            num_nodes=manifest["num_nodes"],
            edge_features=_optional_tensor(arrays["edge_features"]),
            node_features=_optional_tensor(arrays["node_features"]),
            labels=None if (labels := arrays["labels"]) is None else _tensor(single_column(labels)),
            node_ids=arrays["node_ids"],
            fingerprint=manifest["fingerprint"],
            folder=folder,
            edge_feature_names=feature_names(manifest.get("edge_feature_names"), arrays["edge_features"]),
            origin=Origin.from_manifest(manifest.get("origin")),
        )
        return opened.verify() if verify else opened

    def verify(self) -> EventStore:
        """Return the store if all of it is as it was saved; reads every file of its folder.

        Raises:
            DataError: A file is not the saved one; what `check_events` refuses.
        """
        if self.folder is not None:
            digests = read_manifest(self.folder).get("digests")  # stores of earlier versions have none
            for name, expected in digests.items() if isinstance(digests, dict) else ():
                path = self.folder / f"{name}.npy"
                if name in COLUMNS and digest_of_file(path) != expected:
                    cure = "it is damaged: save the store again, or copy it once more"
                    raise DataError(str(path), f"the saved file {expected}", "another content", cure)
        return self.check_events()

    def check_events(self) -> EventStore:
        """Return the store if its events are those that were saved, between nodes that it has; reads no edge features.

        Raises:
            DataError: The events are not the saved ones, a node is out of range, times are out of order, or a node
                feature or a label is not finite.
        """
        for name in ("src", "dst"):
            check_ends(name, getattr(self, name), self.num_nodes)
        where = "the store" if self.folder is None else str(self.folder)
        found = fingerprint_of(self.src.numpy(), self.dst.numpy(), self.time.numpy(), self.num_nodes)
        if found != self.fingerprint:
            cure = "a file of it is damaged: save the store again"
            raise DataError(where, f"a store of the events {self.fingerprint}", found, cure)
        are_finite = all(bool(torch.isfinite(self.time[some]).all()) for some in pieces(len(self)))
        if not are_finite or not self._is_in_order():
            cure = "sort the events by time, and save the store again"
            raise DataError(f"time of {where}", "finite and ascending", "other times", cure)
        cures = {"node_features": "repair them and save the store again", "labels": "-1 stands for no label"}
        for name, cure in cures.items():
            column = getattr(self, name)
            rows = () if column is None else pieces(len(column), column[:1].numel())
            if not all(bool(torch.isfinite(column[some]).all()) for some in rows):
                raise DataError(f"{name} of {where}", "finite", "NaN or infinity", cure)
        return self

    def _is_in_order(self) -> bool:
        borders = (slice(max(some.start - 1, 0), some.stop) for some in pieces(len(self)))
        return all(bool((self.time[some].diff() >= 0).all()) for some in borders)

    def save(self, folder: str | Path) -> Path:
        """Write the store to a new ``folder``, which appears only when it is complete.

        Raises:
            InvalidArgumentError: The folder exists and is not empty, or what is written does not fit there.
        """
        folder = check_path("folder", folder)
        check_new(folder)
        with new_folder(folder, keep_other=False) as partial:
            self.write_to(partial)
        return folder

    def write_to(self, folder: Path, *, there: Collection[str] = ()) -> None:
        """Write the store into an existing folder; the caller ensures that the folder is complete.

        Args:
            folder: Empty, or with the columns named in ``there``.
            there: Columns that need not be written.
        """
        for name in COLUMNS:
            column = getattr(self, name)
            if column is not None and name not in there:
                array = column.numpy() if isinstance(column, Tensor) else column
                np.save(folder / f"{name}.npy", array, allow_pickle=False)
        write_manifest(folder, self.num_nodes, self.fingerprint, self.edge_feature_names, self.origin)

    @property
    def num_events(self) -> int:
        """Events of the stream."""
        return self.src.numel()

    @property
    def first_destination(self) -> int | None:
        """The lowest number of a destination, where a source may have the same id as a destination; None elsewhere.

        Raises:
            DataError: An id stands for two nodes that are not a source and a destination.
        """
        if self.node_ids is None:
            return None
        return first_destination(self.node_ids, self.src.numpy(), self.dst.numpy())

    @property
    def edge_feature_dim(self) -> int:
        """Width of the edge features, 0 without."""
        return 0 if self.edge_features is None else self.edge_features.shape[1]

    @property
    def node_feature_dim(self) -> int:
        """Width of the node features, 0 without."""
        return 0 if self.node_features is None else self.node_features.shape[1]

    def __len__(self) -> int:
        return self.num_events

    def __repr__(self) -> str:
        return (
            f"EventStore(num_events={self.num_events}, num_nodes={self.num_nodes}, "
            f"edge_feature_dim={self.edge_feature_dim}, node_feature_dim={self.node_feature_dim})"
        )


def is_event_store(path: Path) -> bool:
    """Whether ``path`` is a folder that `EventStore.open` would read."""
    return path.is_dir() and (path / MANIFEST).is_file()


def _tensor(array: np.ndarray) -> Tensor:
    # A column of pandas may be read-only as a mapped file is, and nobody writes to a store.
    return mapped_tensor(np.ascontiguousarray(array))


def _optional_tensor(array: np.ndarray | None) -> Tensor | None:
    return None if array is None else _tensor(array)


def _map_column(path: Path, expected: object) -> np.ndarray:
    # Copy-on-write: torch wants writable memory, and the file must never change.
    array = map_npy(refuse_link(path), "c", cure="save the store again")
    received = {"dtype": array.dtype.str, "shape": list(array.shape)}
    if received != expected:
        raise DataError(str(path), f"what the manifest says, {expected}", received, "save the store again")
    return array
