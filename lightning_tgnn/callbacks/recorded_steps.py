"""Shared parts of callbacks that record training steps."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_tgnn.strategies.stage_recorder import StageRecorder
from lightning_tgnn.types import Stages


class RecordedSteps(Callback):
    """Tells a `StageRecorder`, while there is one, of the backward pass and of the optimizer's step."""

    def __init__(self) -> None:
        self._recorder: StageRecorder | None = None
        self._stages: Stages | None = None  # of the task that is trained

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
