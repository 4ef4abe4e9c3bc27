"""What strategies and callbacks ask of any task, and what holds of one that does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_tgnn.types.stages import Stages

if TYPE_CHECKING:
    import lightning.pytorch as pl


def stages_of(task: object) -> Stages | None:
    """Return what tells when the stages of a task's turns begin and end; whoever listens is added there."""
    return getattr(task, "stages", None)


def check_saved_gradients(task: object, gradients: Mapping[str, Tensor]) -> None:
    """Let a task look at the gradients that a checkpoint is to hold; all ranks have to hold the same.

    Raises:
        NotFiniteError: The task refuses a gradient that is NaN or infinite.
    """
    if (check := getattr(task, "check_saved_gradients", None)) is not None:
        check(gradients)


def has_work_to_save(trainer: pl.Trainer) -> bool:
    """Whether callbacks may save a run that an error ends; the file that they replace may hold more training."""
    says = getattr(trainer.lightning_module, "has_work_to_save", None)
    return says is None or bool(says())


def measured(task: object, split: str) -> object:
    """Return what the steps on ``"val"`` or ``"test"`` add to; None where they add to nothing."""
    says = getattr(task, "measured", None)
    return None if says is None else says(split)


def draws_negatives(task: object) -> bool:
    """Return whether the batches of a task have to carry negatives: they do unless it says otherwise."""
    return getattr(task, "draws_negatives", True)


def train_accuracy(task: object) -> float | None:
    """Return the share of the training vertices that the last step had right, over all ranks; None if nobody knows."""
    return getattr(task, "train_accuracy", None)
