"""Checkpoints that are folders: what all ranks have in one file, and a part with the rows of each of them.

::

    last.ckpt/
      meta.pt                 what all ranks have, the names and checksums of the parts, and where tables lie in them
      3f2a…/__0_0.distcp      rows of rank 0, as torch.distributed.checkpoint writes them
      3f2a…/__1_0.distcp      rows of rank 1

All are tensors and plain values: torch's own ``.metadata``, a pickle, is not written. A folder is whole at all times:
parts of the next checkpoint lie beside the old parts until ``meta.pt`` is replaced. The folder of the parts
has a name of its own in each writing of a checkpoint, so ``meta.pt`` of one never finds the parts of another.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor

from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.files.whole import reading_tensors

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

META = "meta.pt"
"""The file of a folder that makes it a checkpoint, as Lightning calls it too."""

WRITING = "lightning_tgnn.writing"
"""The entry of an opened checkpoint that says which writing of it was read: no two have the same."""

_KEY = "lightning_tgnn.sharded"
_VERSION = 2
_PART = re.compile(r"([0-9a-f]{32})/__\d+_\d+\.distcp")
_TRIES = 3
_CHUNK = 1 << 20
_Held = TypeVar("_Held")
_CURE = "give a folder that was written whole, with the files of one checkpoint"


def local_path(path: object) -> Path | None:
    """Return the place of a path or an address on a disk of this machine; None for other storage, or an open file."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    text = str(path)
    if text.startswith(("file:", "local:")) and "::" not in text:
        return Path(LocalFileSystem._strip_protocol(text))
    return None if "://" in text or "::" in text else Path(path).expanduser()


def is_sharded(path: object) -> bool:
    """Whether a path leads to a checkpoint in a folder."""
    place = local_path(path)
    return place is not None and _meta_of(place).is_file()


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path or an address leads to a file, or to a folder that is a checkpoint."""
    place = local_path(path)
    if place is None:
        storage, name = url_to_fs(str(path))
        return bool(storage.isfile(name))
    return place.is_file() or is_sharded(place)


def is_own(path: Path) -> bool:
    """Whether a folder is a checkpoint that this package has written, whole or not; nothing in it is unpickled."""
    try:
        with zipfile.ZipFile(_meta_of(path)) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            return any(_KEY.encode() in archive.read(name) for name in pickles)
    except Exception:  # what the reader of archives raises on garbage is anything
        return False


def _meta_of(path: str | os.PathLike[str]) -> Path:
    return Path(path).expanduser() / META


def check_folder(path: Path) -> None:
    """Refuse a folder that is no checkpoint.

    Raises:
        CheckpointError: ``path`` is a folder without the parts of a checkpoint.
    """
    if path.is_dir() and not is_sharded(path):
        cure = "give the path of a checkpoint"
        raise CheckpointError(str(path), f"a file, or a folder with {META}", "a folder without it", cure)


def checksum(path: Path) -> dict[str, int]:
    """Return the size and the CRC-32 of a file, as `described` takes them."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return {"bytes": size, "crc32": crc}


def described(
    held: dict[str, Any],
    writing: str,
    parts: Mapping[str, Mapping[str, int]],
    tables: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, Sequence[str | int]],
) -> dict[str, Any]:
    """Return what ``meta.pt`` holds.

    Args:
        held: The checkpoint without what lies in parts.
        writing: The folder of the parts.
        parts: Their names, relative to the folder, with what `checksum` says of them.
        tables: See `SavedTable`, by name.
        places: Where each table stands in ``held``: keys and numbers from the outside in.
    """
    layout = {"version": _VERSION, "writing": writing, "parts": dict(parts), "tables": dict(tables)}
    return {**held, _KEY: {**layout, "places": [[name, list(keys)] for name, keys in places.items()]}}


