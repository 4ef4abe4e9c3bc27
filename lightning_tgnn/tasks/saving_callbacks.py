"""Keeps callbacks from changing their files if a run has trained nothing."""

from __future__ import annotations

from functools import partial

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from lightning_tgnn.types import has_work_to_save

_Saving = ModelCheckpoint | OnExceptionCheckpoint


def guard_files(trainer: pl.Trainer) -> None:
    """Let callbacks save on an error, or remove what they have saved, only where the run has work to save.

    The one file of an `OnExceptionCheckpoint` may be the very checkpoint that the run goes on with, or evaluates. The
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
