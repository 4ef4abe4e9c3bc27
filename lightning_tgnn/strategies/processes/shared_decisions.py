"""Decisions that all ranks make alike: by which figures, and whether an error leaves a checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from lightning_tgnn.comm import all_end_alike
from lightning_tgnn.types import has_work_to_save


class SharedDecisions:
    """Has all ranks of a Trainer decide by the first one's figures, and save on an error together or not, until `end`.

    A figure of training is of a rank's own share of the events, which may be none. Ranks whose rates differ drift
    apart, and ranks that name checkpoints differently disagree about where the best one is. A rank that fails alone
    would wait for the others, which wait for it, if it began a checkpoint.

    Args:
        trainer: About to run.
        broadcast: Sends a value of the first rank to all, which call it together.
    """

    def __init__(self, trainer: pl.Trainer, broadcast: Callable[[Any], Any]) -> None:
        self._broadcast = broadcast
        # Lightning calls this before it looks whether there is such a figure.
        self._loop = trainer.fit_loop.epoch_loop
        self._loop._get_monitor_value = partial(self._figure, trainer)  # type: ignore[method-assign]
        self._callbacks = trainer.checkpoint_callbacks
        for callback in self._callbacks:
            if isinstance(callback, ModelCheckpoint):
                callback._monitor_candidates = partial(self._figures, callback)  # type: ignore[method-assign]
            if isinstance(callback, OnExceptionCheckpoint | ModelCheckpoint):
                callback.on_exception = partial(_save_together, callback)  # type: ignore[method-assign]

    def _figure(self, trainer: pl.Trainer, name: str) -> float | None:
        figure = trainer.callback_metrics.get(name)
        known: float | None = self._broadcast(None if figure is None else float(figure))
        return known

    def _figures(self, callback: ModelCheckpoint, trainer: pl.Trainer) -> dict[str, Tensor]:
        figures = type(callback)._monitor_candidates(callback, trainer)
        if trainer.state.status == TrainerStatus.INTERRUPTED:  # by an error of this rank, perhaps of no other
            return figures
        figures = {name: torch.as_tensor(figure).cpu() for name, figure in figures.items()}
        known: dict[str, Tensor] = self._broadcast(figures)
        return known

    def end(self) -> None:
        """Leave the Trainer and its callbacks as they were: another Trainer may have these next."""
        vars(self._loop).pop("_get_monitor_value", None)
        for callback in self._callbacks:
            for name in ("_monitor_candidates", "on_exception"):
                vars(callback).pop(name, None)


def _save_together(
    callback: ModelCheckpoint | OnExceptionCheckpoint,
    trainer: pl.Trainer,
    module: pl.LightningModule,
    error: BaseException,
) -> None:
    for name in ("on_exception", "teardown"):  # which the task may guard; no run goes on that asks them
        vars(callback).pop(name, None)
    if isinstance(callback, ModelCheckpoint) and not callback.save_on_exception:
        return
    if not has_work_to_save(trainer):
        return
    if isinstance(error, SIGTERMException) or all_end_alike(error, trainer.global_step):  # SIGTERM ends all at one step
        callback.on_exception(trainer, module, error)
    else:
        said = f"no checkpoint is saved on {type(error).__name__}, by which not all ranks end"
        warnings.warn(f"rank {trainer.global_rank}: {said}", stacklevel=2)
