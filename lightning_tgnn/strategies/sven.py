"""Sven: node state sharded by node, exchanged without redundancy, balanced, and pipelined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.strategies.adaptive_micro_batch import TunedRunner
from lightning_tgnn.strategies.parts import Pipelined, Sharded, StaleGradients
from lightning_tgnn.types import Plan
from lightning_tgnn.types.schedule import TIME


class SvenStrategy(TunedRunner):
    """Sven: redundancy-free exchange of sharded node state, balanced partition, two pipelines.

    Args:
        partition: A method of ``lightning-tgnn partition`` (``"reflexbicut"``, ``"range"``, ``"interval"``,
            ``"metis"``), a file that this command wrote, or int64 [N], the rank of every node.
        micro_batches: n of the pipeline, or ``"adaptive"``: the number that an `AdaptiveMicroBatch` callback, which the
            strategy adds, finds to be the fastest. The callback decides by measured times, so two runs may differ by
            rounding. (Sven, section 5.6, takes 2 to 4; with rows fetched ahead little is left for more pieces to hide.)
        staleness: 1 applies gradients one step late and hides their all-reduce; 0 waits for them.
        row_cache_mb: Megabytes of fetched rows that a rank keeps; 0 for none.
        omit_own_half: Leave out the half of a mail that equals the memory in its row.
        features_by_event: Send a mail's event number instead of its edge features.
        fetch_ahead: Fetch rows of the next batch while this one computes, except the rows that this one changes.
        gradient_compression: How gradients are compressed before they are sent: ``"bfloat16"``, ``"int8"``,
            ``"powersgd"`` or one of them with settings, see `MeanGradients`; None sends them as they are.
        split_batch: In which order the events of a global batch are cut over the ranks: by ``"time"``, or by
            ``"destination"``, so that ranks need fewer rows of each other. The result is the same.
        prefetch_batches: Batches made ahead; None leaves that to the DataModule.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        partition: str | Path | Tensor = "reflexbicut",
        micro_batches: int | str = 1,
        staleness: int = 1,
        row_cache_mb: float = 256,
        omit_own_half: bool = True,
        features_by_event: bool = True,
        fetch_ahead: bool = True,
        gradient_compression: GradientCompression | str | None = None,
        split_batch: str = TIME,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.prefetch_batches = prefetch_batches
        self._schedule = DataParallel(split_batch)
        self._order = Pipelined(micro_batches, fetch_ahead)
        self._mean = StaleGradients(staleness, gradient_compression)
        self._rows = Sharded(partition, row_cache_mb, omit_own_half, features_by_event)

    @property
    @override
    def staleness(self) -> int:
        return self._mean.delay

    @property
    @override
    def order_part(self) -> Pipelined:
        return self._order

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        return Plan(self.layout, self._schedule, self._rows, self._order, self._mean)
