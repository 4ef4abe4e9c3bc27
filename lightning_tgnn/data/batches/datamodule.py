"""The DataModule of event streams."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import lightning.pytorch as pl
import torch

from lightning_tgnn.data.batches.event_pipeline import EventPipeline
from lightning_tgnn.data.described_data import DescribedData
from lightning_tgnn.types import EventBatch, SampledRoots, draws_negatives


@runtime_checkable
class _SamplesRoots(Protocol):
    """A model that says whose neighbours it reads."""

    sampled_roots: SampledRoots


class TemporalDataModule(EventPipeline, DescribedData):  # noqa: D101
    __doc__ = EventPipeline.__doc__  # it takes the same arguments

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Move the tensors of an `EventBatch`."""
        if isinstance(batch, EventBatch):
            if batch.nodes.device == device:
                return batch
            return batch.to(device, non_blocking=device.type == "cuda")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def _roots_to_sample(self) -> SampledRoots:
        model = self._model
        return self.sampled_roots or (model.sampled_roots if isinstance(model, _SamplesRoots) else "all")

    @property
    def _draws_negatives(self) -> bool:
        return draws_negatives(self._model)

    @property
    def _feeds_cuda(self) -> bool:
        device = None if self.trainer is None else getattr(self.trainer.strategy, "root_device", None)
        return device is not None and device.type == "cuda"

    @property
    def _model(self) -> pl.LightningModule | None:
        """The model that is trained, which may say of its batches what it needs."""
        return None if self.trainer is None else self.trainer.lightning_module
