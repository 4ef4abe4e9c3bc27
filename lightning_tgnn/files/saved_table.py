"""A table in the parts of a checkpoint folder, read by its pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from lightning_tgnn.checks import CheckpointError, refusal
from lightning_tgnn.files.whole import reading_tensors

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

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
            raise CheckpointError(refusal(str(self._folder / piece.part), requirement, received, cure)) from None
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
