"""The checkpoint with which a SLURM job is requeued, saved where a run can be resumed exactly."""

from __future__ import annotations

import signal
from functools import partial
from types import FrameType

import lightning.pytorch as pl
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop


class Requeue:
    """Takes down that SLURM is about to end the job.

    Lightning's handler of the signal saves from wherever the process is, in the middle of a step or of an exchange with
    other ranks. Here the handler makes a note of it in a fit, and `save` does between two steps what Lightning's does.

    Args:
        trainer: Whose handler is replaced, before Lightning registers it.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._told = False
        trainer._signal_connector._slurm_sigusr_handler_fn = self._note  # type: ignore[method-assign, assignment]

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._trainer.state.fn == "fit" or self._trainer.world_size > 1:
            self._told = True
        else:  # there are no steps to come
            self.save()

    def take_note(self) -> bool:
        """Whether the signal has come since this was last asked."""
        told = self._told
        if told:  # not otherwise: it may come right now
            self._told = False
        return told

    def save(self) -> None:
        """Save a checkpoint and have the job requeued, as Lightning does; all ranks have to call it together."""
        connector = self._trainer._signal_connector
        type(connector)._slurm_sigusr_handler_fn(connector, signal.SIGUSR1, None)  # type: ignore[arg-type]


def requeue_between_steps(trainer: pl.Trainer) -> Requeue | None:
    """Save ahead of the next batch if SLURM is about to end a job of one process; ranks have to agree on one first.

    Returns:
        What has to be asked once more when there is no next batch; None where there is no such job.
    """
    if trainer.world_size > 1 or not isinstance(trainer._accelerator_connector.cluster_environment, SLURMEnvironment):
        return None
    loop, requeue = trainer.fit_loop.epoch_loop, Requeue(trainer)
    loop.advance = partial(_advance, loop, requeue)  # type: ignore[method-assign]
    return requeue


def _advance(loop: _TrainingEpochLoop, requeue: Requeue, data_fetcher: _DataFetcher) -> None:
    if requeue.take_note():
        requeue.save()
    type(loop).advance(loop, data_fetcher)
