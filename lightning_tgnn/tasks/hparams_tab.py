"""Hyperparameters of a run beside its metrics, in TensorBoard's HParams tab."""

from __future__ import annotations

from collections.abc import Collection

import lightning.pytorch as pl
from lightning.pytorch.loggers import TensorBoardLogger

_PLAIN = (bool, int, float, str)


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
            writer = logger.experiment._get_file_writer()  # as Lightning's logger does
            for summary in hparams(shown, dict.fromkeys(names)):
                writer.add_summary(summary)