def with_tables(held: dict[str, Any], folder: Path, checked: slice) -> dict[str, Any]:
    """Return what ``meta.pt`` holds, with tables that are read when they are asked for, and `WRITING`.

    Args:
        held: Its content.
        folder: Where it lies.
        checked: Which parts to read, in the order of their names, to refuse one that is not what was saved.

    Raises:
        CheckpointError: The folder is of another kind, or a part is missing, cut short, damaged or of another run.
        ValueError: ``meta.pt`` contradicts itself.
    """
    layout = held.pop(_KEY, None)
    if not isinstance(layout, dict) or layout.get("version") != _VERSION:
        requirement = f"a checkpoint folder of lightning_tgnn, version {_VERSION}"
        raise CheckpointError(str(folder), requirement, "another folder", "give the path of a checkpoint")
    held[WRITING] = layout["writing"]
    for name in layout["parts"]:
        if not isinstance(name, str) or not _PART.fullmatch(name) or Path(name).parent.name != held[WRITING]:
            raise ValueError(f"a part called {name!r}")
    for name in sorted(layout["parts"])[checked]:
        _check_part(folder / name, layout["parts"][name])
    tables: dict[str, SavedTable] = {}
    for name, table in layout["tables"].items():
        if any(piece["part"] not in layout["parts"] for piece in table["pieces"]):
            raise ValueError(f"{name} lies in a part that is not listed")
        tables[name] = SavedTable(folder, name, table, None)
    for name, table in layout["tables"].items():
        if table["nodes"] is not None:
            tables[name] = SavedTable(folder, name, table, tables[table["nodes"]])
    for name, keys in layout["places"]:
        put(held, keys, tables[name])
    return held


def put(held: dict[str, Any], keys: Sequence[str | int], value: object) -> None:
    """Put a value where keys and numbers lead, from the outside in."""
    within = cast("dict[str | int, Any]", held)  # or a list in it
    for key in keys[:-1]:
        within = within[key]
    within[keys[-1]] = value


def _check_part(path: Path, expected: Mapping[str, int]) -> None:
    try:
        found = path.stat().st_size
    except GONE:
        raise CheckpointError(str(path), "there, as a part of its checkpoint", "no such file", _CURE) from None
    if found != expected["bytes"]:
        raise CheckpointError(str(path), f"of {expected['bytes']} bytes, as it was saved", f"{found} bytes", _CURE)
    if checksum(path) != dict(expected):
        raise CheckpointError(str(path), "as it was saved", "another checksum: damaged, or of another run", _CURE)


