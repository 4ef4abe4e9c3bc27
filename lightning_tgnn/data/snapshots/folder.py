"""Snapshots in a folder, written one by one and memory-mapped: for those that do not fit into memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.snapshots.sequence import SnapshotSequence
from lightning_tgnn.data.snapshots.whole_snapshots import SnapshotForm, WholeSnapshots
from lightning_tgnn.files.new_folder import new_folder
from lightning_tgnn.files.npy_file import NpyWriter, map_npy, mapped_tensor, refuse_link
from lightning_tgnn.files.one_at_a_time import one_at_a_time
from lightning_tgnn.types import Snapshot, SparseRows

_MANIFEST = "snapshots.json"
_VERSION = 2
_PARTS: dict[str, type[np.number]] = {
    "starts": np.int64,
    "columns": np.int64,
    "weights": np.float32,
    "starts_back": np.int64,
    "columns_back": np.int64,
    "edges_back": np.int64,
}
_CURE = "remove the folder, and it is written again"


def write_snapshots(folder: Path, sequence: SnapshotSequence, form: SnapshotForm) -> None:
    """Write the snapshots of a sequence into a folder, unless they are there.

    Raises:
        InvalidArgumentError: The folder holds something else, or what is written does not fit there.
        DataError: The folder is damaged.
    """
    with one_at_a_time(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            _check_same(folder, _about(sequence, form))
            return
        with new_folder(folder) as partial:
            _write(partial, WholeSnapshots(sequence, form))
            (partial / _MANIFEST).write_text(json.dumps(_about(sequence, form), indent=1))


class MappedSnapshots(WholeSnapshots):
    """The snapshots that `write_snapshots` has written; their tensors are mapped, and read where they are used.

    Args:
        folder: Where they are.
        sequence: What they are made of.
        form: How.

    Raises:
        InvalidArgumentError: The folder is not there, or holds something else.
        DataError: The folder is damaged.
    """

    def __init__(self, folder: Path, sequence: SnapshotSequence, form: SnapshotForm) -> None:
        super().__init__(sequence, form)
        self.folder = folder
        if not folder.is_dir():
            cure = "call the DataModule's prepare_data on a process of every machine, or share the folder"
            raise InvalidArgumentError("folder", "prepared", str(folder), cure)
        _check_same(folder, _about(sequence, form))
        types = _types(form)
        self._columns = {name: mapped_tensor(_mapped(folder / f"{name}.npy", types[name])) for name in types}
        self._bounds = {name: _mapped(folder / f"{name}.bounds.npy", np.int64) for name in types}
        for name, bounds in self._bounds.items():
            rows = len(self._columns[name])
            fits = bounds.shape == (len(sequence), 2) and (bounds >= 0).all() and (bounds <= rows).all()
            if not fits or (bounds[:, 0] > bounds[:, 1]).any():
                requirement = f"bounds of {len(sequence)} snapshots in {rows:,} rows"
                raise DataError(str(folder / f"{name}.bounds.npy"), requirement, "something else", _CURE)

    def make(self, number: int) -> Snapshot:
        """Return a snapshot that is not kept."""
        before = self._made.get(number - 1)
        columns = {name: self._rows(name, number) for name in self._columns}
        if before is not None and all(_same(bounds, number) for name, bounds in self._bounds.items() if "." in name):
            matrices = before.layers[0]
        else:
            count = self.form.adjacency.num_matrices
            matrices = tuple(
                SparseRows(*(columns[f"{part}.{relation}"] for part in _PARTS)) for relation in range(count)
            )
        vertices = self.nodes if self.form.present == "all" else columns["vertices"]
        self._check(vertices, matrices, number)
        features = columns["features"] if "features" in columns else self.sequence.features_of(number)
        assert features is not None
        if "features" not in columns and self.form.standardization is not None:
            features = self.form.standardization(features)
        return Snapshot(number, vertices, features, (matrices,) * self.form.num_layers)

    def _check(self, vertices: Tensor, matrices: Sequence[SparseRows], number: int) -> None:
        """Refuse numbers that would lead compiled loops out of the snapshot, whatever has been written.

        Raises:
            DataError: A number of a vertex or an edge is out of range.
        """
        count = len(vertices)
        fits = not count or bool((vertices >= 0).all() & (vertices < len(self.nodes)).all())
        for matrix in matrices:
            edges = len(matrix.columns)
            sizes = {len(part) for part in (matrix.weights, matrix.columns_back, matrix.edges_back)}
            fits = fits and sizes <= {edges} and _within(matrix.edges_back, edges)
            for starts, columns in ((matrix.starts, matrix.columns), (matrix.starts_back, matrix.columns_back)):
                fits = fits and len(starts) == count + 1 and int(starts[0]) == 0 and int(starts[-1]) == edges
                fits = fits and bool((starts.diff() >= 0).all()) and _within(columns, count)
        if not fits:
            requirement = f"edges between the {count:,} vertices of snapshot {number}"
            raise DataError(str(self.folder), requirement, "numbers out of range", _CURE)

    def links_of(self, number: int) -> Tensor:
        """Return what `WholeSnapshots.links_of` does."""
        return self._rows("links", number)

    def _rows(self, name: str, number: int) -> Tensor:
        begin, end = self._bounds[name][number].tolist()
        return self._columns[name][begin:end]


def _mapped(path: Path, dtype: type[np.number]) -> np.ndarray:
    array = map_npy(refuse_link(path), cure=_CURE)
    if array.dtype != dtype:
        raise DataError(str(path), f"of {np.dtype(dtype)}", str(array.dtype), _CURE)
    return array


def _within(places: Tensor, count: int) -> bool:
    """Whether all places are in ``0 .. count - 1``."""
    return not len(places) or (int(places.min()) >= 0 and int(places.max()) < count)


def _same(bounds: np.ndarray, number: int) -> bool:
    return bool((bounds[number] == bounds[number - 1]).all())


def _write(folder: Path, snapshots: WholeSnapshots) -> None:
    """Write column by column what the snapshots hold; of matrices that do not change one copy."""
    names = _types(snapshots.form)
    bounds: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    written = dict.fromkeys(names, 0)
    before: Snapshot | None = None
    with ExitStack() as stack:
        writers = {name: stack.enter_context(NpyWriter(folder / f"{name}.npy", names[name])) for name in names}
        for number in range(len(snapshots)):
            snapshot = snapshots.made_after(before, number)
            for name, column in _columns_of(snapshot, snapshots.links_of(number), names).items():
                if before is not None and "." in name and snapshot.layers[0] is before.layers[0]:
                    bounds[name].append(bounds[name][-1])
                    continue
                writers[name].append(column.numpy())
                bounds[name].append((written[name], written[name] + len(column)))
                written[name] += len(column)
            before = snapshot
    for name in names:
        np.save(folder / f"{name}.bounds.npy", np.array(bounds[name], np.int64))


def _columns_of(snapshot: Snapshot, links: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
    columns = {"vertices": snapshot.vertices, "links": links, "features": snapshot.features}
    for relation, matrix in enumerate(snapshot.layers[0]):
        columns |= {f"{part}.{relation}": getattr(matrix, part) for part in _PARTS}
    return {name: columns[name] for name in names}


def _types(form: SnapshotForm) -> dict[str, type[np.number]]:
    """Return the columns that are kept, with their types: features only where they differ from the sequence's."""
    types: dict[str, type[np.number]] = {"vertices": np.int64, "links": np.int64}
    for relation in range(form.adjacency.num_matrices):
        types |= {f"{part}.{relation}": dtype for part, dtype in _PARTS.items()}
    if form.degrees is not None or form.present != "all":
        types["features"] = np.float32
    return types


def _about(sequence: SnapshotSequence, form: SnapshotForm) -> dict[str, Any]:
    settings = asdict(form)
    del settings["num_layers"]  # all layers read the same
    done = settings.pop("standardization")
    if done is not None:
        settings["standardization"] = {name: list(column) for name, column in done.items()}
    manifest = {"version": _VERSION, "fingerprint": sequence.fingerprint, "timed": sequence.times is not None}
    return {**manifest, **settings.pop("adjacency"), **settings}


def _check_same(folder: Path, about: dict[str, Any]) -> None:
    path = folder / _MANIFEST
    try:
        found = json.loads(path.read_text()) if path.is_file() else None
    except (ValueError, RecursionError):
        found = None
    if found != about:
        other = (
            [f"{name}={found.get(name)!r}" for name in about if found.get(name) != about[name]]
            if isinstance(found, dict)
            else "something else"
        )
        cure = "choose another folder, or remove this one"
        raise InvalidArgumentError("folder", "new, empty, or of the same snapshots", f"{folder} with {other}", cure)
