"""The DataModule of snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightning_tgnn.data.described_data import DescribedData
from lightning_tgnn.data.snapshots.pipeline import SnapshotPipeline
from lightning_tgnn.types import Snapshot, SnapshotBatch, SnapshotGroup

_Moved = TypeVar("_Moved", Snapshot, Tensor)


class SnapshotDataModule(SnapshotPipeline, DescribedData):  # noqa: D101
    __doc__ = SnapshotPipeline.__doc__  # it takes the same arguments

    # By device: what all epochs and splits share, with what it has been moved to.
    _moved: dict[torch.device, dict[int, tuple[Any, Any]]] | None = None

    def setup(self, stage: str | None = None) -> None:
        """Read the source and say what it is; once. Snapshots are made for the layers of the task."""
        task = None if self.trainer is None else getattr(self.trainer, "lightning_module", None)
        self.take_layers(getattr(task, "num_layers", None))
        super().setup(stage)

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Move a `SnapshotBatch`; snapshots of all vertices once, so that a model can keep what it makes of them."""
        if not isinstance(batch, SnapshotBatch):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        return SnapshotBatch(tuple(self._moved_group(group, device) for group in batch.groups))

    def _moved_group(self, group: SnapshotGroup, device: torch.device) -> SnapshotGroup:
        if group.nodes.device == device:
            return group
        if group.nodes is not self.snapshots.nodes:  # sampled for this batch
            return group.to(device)
        snapshots = tuple(self._once(snapshot, device) for snapshot in group.snapshots)
        nodes = self._once(group.nodes, device)
        return replace(group, snapshots=snapshots, nodes=nodes, targets=group.targets.to(device))

    def _once(self, value: _Moved, device: torch.device) -> _Moved:
        if self._moved is None:
            self._moved = {}
        on_device = self._moved.setdefault(device, {})
        if id(value) not in on_device:
            on_device[id(value)] = value, value.to(device)  # the first keeps its id from others
        return on_device[id(value)][1]
