"""Refuses a second monitor of the same kind in a Trainer."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from lightning_tgnn.checks import InvalidArgumentError, refusal


def check_only_one(trainer: pl.Trainer, kind: type[Callback], setting: str) -> None:
    """Refuse several monitors of a kind: each would log the same figures, which whoever reads the log adds up.

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
        raise InvalidArgumentError(refusal("Trainer(callbacks=...)", f"with one {kind.__name__}", found, cure))
