"""Figures by which all ranks decide: schedules that follow one, and checkpoints that are chosen or named by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerStatus
from torch import Tensor


class SharedFigures:
    """Has all ranks of a Trainer decide by the first one's figures until `end`.

    A figure of training is of a rank's own share of the events, which may be none. Ranks whose rates differ drift
    apart, and ranks that name checkpoints differently disagree about where the best one is.

    Args:
        trainer: About to run.
        broadcast: Sends a value of the first rank to all, which call it together.
    """

    def __init__(self, trainer: pl.Trainer, broadcast: Callable[[Any], Any]) -> None:
        self._broadcast = broadcast
        # Lightning calls this before it looks whether there is such a figure.
        self._loop = trainer.fit_loop.epoch_loop
        self._loop._get_monitor_value = partial(self._figure, trainer)  # type: ignore[method-assign]
        held = trainer.checkpoint_callbacks
        self._callbacks = [callback for callback in held if isinstance(callback, ModelCheckpoint)]
        for callback in self._callbacks:
            callback._monitor_candidates = partial(self._figures, callback)  # type: ignore[method-assign]

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
            vars(callback).pop("_monitor_candidates", None)