def read_consistently(folder: Path, read: Callable[[], _Held]) -> _Held:
    """Return what is read of a checkpoint, which is read anew where another has taken its place in the meantime.

    Args:
        folder: Or a file.
        read: Raises an error where a part has gone.

    Raises:
        CheckpointError: The checkpoint was replaced during each of several tries to read it.
        Exception: That of ``read``, where it stays as it is.
    """
    for _ in range(_TRIES):
        before = _stamp(folder)
        try:
            return read()
        except (CheckpointError, *GONE):
            if _stamp(folder) == before:
                raise
    requirement = "left as it is while it is read"
    received = f"another checkpoint in its place {_TRIES} times while it was read"
    cure = "wait until nobody saves under that name, or give another checkpoint"
    raise CheckpointError(str(folder), requirement, received, cure)


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Return what changes when a folder, or the file in its place, is replaced."""
    try:
        meta = (_meta_of(folder) if folder.is_dir() else folder).stat()
    except GONE:
        return None
    return meta.st_ino, meta.st_mtime_ns


def read_tables(value: _Held) -> _Held:
    """Return a value in which tables that lie in a folder are tensors, on the CPU."""
    if isinstance(value, SavedTable):
        return cast(_Held, value[:])
    if isinstance(value, dict):
        for key, entry in value.items():
            value[key] = read_tables(entry)
    elif isinstance(value, list):
        value[:] = map(read_tables, value)
    return value


GONE = (FileNotFoundError, NotADirectoryError)
"""What is raised of a file in a folder that has gone, or in whose place there is a file now."""


class SavedTable:
    """A table that ranks have written, each its own rows.

    Rows are asked for as of a tensor: ``table[nodes]``, with int64 [n], or ``table[:]``. One piece is in memory at a
    time, beside the answer.

    Args:
        folder: Of the checkpoint.
        name: Of the table.
        layout: ``"shape"`` and ``"dtype"``; ``"pieces"``, each with ``"start"`` and ``"rows"``, and where it is:
            ``"part"``, ``"offset"`` and ``"bytes"``; ``"nodes"``, the name of the table of what follows.
        nodes: int64 [N], which row of the table each row of the pieces is; None where it is the same.
    """

    def __init__(self, folder: Path, name: str, layout: Mapping[str, Any], nodes: SavedTable | None) -> None:
        self.shape, self.dtype = torch.Size(layout["shape"]), layout["dtype"]
        self._folder, self._name, self._nodes = folder, name, nodes
        self._pieces = [_Piece(**piece) for piece in layout["pieces"]]
        if not isinstance(self.dtype, torch.dtype) or not self.shape or min(self.shape) < 0:
            raise ValueError(f"{name} of {self.dtype}, {list(self.shape)}")
        ends = [0, *(piece.start + piece.rows for piece in self._pieces)]
        starts = [*(piece.start for piece in self._pieces), len(self) if self.shape.numel() else ends[-1]]
        if starts != ends or any(piece.rows < 1 for piece in self._pieces):
            raise ValueError(f"pieces of {name} that do not add up to its {len(self)} rows")
        if nodes is not None and (nodes.shape != self.shape[:1] or nodes.dtype != torch.int64):
            raise ValueError(f"{name} with the numbers of other rows")

    def __len__(self) -> int:
        """Return its number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return some rows, or all of them, on the CPU.

        Raises:
            CheckpointError: A part has been changed since it was checked, or has gone with its checkpoint.
        """
        with reading_tensors(self._folder, "a checkpoint whose parts hold its tables"):
            return self._rows(rows) if isinstance(rows, Tensor) else self._whole()[rows]

    def _whole(self) -> Tensor:
        whole = torch.empty(self.shape, dtype=self.dtype)
        if not whole.numel():
            return whole
        if self._nodes is None:
            for piece in self._pieces:
                self._read(piece, whole[piece.start : piece.start + piece.rows])
            return whole
        seen = torch.zeros(len(self), dtype=torch.bool)
        for piece in self._pieces:
            nodes = self._nodes_of(piece)
            seen[nodes] = True
            whole[nodes] = self._read(piece)
        if not bool(seen.all()):
            raise ValueError(f"{self._name} without row {int((~seen).nonzero()[0])}")
        return whole

    def _rows(self, rows: Tensor) -> Tensor:
        place = torch.full((len(self),), -1)
        place[rows] = torch.arange(len(rows))
        answer = torch.empty(len(rows), *self.shape[1:], dtype=self.dtype)
        seen = torch.zeros(len(rows), dtype=torch.bool)
        for piece in self._pieces:
            places = place[self._nodes_of(piece)]
            asked = (places >= 0).nonzero().squeeze(1)
            if len(asked):
                answer[places[asked]] = self._read(piece)[asked]
                seen[places[asked]] = True
        missing = rows[~seen[place[rows]]]
        if len(missing) and self.shape.numel():
            raise ValueError(f"{self._name} without row {int(missing[0])}")
        return answer[place[rows]]  # which may be asked for twice

    def _nodes_of(self, piece: _Piece) -> Tensor:
        if self._nodes is None:
            return torch.arange(piece.start, piece.start + piece.rows)
        (same,) = (one for one in self._nodes._pieces if (one.start, one.rows) == (piece.start, piece.rows))
        return self._nodes._read(same)

    def _read(self, piece: _Piece, into: Tensor | None = None) -> Tensor:
        """Return the rows of a piece, in a new tensor if none is given."""
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
        from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

        shape = torch.Size([piece.rows, *self.shape[1:]])
        into = torch.empty(shape, dtype=self.dtype) if into is None else into
        index, zeros = MetadataIndex(self._name, [piece.start]), torch.Size([0] * len(shape))
        reader = FileSystemReader(self._folder)
        reader.set_up_storage_reader(Metadata({}, storage_data={index: piece}), is_coordinator=True)
        item = ReadItem(LoadItemType.TENSOR, index, zeros, index, zeros, shape)
        try:
            reader.read_data(LoadPlan([item]), cast("LoadPlanner", _Into(into))).wait()
        except GONE:
            requirement = "there until its checkpoint has been read"
            received = "no such file: another checkpoint was written in its place, or it was removed"
            cure = "start again, from a checkpoint under whose name nobody saves"
            raise CheckpointError(str(self._folder / piece.part), requirement, received, cure) from None
        return into


@dataclass(frozen=True)
class _Piece:
    """Rows of a table that a rank has written, and where; the latter as torch's reader asks for it."""

    start: int
    rows: int
    part: str
    offset: int
    bytes: int

    transform_descriptors: ClassVar[None] = None

    @property
    def relative_path(self) -> str:
        return self.part

    @property
    def length(self) -> int:
        return self.bytes


class _Into:
    """Tells torch's reader where a piece goes; of its planner that is all that it asks."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def resolve_tensor(self, item: ReadItem) -> Tensor:
        return self._rows

    def commit_tensor(self, item: ReadItem, tensor: Tensor) -> None:
        return None
