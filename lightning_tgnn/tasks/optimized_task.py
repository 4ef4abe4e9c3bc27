"""The base class of all tasks: weights are trained with Adam, or as the arguments say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler

from lightning_tgnn.checks import check_not_negative, check_positive
from lightning_tgnn.tasks.optimization import LRSchedulerCallable, Optimization, OptimizerCallable, ParamGroups
from lightning_tgnn.tasks.resumable_task import ResumableTask


class OptimizedTask(ResumableTask):
    """A task that trains its weights with Adam, or with another optimizer and a schedule.

    Args:
        lr: Learning rate of Adam.
        weight_decay: Of Adam.
        optimizer: Makes another optimizer for the parameters, such as ``torch.optim.AdamW`` or a `functools.partial` of
            it. Then ``lr`` and ``weight_decay`` are not used.
        lr_scheduler: Makes a schedule for the optimizer. If it has an unset argument ``total_steps``, as `OneCycleLR`
            has, that is set to the number of optimizer steps of the run. With such an argument the schedule advances
            every step, otherwise every epoch.
        lr_scheduler_config: ``interval``, ``frequency``, ``monitor``, as in Lightning's dictionary of that name.
        lr_scaling: How learning rates are scaled where n batches are trained at once, by ranks that share a batch or
            take turns: ``"none"``, ``"sqrt"`` multiplies by the square root of n, ``"linear"`` by n. The schedule is
            scaled as well.
        param_groups: Settings for some parameters, by a pattern of their names, such as
            ``{"*.bias": {"weight_decay": 0.0}}``, or by a function of name and parameter.
        detect_nan: End the run if a loss, weight or score is not finite.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        lr: float,
        weight_decay: float,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_config: Mapping[str, Any] | None = None,
        lr_scaling: str = "none",
        param_groups: ParamGroups | None = None,
        detect_nan: bool = True,
    ) -> None:
        super().__init__(detect_nan=detect_nan)
        self.lr = check_positive("lr", lr, cure="1e-3 is usual")
        self.weight_decay = check_not_negative("weight_decay", weight_decay, cure="0 is usual")
        self.optimization = Optimization(optimizer, lr_scheduler, lr_scheduler_config, param_groups, lr_scaling)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return what the arguments say: Adam without a schedule by default."""
        return self.optimization.configure(self, torch.optim.Adam, self.lr, self.weight_decay)
