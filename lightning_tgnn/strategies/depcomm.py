"""DepComm, a baseline of Sven: owners update their nodes and send the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.strategies.parts import MeanGradients, Sharded, UpdatedByOwners
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import Plan


class DepCommStrategy(PlanRunner):
    """DepComm: owners apply the mails of their nodes and send the result for every entry of the sampled graph.

    A baseline (Sven, section 2.3). All options of `SvenStrategy` except the partition are off.

    Args:
        partition: As in `SvenStrategy`.
        gradient_compression: How gradients are compressed before they are sent: ``"bfloat16"``, ``"int8"``,
            ``"powersgd"`` or one of them with settings, see `MeanGradients`; None sends them as they are.
        prefetch_batches: Batches made ahead; None leaves that to the DataModule.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        partition: str | Path | Tensor = "reflexbicut",
        gradient_compression: GradientCompression | str | None = None,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.prefetch_batches = prefetch_batches
        self._mean = MeanGradients(compression=gradient_compression)
        self._rows = Sharded(partition, row_cache_mb=0, omit_own_half=False, features_by_event=False)

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        return Plan(self.layout, DataParallel(), self._rows, UpdatedByOwners(), self._mean)
