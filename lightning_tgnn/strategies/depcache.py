"""DepCache, a baseline of Sven: every rank holds all nodes."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.strategies.parts import InOrder, Replicated, StaleGradients
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import Plan


class DepCacheStrategy(PlanRunner):
    """DepCache: every rank holds the whole node state, and every update goes to all.

    A baseline (Sven, section 2.3). Unlike there, only the memories that a batch writes are sent, each once. Every rank
    knows from the global batch which nodes are written and which mails follow, so it makes the mails itself, bit for
    bit the same. If a model mails something else, whole mails are sent.

    Args:
        make_mails: Have ranks make the mails; False sends them, as the baseline does.
        staleness: 1 applies gradients one step late and hides their all-reduce; 0 waits for them.
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
        make_mails: bool = True,
        staleness: int = 0,
        gradient_compression: GradientCompression | str | None = None,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.prefetch_batches = prefetch_batches
        self._rows, self._mean = Replicated(make_mails), StaleGradients(staleness, gradient_compression)

    @property
    @override
    def staleness(self) -> int:
        return self._mean.delay

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        return Plan(self.layout, DataParallel(), self._rows, InOrder(), self._mean)
