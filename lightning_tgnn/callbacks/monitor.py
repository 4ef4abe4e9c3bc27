"""The base of monitors: what they log, the stages of steps that they record, and their windows."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.strategies.stage_recorder import StageRecorder
from lightning_tgnn.types import Stages


class Monitor(Callback):
    """Logs metrics of training, and tells a `StageRecorder`, while there is one, of backward passes and steps.

    Attributes:
        latest: The latest metrics, on every rank.
    """

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}
        self._recorder: StageRecorder | None = None
        self._stages: Stages | None = None  # of the task that is trained

    def log_latest(self, trainer: pl.Trainer) -> None:
        """Log the latest metrics, by rank 0."""
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics(self.latest, step=trainer.global_step)

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        if self._recorder is not None:
            self._recorder.enter("backward")

    @override
    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._recorder is not None:
            self._recorder.leave()

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        if self._recorder is not None:
            self._recorder.enter("step")

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._stages is not None and self._recorder is not None:
            self._stages.remove(self._recorder)
        self._recorder = None


class WindowedMonitor(Monitor):
    """Logs metrics of windows of training steps.

    Args:
        every_n_steps: Batches of a window; a shorter one ends each epoch.

    Attributes:
        latest: The metrics of the latest window, on every rank.

    Raises:
        InvalidArgumentError: The window has no batch; in `setup`, a Trainer has several of these.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        check_int("every_n_steps", every_n_steps, minimum=1, cure="give batches per window, for example 50")
        super().__init__()
        self.every_n_steps = every_n_steps

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


def check_only_one(trainer: pl.Trainer, kind: type[Callback], setting: str) -> None:
    """Refuse several monitors of a kind: each would log the same metrics, which a reader of the log would add up.

    Args:
        trainer: Whose callbacks they are.
        kind: Of the monitor.
        setting: Its argument for whose sake a second one is given.

    Raises:
        InvalidArgumentError: The Trainer has several callbacks of this kind.
    """
    found = [type(callback).__name__ for callback in trainer.callbacks if isinstance(callback, kind)]  # type: ignore[attr-defined]
    if len(found) > 1:
        cure = f"leave out all but one, and set {setting} of that, in a recipe among its init_args"
        raise InvalidArgumentError("Trainer(callbacks=...)", f"with one {kind.__name__}", found, cure)
