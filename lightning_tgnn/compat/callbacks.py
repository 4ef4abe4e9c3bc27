"""Repairs of callbacks and loggers: early stops, decisions of ranks, files at an error, the HParams tab."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_tgnn.comm import all_end_alike
from lightning_tgnn.types import has_work_to_save

_PLAIN = (bool, int, float, str)


class EarlyStops:
    """Has a fit that resumes from a checkpoint end where `EarlyStopping` has ended the fit of the checkpoint.

    A fit may train on after that, to its ``min_epochs`` or in the hooks that follow, and be killed there. By itself
    Lightning trains such a fit until the next figure. It also puts the patience of the checkpoint in place of the one
    that is given, so that nobody could resume with more.
    """

    def __init__(self) -> None:
        self._ended: list[EarlyStopping] = []

    def load(self, checkpoint: dict[str, Any], trainer: pl.Trainer) -> None:
        """Note what has ended the fit, and keep the patience that is given, before Lightning restores the callbacks.

        Args:
            checkpoint: Changed in place.
            trainer: The Trainer that resumes from it.
        """
        self._ended = []
        states = checkpoint.get("callbacks")
        states = states if isinstance(states, dict) else {}
        for stop in trainer.callbacks:  # type: ignore[attr-defined]
            state = states.get(stop.state_key) if isinstance(stop, EarlyStopping) else None
            if not isinstance(state, dict) or "patience" not in state:
                continue
            state["patience"] = stop.patience
            if state.get("stopping_reason") or state.get("stopped_epoch"):
                self._ended.append(stop)

    def begin(self, trainer: pl.Trainer) -> None:
        """End the fit if the reason that ended the fit of the checkpoint still holds, with the options given now."""
        ended, self._ended = self._ended, []
        for stop in ended:
            if _is_over(stop, trainer.callback_metrics.get(stop.monitor)):
                cure = "give more patience or other thresholds to continue"
                rank_zero_info(f"EarlyStopping({stop.monitor!r}) has ended the fit of the checkpoint: {cure}")
                trainer.should_stop = True


def _is_over(stop: EarlyStopping, figure: Tensor | None) -> bool:
    """Whether a callback that has ended a fit would do so by the latest figure, if there is one."""
    if stop.wait_count >= stop.patience:
        return True
    if figure is None:
        return False
    is_reached = stop.stopping_threshold is not None and stop.monitor_op(figure, stop.stopping_threshold)
    is_hopeless = stop.divergence_threshold is not None and stop.monitor_op(-figure, -stop.divergence_threshold)
    return bool(is_reached or is_hopeless or (stop.check_finite and not torch.isfinite(figure)))


def show_hyperparameters(trainer: pl.Trainer, logged: Collection[str]) -> None:
    """Write the hyperparameters of task and data, and which metrics stand beside them: their last values do.

    Args:
        trainer: About to fit.
        logged: The names of metrics, of validation as ``val/NAME``; the test is taken to log the same.
    """
    from torch.utils.tensorboard.summary import hparams

    names = [*logged, *(f"test/{name.removeprefix('val/')}" for name in logged if name.startswith("val/"))]
    for logger in trainer.loggers:
        if trainer.is_global_zero and isinstance(logger, TensorBoardLogger) and logger.hparams:
            held = {name: value for name, value in logger.hparams.items() if value is not None}
            shown = {name: value if isinstance(value, _PLAIN) else str(value) for name, value in held.items()}
            writer = logger.experiment._get_file_writer()  # as the logger itself does
            for summary in hparams(shown, dict.fromkeys(names)):
                writer.add_summary(summary)


_Saving = ModelCheckpoint | OnExceptionCheckpoint


def guard_files(trainer: pl.Trainer) -> None:
    """Let callbacks save on an error, or remove what they have saved, only where the run has work to save.

    The one file of an `OnExceptionCheckpoint` may be the very checkpoint that the run resumes from, or evaluates. The
    callbacks are as they were when the run has ended: another Trainer may have them next.

    Args:
        trainer: About to run; may be given again later in the run.
    """
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, _Saving):
            for name, guarded in (("on_exception", _on_exception), ("teardown", _teardown)):
                vars(callback).setdefault(name, partial(guarded, callback))


def _release(callback: _Saving) -> None:
    for name in ("on_exception", "teardown"):
        vars(callback).pop(name, None)


def _on_exception(callback: _Saving, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
    _release(callback)
    if has_work_to_save(trainer):
        callback.on_exception(trainer, module, exception)


def _teardown(callback: _Saving, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
    _release(callback)
    if isinstance(callback, ModelCheckpoint) or has_work_to_save(trainer):
        callback.teardown(trainer, module, stage)


class SharedDecisions:
    """Has all ranks of a Trainer decide by the first one's metrics, and save on an error together or not, until `end`.

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
                callback._monitor_candidates = partial(self._metrics, callback)  # type: ignore[method-assign]
            if isinstance(callback, OnExceptionCheckpoint | ModelCheckpoint):
                callback.on_exception = partial(_save_together, callback)  # type: ignore[method-assign]

    def _figure(self, trainer: pl.Trainer, name: str) -> float | None:
        figure = trainer.callback_metrics.get(name)
        known: float | None = self._broadcast(None if figure is None else float(figure))
        return known

    def _metrics(self, callback: ModelCheckpoint, trainer: pl.Trainer) -> dict[str, Tensor]:
        metrics = type(callback)._monitor_candidates(callback, trainer)
        if trainer.state.status == TrainerStatus.INTERRUPTED:  # by an error of this rank, perhaps of no other
            return metrics
        metrics = {name: torch.as_tensor(figure).cpu() for name, figure in metrics.items()}
        known: dict[str, Tensor] = self._broadcast(metrics)
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
    _release(callback)  # of the task's guards, too: no later run asks them
    if isinstance(callback, ModelCheckpoint) and not callback.save_on_exception:
        return
    if not has_work_to_save(trainer):
        return
    if isinstance(error, SIGTERMException) or all_end_alike(error, trainer.global_step):  # SIGTERM ends all at one step
        callback.on_exception(trainer, module, error)
    else:
        said = f"no checkpoint is saved on {type(error).__name__}, by which not all ranks end"
        warnings.warn(f"rank {trainer.global_rank}: {said}", stacklevel=2)
