"""Snapshot partition (ESDG): every group of snapshots is cut over all ranks by number."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lightning_tgnn.algorithms.schedules.open_groups import open_in_chain
from lightning_tgnn.algorithms.schedules.snapshot_groups import EVEN, SnapshotGroups
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.strategies.parts import GroupPipeline, MeanGradients, SnapshotMemory
from lightning_tgnn.strategies.runner import SnapshotRunner
from lightning_tgnn.types import Plan


class SnapshotPartitionStrategy(SnapshotRunner):
    """A baseline of BLAD: the snapshots of every group are cut evenly over the ranks, in their order.

    Hidden state goes from rank to rank, also between machines, and its gradient back (Chakaravarthy and others, SC
    2021). The ranks form a pipeline with several groups under way at a time. The result equals one process's.

    Args:
        open_groups: How many groups a rank may have open, waiting for their gradients; None for as many as ranks, up to
            8.
        gradient_compression: How gradients are compressed before they are sent: ``"bfloat16"``, ``"int8"``,
            ``"powersgd"`` or one of them with settings, see `MeanGradients`; None sends them as they are.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        open_groups: int | None = None,
        gradient_compression: GradientCompression | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if open_groups is not None:
            GroupPipeline(open_groups)  # refuses what it cannot be
        self._open_groups = open_groups
        self._schedule = SnapshotGroups(None, EVEN)
        self._snapshots = SnapshotMemory(measure=False)
        self._mean = MeanGradients(compression=gradient_compression)

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        order = GroupPipeline(open_in_chain(self.layout.ranks) if self._open_groups is None else self._open_groups)
        return Plan(self.layout, self._schedule, self._snapshots, order, self._mean)
