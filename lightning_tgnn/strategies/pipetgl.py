"""PipeTGL: a pipeline over batches that keeps node memory exact."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import RoundRobin
from lightning_tgnn.checks import InvalidArgumentError, check_bool
from lightning_tgnn.strategies.parts import HostMemory, InOrder, RingUpdates, TargetsFirst
from lightning_tgnn.strategies.parts.stores import check_one_machine
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import Plan
from lightning_tgnn.types.layout import check_groups


class PipeTGLStrategy(PlanRunner):
    """PipeTGL: ranks take turns, each with a whole batch. Node memory is exact, gradients come M - 1 batches late.

    Batch b runs on rank ``b mod M``. It reads what all batches before it have written, and its gradient is applied in
    the order of the batches. ``batch_size`` does not depend on M.

    With several groups of M ranks, one or more on every machine, each group is a pipeline over the whole stream with
    its own copy of node memory. An update is the mean of their gradients; see `RoundRobin`.

    Args:
        groups: Number of pipelines. The ranks of a pipeline have to be on one machine, whose memory holds node state.
        targets_first: Write the rows that the next batch waits for before the rest of a step (PipeTGL, section 4.1).
        pass_on: Send rows that the next batch also writes straight to the rank of that batch (PipeTGL, section 4.2).
            It needs ``targets_first``. Between ranks that share memory it costs more than it saves.
        sends: What ranks send each other to update weights: ``"gradients"`` or ``"weights_and_moments"``; see
            `RingUpdates`.
        staleness: Updates that the weights of a batch may lack, or None for M - 1; see `RingUpdates`.
        prefetch_batches: Batches made ahead; None leaves that to the DataModule.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        groups: int = 1,
        targets_first: bool = True,
        pass_on: bool = False,
        sends: str = "gradients",
        staleness: int | None = None,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.groups = check_groups(groups)
        self.prefetch_batches = prefetch_batches
        check_bool("targets_first", targets_first, usual=True)
        if pass_on and not targets_first:
            cure = (
                "leave it out, or set targets_first=True: a batch that writes at its end has nothing to hand over early"
            )
            raise InvalidArgumentError("pass_on", "left out with targets_first=False", pass_on, cure)
        self._order = TargetsFirst() if targets_first else InOrder()
        self._rows = HostMemory(pass_on)
        self._ring = RingUpdates(sends, staleness)

    @property
    @override
    def fewest_ranks(self) -> int:
        return self.groups * (1 + (self._ring.staleness or 0))

    @override
    def check_ranks(self, ranks: int, hosts: int) -> None:
        if self.groups % hosts:
            check_one_machine(hosts)
        super().check_ranks(ranks, hosts)

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        return Plan(self.layout, RoundRobin(), self._rows, self._order, self._ring)
