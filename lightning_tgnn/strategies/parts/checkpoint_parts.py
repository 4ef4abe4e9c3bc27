"""The parts of a checkpoint folder, as torch.distributed.checkpoint plans and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from typing_extensions import override

from lightning_tgnn.types import OwnRows


class RowPlanner(DefaultSavePlanner):
    """Plans a part of a rank: its rows of every table.

    Args:
        rows: By the name of the table; none without a value.
    """

    def __init__(self, rows: Mapping[str, OwnRows]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._rows = rows

    @override
    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([_item(name, own) for name, own in self._rows.items()])
        return self.plan

    @override
    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._rows[index.fqn].rows


def _item(name: str, own: OwnRows) -> WriteItem:
    shape = own.rows.shape
    offsets = torch.Size([own.start, *(0 for _ in shape[1:])])
    data = TensorWriteData(
        chunk=ChunkStorageMetadata(offsets, shape),
        properties=TensorProperties(dtype=own.rows.dtype),
        size=torch.Size([own.size, *shape[1:]]),
    )
    return WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data)


class PartWriter(FileSystemWriter):
    """Writes a part of each rank into a folder that is there, and no ``.metadata``, which is a pickle.

    Args:
        folder: Of the parts.

    Attributes:
        tables: On the first rank, once all have written: shape, type and pieces of every table, see `SavedTable`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self.tables: dict[str, dict[str, Any]] = {}

    @override
    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    @override
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError | KeyboardInterrupt):  # which torch hides as it closes the file
                raise error.__context__ from None
            raise

    @override
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        there = {result.index: result.storage_data for written in results for result in written}
        for name, table in metadata.state_dict_metadata.items():
            assert isinstance(table, TensorStorageMetadata)
            pieces = []
            for chunk in sorted(table.chunks, key=lambda chunk: chunk.offsets[0]):
                place = there[MetadataIndex(name, chunk.offsets)]
                part = f"{self._folder.name}/{place.relative_path}"
                piece = {"start": chunk.offsets[0], "rows": chunk.sizes[0]}
                pieces.append({**piece, "part": part, "offset": place.offset, "bytes": place.length})
            layout = {"shape": list(table.size), "dtype": table.properties.dtype}
            self.tables[name] = {**layout, "pieces": pieces}
