"""Vertex partition (AliGraph): the vertices of every snapshot are cut over the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import SharedGroups
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.strategies.parts import MeanGradients, SnapshotMemory, VertexShares
from lightning_tgnn.strategies.runner import SnapshotRunner
from lightning_tgnn.types import Plan


class VertexPartitionStrategy(SnapshotRunner):
    """A baseline of BLAD: each rank computes its vertices of all snapshots of every group.

    Features and hidden rows of neighbours travel in every layer, forward and backward (Zhu and others, VLDB 2019). The
    result equals the result of one process.

    Args:
        partition: ``"metis"``, of the edges of all snapshots; ``"interval"``, ``"range"``, a file that ``lightning-tgnn
            partition`` wrote, or int64 [N], the rank of every vertex.
        gradient_compression: How gradients are compressed before they are sent: ``"bfloat16"``, ``"int8"``,
            ``"powersgd"`` or one of them with settings, see `MeanGradients`; None sends them as they are.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        partition: str | Path | Tensor = "metis",
        gradient_compression: GradientCompression | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._order = VertexShares(partition)
        self._mean = MeanGradients(compression=gradient_compression)
        self._snapshots = SnapshotMemory(measure=False)

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        return Plan(self.layout, SharedGroups(), self._snapshots, self._order, self._mean)
