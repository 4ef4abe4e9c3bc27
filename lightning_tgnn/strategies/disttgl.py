"""DistTGL: mini-batch, epoch and memory parallelism over copies of node state, served or sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import EpochsAndCopies
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.strategies.parts import MeanGradients, Pipelined, ReadOnce, Served, Sharded
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import Plan, StorePart

_SERVED, _SHARDED = "served", "sharded"


class DistTGLStrategy(PlanRunner):
    """DistTGL: i ranks share each batch, j epochs of it are trained at once, on each of k copies of node memory.

    ``batch_size`` is that of a rank: a global batch has i times as many events. An epoch of the Trainer plays every
    event j k times, so ``max_epochs`` divided by that is as much training as on one process. See `EpochsAndCopies`.

    Args:
        minibatch: i, the ranks that share each global batch.
        epoch: j, the epochs of a batch that are trained at once.
        memory: k, the copies of node memory.
        store: Where the rows of a copy lie. ``"served"``: in a process of its own on the machine of the copy's ranks,
            so that ``memory`` has to be a multiple of the machines. ``"sharded"``: cut over the copy's ranks, which may
            be on several machines.
        partition: With ``store="sharded"``, the rank of every node; see `Sharded`. None is ``"reflexbicut"``.
        negative_sets: How many sets of negatives there are, of which each pass takes another one at random; None for
            new ones in every pass.
        fetch_ahead: Ask for the rows of the next batch as soon as the last one is over with node state; sharded rows
            only where ``epoch`` is 1.
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
        store: str = "served",
        partition: str | Path | Tensor | None = None,
        negative_sets: int | None = None,
        fetch_ahead: bool = True,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._schedule = EpochsAndCopies(minibatch, epoch, memory, negative_sets)
        self.groups = memory
        self.prefetch_batches = prefetch_batches
        self._rows = _rows(store, partition)
        in_passes = epoch > 1 or store == _SERVED
        self._order = ReadOnce(fetch_ahead) if in_passes else Pipelined(1, fetch_ahead=fetch_ahead)
        self._mean = MeanGradients()

    @override
    def _configure_launcher(self) -> None:
        self._schedule.check_ranks(self.world_size)
        if self.groups % self.num_nodes and isinstance(self._rows, Served):
            requirement = f"a multiple of the {self.num_nodes} machines: a copy of node memory lies on one"
            cure = "take as many, or store='sharded'"
            raise InvalidArgumentError(refusal("memory", requirement, self.groups, cure))
        super()._configure_launcher()

    @override
    def plan(self, task: pl.LightningModule, trainer: pl.Trainer) -> Plan:
        return Plan(self.layout, self._schedule, self._rows, self._order, self._mean)


def _rows(store: str, partition: str | Path | Tensor | None) -> StorePart:
    """Return where rows lie.

    Raises:
        InvalidArgumentError: There is no such store, or a partition for one that is not cut.
    """
    if store == _SHARDED:
        return Sharded("reflexbicut" if partition is None else partition)
    if store != _SERVED:
        raise InvalidArgumentError(refusal("store", f"'{_SERVED}' or '{_SHARDED}'", store, "take one of these"))
    if partition is not None:
        cure = "leave it out, or take store='sharded'"
        raise InvalidArgumentError(refusal("partition", "left out where a process serves all rows", partition, cure))
    return Served()
