"""What strategies and callbacks ask of a task, beside the stages of `NodeStateTask`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from lightning_tgnn.types.stages import Stages

if TYPE_CHECKING:
    import lightning.pytorch as pl


@runtime_checkable
class ChecksGradients(Protocol):
    """A task that looks at the gradients which a checkpoint is to hold."""

    def check_saved_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Refuse gradients that are not finite; all ranks have to hold the same.

        Raises:
            NotFiniteError: A gradient is NaN or infinite.
        """
        ...


@runtime_checkable
class KnowsWork(Protocol):
    """A task that knows whether its run has come to anything that is worth a checkpoint."""

    def has_work_to_save(self) -> bool:
        """Whether this is a fit that has trained a batch, and nothing in it is known to be not finite."""
        ...


def has_work_to_save(trainer: pl.Trainer) -> bool:
    """Whether callbacks may save a run that an error ends; the file that they replace may hold more training."""
    task: object = trainer.lightning_module
    return not isinstance(task, KnowsWork) or task.has_work_to_save()


@runtime_checkable
class TellsStages(Protocol):
    """A task that tells when the stages of its turns begin and end.

    Attributes:
        stages: Whoever listens is added here.
    """

    stages: Stages


@runtime_checkable
class MeasuredTask(Protocol):
    """A task that measures its evaluations."""

    def measured(self, split: str) -> object:
        """Return what the steps on ``"val"`` or ``"test"`` add to; None where they add to nothing."""
        ...


@runtime_checkable
class DrawsNegatives(Protocol):
    """A task that says whether its batches have to carry negatives.

    Attributes:
        draws_negatives: Whether they do.
    """

    draws_negatives: bool


def draws_negatives(task: object) -> bool:
    """Return whether the batches of a task have to carry negatives: they do unless it says otherwise."""
    return not isinstance(task, DrawsNegatives) or task.draws_negatives
