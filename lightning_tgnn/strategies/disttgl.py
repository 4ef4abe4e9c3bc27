"""DistTGL: mini-batch, epoch and memory parallelism over node state that a process of its own serves."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import EpochsAndCopies
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.strategies.parts import MeanGradients, ReadOnce, Served
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import Plan


class DistTGLStrategy(PlanRunner):
    """DistTGL: i ranks share each batch, j epochs of it are trained at once, on each of k copies of node memory.

    ``batch_size`` is that of a rank: a global batch has i times as many events. An epoch of the Trainer plays every
    event j k times, so ``max_epochs`` divided by that is as much training as on one process. See `EpochsAndCopies`.

    Args:
        minibatch: i, the ranks that share each global batch.
        epoch: j, the epochs of a batch that are trained at once.
        memory: k, the copies of node memory; a multiple of the machines, for the ranks of a copy are on one.
        negative_sets: How many sets of negatives there are, of which each pass takes another one at random; None for
            new ones in every pass.
        fetch_ahead: Ask for the rows of the next batch as soon as the last one is over with node state.
        prefetch_batches: Batches made ahead; None leaves that to the DataModule.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        minibatch: int = 1,
        epoch: int = 1,
        memory: int = 1,
        negative_sets: int | None = None,
        fetch_ahead: bool = True,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._schedule = EpochsAndCopies(minibatch, epoch, memory, negative_sets)
        self.groups = memory
        self.prefetch_batches = prefetch_batches
        self._rows, self._order, self._mean = Served(), ReadOnce(fetch_ahead), MeanGradients()

    @override
    def _configure_launcher(self) -> None:
        self._schedule.check_ranks(self.world_size)
        if self.groups % self.num_nodes:
            requirement = f"a multiple of the {self.num_nodes} machines: a copy of node memory lies on one"
            raise InvalidArgumentError(refusal("memory", requirement, self.groups, "take as many, or fewer machines"))
        super()._configure_launcher()

    @override
    def plan(self, task: pl.LightningModule, trainer: pl.Trainer) -> Plan:
        return Plan(self.layout, self._schedule, self._rows, self._order, self._mean)
