"""Windows of training steps, for monitors of ranks that share node state."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from typing_extensions import override

from lightning_tgnn.callbacks.only_one import check_only_one
from lightning_tgnn.checks import check_int
from lightning_tgnn.strategies.runner import PlanRunner


class WindowedMonitor(Callback):
    """Logs figures of windows of training steps.

    Args:
        every_n_steps: Batches of a window; a shorter one ends each epoch.

    Attributes:
        latest: The figures of the latest window, on every rank.

    Raises:
        InvalidArgumentError: The window has no batch; in `setup`, a Trainer has several of these.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        check_int("every_n_steps", every_n_steps, minimum=1, cure="give batches per window, for example 50")
        self.every_n_steps = every_n_steps
        self.latest: dict[str, float] = {}

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        check_only_one(trainer, type(self), "every_n_steps")

    def strategy_of(self, trainer: pl.Trainer) -> PlanRunner | None:
        """Return the strategy whose ranks share node state; None, and a word of it, where there is none."""
        strategy = trainer.strategy
        if isinstance(strategy, PlanRunner) and strategy.shares_node_state:
            return strategy
        rank_zero_info(f"{type(self).__name__} has nothing to do: {type(strategy).__name__} shares no node state")
        return None

    def log_latest(self, trainer: pl.Trainer) -> None:
        """Log the figures of the latest window, by rank 0."""
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics(self.latest, step=trainer.global_step)
