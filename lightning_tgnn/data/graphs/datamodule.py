"""The DataModule of static graphs."""

from __future__ import annotations

from dataclasses import replace

import torch

from lightning_tgnn.data.described_data import DescribedData
from lightning_tgnn.data.graphs.pipeline import GraphPipeline
from lightning_tgnn.types import SparseRows, Subgraph


class FullGraphDataModule(GraphPipeline, DescribedData):  # noqa: D101
    __doc__ = GraphPipeline.__doc__  # it takes the same arguments

    _moved: tuple[SparseRows, Subgraph] | None = None

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Move a `Subgraph`; what its epochs and splits share, once, so that a model can keep what it makes of it."""
        if not isinstance(batch, Subgraph):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        if batch.nodes.device == device:
            return batch
        if self._moved is None or self._moved[0] is not batch.edges or self._moved[1].nodes.device != device:
            self._moved = batch.edges, batch.to(device)
        return replace(self._moved[1], scored=batch.scored.to(device), share=batch.share, seed=batch.seed)
