"""What tasks and DataModules need of Lightning beside its public names."""

from __future__ import annotations

from copy import deepcopy

import lightning.pytorch as pl
from lightning.fabric.utilities.types import _MAP_LOCATION_TYPE
from lightning.pytorch.utilities.exceptions import _augment_message as augment_message
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod as restricted_classmethod

MapLocation = _MAP_LOCATION_TYPE
"""Where `torch.load` puts tensors."""
__all__ = ["MapLocation", "Module", "augment_message", "is_compiled", "restricted_classmethod", "trainer_of"]


class Module(pl.LightningModule):
    """A LightningModule with a hook ahead of the transfer of a batch, and hyperparameters that may be put right."""

    def single_batch(self, batch: object) -> object:
        """Return what is moved to the device in place of a batch.

        Lightning's public hook would have it warn of one in the task beside a DataModule.
        """
        return batch

    def _on_before_batch_transfer(self, batch: object, dataloader_idx: int = 0) -> object:
        return super()._on_before_batch_transfer(self.single_batch(batch), dataloader_idx)

    def keep_hyperparameters(self) -> None:
        """Have loggers and checkpoints take the hyperparameters as they are now, not as they were saved."""
        self._hparams_initial = deepcopy(self.hparams)


def trainer_of(task: pl.LightningModule) -> pl.Trainer | None:
    """Return the Trainer of a task; None where it has none yet, which ``task.trainer`` refuses."""
    return task._trainer


def is_compiled(task: pl.LightningModule) -> bool:
    """Whether `torch.compile` has compiled the steps of a task."""
    return task._compiler_ctx is not None
