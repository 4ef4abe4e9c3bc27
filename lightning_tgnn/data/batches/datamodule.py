"""The DataModule of event streams."""

from __future__ import annotations

from typing import Any

import torch

from lightning_tgnn.data.batches.event_pipeline import EventPipeline
from lightning_tgnn.data.described_data import DescribedData
from lightning_tgnn.types import EventBatch, SampledRoots


class TemporalDataModule(EventPipeline, DescribedData):  # noqa: D101
    __doc__ = EventPipeline.__doc__  # it takes the same arguments

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move the tensors of an `EventBatch`."""
        if isinstance(batch, EventBatch):
            if batch.nodes.device == device:
                return batch
            return batch.to(device, non_blocking=device.type == "cuda")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def _roots_to_sample(self) -> SampledRoots:
        return self.sampled_roots or self._of_model("sampled_roots", "all")

    @property
    def _draws_negatives(self) -> bool:
        return self._of_model("draws_negatives", True)

    def _of_model(self, name: str, default: Any) -> Any:
        """Return what the model that is trained says of its batches."""
        return getattr(None if self.trainer is None else self.trainer.lightning_module, name, default)
