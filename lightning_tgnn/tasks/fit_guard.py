"""What guards a fit: it resumes exactly, and ends at the first value that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, NotFiniteError, refusal
from lightning_tgnn.compat.callbacks import EarlyStops, guard_files, show_hyperparameters
from lightning_tgnn.compat.loops import FitProgress, place_loader
from lightning_tgnn.compat.modules import trainer_of
from lightning_tgnn.compat.signals import Requeue, requeue_between_steps
from lightning_tgnn.tasks.finite import check_step, check_weights
from lightning_tgnn.tasks.optimizer_settings import check_same_optimizers, optimizer_settings, take_changed_options
from lightning_tgnn.tasks.requirements import check_monitors
from lightning_tgnn.tasks.states_of_ranks import (
    accumulated_gradients,
    restore_accumulated_gradients,
    restore_random_states,
)

if TYPE_CHECKING:
    from lightning_tgnn.tasks.task import Task

_Arguments = ParamSpec("_Arguments")
LOOK_EVERY = 50
"""Batches from one look at all weights and gradients to the next.

The loss is looked at in every batch. A gradient that is not finite makes its weight so, for good, and the next loss in
nearly all cases: to read all gradients in every batch would cost 1 to 3 % of a step and find it one batch earlier.
"""
_CHECKPOINT_KEY = "lightning_tgnn.fit"


class FitGuard:
    """Resumes the fits of a task exactly, and ends them where a loss or a weight is not finite.

    The task asks it in its own hooks. A callback would not do: Lightning's searches for a learning rate or a batch size
    put other callbacks in the place of the Trainer's.

    Attributes:
        progress: Where the fit stands.
        random_states: Of a checkpoint; None once they have been restored.
        optimizers: How the optimizers are configured; None before a fit.
    """

    def __init__(self) -> None:
        self.progress = FitProgress()
        self.random_states: dict[str, Any] | None = None
        self.optimizers: dict[str, Any] | None = None
        self._optimizers_saved: dict[str, Any] | None = None
        self._early_stops = EarlyStops()
        self._gradients: dict[str, Tensor] = {}
        self._loss: Tensor | None = None
        self._backward_in: int | None = None  # batch, counted over all epochs
        self._until_look: int | None = None  # batches; None before the first look of a fit
        self._fault: NotFiniteError | None = None
        self._requeue: Requeue | None = None

    def configure(self, trainer: pl.Trainer) -> None:
        """Let callbacks of a Trainer save a run that breaks off only where it has trained something."""
        self.progress.forget()
        guard_files(trainer)

    def begin_fit(self, task: Task) -> None:
        """Forget how an earlier fit ended, and note how the optimizers are configured, before a checkpoint is restored.

        Raises:
            InvalidArgumentError: A callback monitors what the task does not log.
            CheckpointError: The optimizers differ from the optimizers of the checkpoint.
        """
        trainer = task.trainer
        self._fault = self._until_look = self._backward_in = None
        self.configure(trainer)  # with the callbacks that the task has added
        self._requeue = requeue_between_steps(trainer)  # Lightning hears the signal from here on
        if type(task).__module__.startswith(__name__.partition(".")[0]):  # a user's own may log what it likes
            check_monitors(trainer, task.logged_names)
        self.optimizers = optimizer_settings(trainer, self._optimizers_saved)
        if self._optimizers_saved is not None and trainer.ckpt_path is not None:
            check_same_optimizers(self._optimizers_saved, self.optimizers)

    def begin_training(self, task: Task) -> None:
        """Continue where the checkpoint was made, with the options of optimizers that have changed."""
        trainer, resumes = task.trainer, task.trainer.ckpt_path is not None
        optimizers, self._optimizers_saved = self._optimizers_saved, None
        gradients, self._gradients = self._gradients, {}
        if resumes:
            place_loader(trainer)
        self._backward_in = None  # a tuner runs the first batches of a fit several times
        self.progress.begin(trainer)
        self._early_stops.begin(trainer)
        show_hyperparameters(trainer, task.logged_names)
        if resumes:
            restore_accumulated_gradients(gradients, trainer)
        if resumes and optimizers is not None and self.optimizers is not None:
            take_changed_options(optimizers, self.optimizers, trainer)

    def continue_random_states(self, trainer: pl.Trainer) -> None:
        """Continue the random states of the checkpoint, as late as possible before the first step."""
        saved, self.random_states = self.random_states, None
        if saved is not None and trainer.ckpt_path is not None:
            restore_random_states(saved, trainer)

    def end_training(self) -> None:
        """Save for SLURM what it has asked for in the last batch or validation."""
        requeue, self._requeue = self._requeue, None
        if requeue is not None and requeue.take_note():
            requeue.save()

    def runs_again(self, trainer: pl.Trainer) -> bool:
        """Whether the batch under way has gone backward already."""
        return self._backward_in == trainer.fit_loop.total_batch_idx

    def before_backward(self, trainer: pl.Trainer, loss: Tensor) -> None:
        """Keep the loss until its gradients are there."""
        self._loss = loss.detach()
        self._backward_in = trainer.fit_loop.total_batch_idx

    def after_backward(self, task: Task) -> None:
        """Refuse a loss that is not finite; in some batches weights and gradients, too.

        Raises:
            NotFiniteError: The loss, a weight or a gradient is NaN or infinite.
        """
        loss, self._loss = self._loss, None
        if not task.detect_nan or loss is None:
            return
        if math.isfinite(loss.item()) and self._until_look:
            self._until_look -= 1
            return
        is_first, self._until_look = self._until_look is None, LOOK_EVERY - 1
        where = f"in batch {task.trainer.fit_loop.batch_idx} of epoch {task.trainer.current_epoch}"
        weights, checks_gradients = dict(task.named_parameters()), not has_loss_scale(task.trainer)
        self.end_on_fault(check_step, where, loss, weights, gradients=checks_gradients, is_first=is_first)

    def check_weights(self, task: Task) -> None:
        """Refuse a weight that is not finite; not a buffer, for a mask may well be infinite.

        Raises:
            NotFiniteError: A weight is NaN or infinite.
        """
        if task.detect_nan:
            self.end_on_fault(check_weights, dict(task.named_parameters()))

    def refuse_rates(self, trainer: pl.Trainer) -> NotFiniteError:
        """Return the refusal of a learning rate that is larger than a weight can be."""
        rates = [float(group["lr"]) for optimizer in trainer.optimizers for group in optimizer.param_groups]
        cure = "give a smaller lr, or look at what its schedule makes of it"
        self._fault = NotFiniteError(refusal("the learning rate", "one that float32 holds", max(rates), cure))
        return self._fault

    def end_on_fault(
        self, check: Callable[_Arguments, None], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> None:
        """Run a check, and take note of what it refuses: nothing is saved after it.

        Raises:
            NotFiniteError: The check finds a value that is not finite.
        """
        try:
            check(*args, **kwargs)
        except NotFiniteError as fault:
            self._fault = fault
            raise

    def has_work_to_save(self, trainer: pl.Trainer) -> bool:
        """Whether this is a fit that has trained a batch, and nothing in it is known to be not finite."""
        return self._fault is None and self.progress.has_trained(trainer)

    def save(self, task: Task, checkpoint: dict[str, Any]) -> None:
        """Add where the fit stands to a checkpoint.

        Raises:
            NotFiniteError: A weight or a gradient is NaN or infinite, or a value was when training ended.
        """
        if self._fault is not None:
            raise self._fault
        untouched = task.is_batch_untouched()
        gradients = accumulated_gradients(task.trainer, untouched=untouched)
        self.check_weights(task)
        task.check_saved_gradients(gradients)
        progress = self.progress.state_dict(task.trainer)
        checkpoint[_CHECKPOINT_KEY] = progress | {"gradients": gradients, "untouched": untouched}

    def load(self, task: Task, checkpoint: dict[str, Any]) -> None:
        """Take over where the fit of a checkpoint stood.

        Raises:
            InvalidArgumentError: A callback would search for a rate or size first.
        """
        saved, trainer = checkpoint.get(_CHECKPOINT_KEY, {}), trainer_of(task)
        resumes = trainer is not None and trainer.state.fn == "fit"
        if resumes and not self.progress.has_begun:
            _refuse_search(task.trainer)
        _begin_averages_anew(checkpoint, warns=resumes)
        self.progress.load(checkpoint, saved, warns=resumes)
        if resumes:
            self._early_stops.load(checkpoint, task.trainer)
        self._gradients = saved.get("gradients", {})

    def load_optimizers(self, saved: dict[str, Any] | None) -> None:
        """Take over how the optimizers of a checkpoint were configured; None where nobody knows."""
        self._optimizers_saved = saved


def has_loss_scale(trainer: pl.Trainer) -> bool:
    """Whether the loss is scaled: a scale that is too large shows in the gradients, and is made smaller."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def _begin_averages_anew(checkpoint: dict[str, Any], *, warns: bool) -> None:
    """Let averages that hold no weights, as earlier versions have saved them, begin with the checkpoint's weights."""
    states = checkpoint.get("callbacks")
    for name, state in states.items() if isinstance(states, dict) else ():
        is_average = str(name).startswith(StochasticWeightAveraging.__name__) and isinstance(state, dict)
        if is_average and state.get("average_model_state") == {}:
            state |= {"average_model_state": checkpoint["state_dict"], "n_averaged": 0}
            if warns:
                rank_zero_warn("the checkpoint's StochasticWeightAveraging has averaged nothing: it begins anew")


def _refuse_search(trainer: pl.Trainer) -> None:
    """Refuse Lightning's searches ahead of a fit that resumes: what they put back afterwards has no position."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, LearningRateFinder | BatchSizeFinder):
            name = type(callback).__name__
            cure = "leave the callback out, or ckpt_path, where the run is to begin anew"
            received = f"{name}, after which the run would begin at its first step"
            raise InvalidArgumentError(refusal("Trainer(callbacks=...)", "without a search to resume", received, cure))
