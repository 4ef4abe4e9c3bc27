"""The base of all tasks: an exact resume, and an end at the first value that is not finite."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim import Optimizer
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, NotFiniteError, check_bool, refusal
from lightning_tgnn.compat.callbacks import EarlyStops, guard_files, show_hyperparameters
from lightning_tgnn.compat.loops import FitProgress
from lightning_tgnn.compat.modules import trainer_of
from lightning_tgnn.compat.signals import Requeue, requeue_between_steps
from lightning_tgnn.metrics.classification import metric_names
from lightning_tgnn.tasks.finite import check_finite, check_step, check_weights
from lightning_tgnn.tasks.requirements import check_monitors
from lightning_tgnn.tasks.restorable_task import RestorableTask
from lightning_tgnn.tasks.states_of_ranks import accumulated_gradients, restore_accumulated_gradients
from lightning_tgnn.types import EventBatch, SnapshotBatch, Subgraph, only_one

_Arguments = ParamSpec("_Arguments")
LOOK_EVERY = 50
"""Batches from one look at all weights and gradients to the next.

The loss is looked at in every batch. A gradient that is not finite makes its weight so, for good, and the next loss in
nearly all cases: to read all gradients in every batch would cost 1 to 3 % of a step and find it one batch earlier.
"""
_CHECKPOINT_KEY = "lightning_tgnn.fit"


class TrainedTask(RestorableTask):
    """A task that is resumed exactly, and whose run ends where a loss or a weight is not finite.

    Args:
        detect_nan: End the run there, on all ranks, and write no checkpoint any more. The loss is looked at in every
            batch, weights and gradients in every 50th, in a batch whose loss is not finite, and before they are saved;
            weights at the end of an epoch, too. Under ``precision="16-mixed"`` gradients are left to the loss scale.

    Raises:
        InvalidArgumentError: ``detect_nan`` is not a bool.

    Attributes:
        has_trained_weights: Whether the weights have been trained here, or loaded.
    """

    def __init__(self, *, detect_nan: bool = True) -> None:
        super().__init__()
        check_bool("detect_nan", detect_nan, usual=True)
        self.detect_nan = detect_nan
        self._fit_progress = FitProgress()
        self._early_stops = EarlyStops()
        self._saved_gradients: dict[str, Tensor] = {}
        self._loss: Tensor | None = None
        self._backward_in: int | None = None  # batch, counted over all epochs
        self._until_look: int | None = None  # batches; None before the first look of a fit
        self._fault: NotFiniteError | None = None
        self._requeue: Requeue | None = None
        self.has_trained_weights = False
        self.register_load_state_dict_post_hook(_note_loaded_weights)

    @property
    def has_progress_bar(self) -> bool:
        """Whether something shows figures: Lightning makes numbers of them in every step, and so waits for a GPU."""
        trainer = trainer_of(self)  # None in a loop of one's own
        return trainer is not None and trainer.progress_bar_callback is not None

    @override
    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Return the parameters, as `torch.nn.Module` does; the model's are there once it is built.

        Raises:
            InvalidArgumentError: An optimizer is made of them before the model is built, as `LightningCLI` makes one
                for ``--optimizer``: it would train none of the model's.
        """
        known = super().parameters(recurse)
        return (
            known if getattr(self, "model", self) is not None else _before_there_is_a_model(type(self).__name__, known)
        )

    def single_batch(self, batch: object) -> object:
        """Return the batch of a collection of one, as Lightning makes of a list or dict of loaders.

        Raises:
            InvalidArgumentError: The collection has several.
        """
        single = only_one(batch)
        if isinstance(single, (list, tuple, dict)) and len(single) > 1 and self._is_collection(single):
            cure = "give one loader, and fit again with the next; the DataModule has one for each split"
            received = f"{len(single)} batches at once"
            raise InvalidArgumentError(refusal("train_dataloaders", "one loader", received, cure))
        return single

    @staticmethod
    def _is_collection(batch: list | tuple | dict) -> bool:
        parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
        return all(isinstance(part, (EventBatch, SnapshotBatch, Subgraph)) or part is None for part in parts)

    def refresh_weights(self) -> None:
        """Make pruned and normalized weights anew: stages read weights of modules that they do not call."""
        for module in self.modules():
            for hook in module._forward_pre_hooks.values():
                if isinstance(hook, BasePruningMethod | SpectralNorm | WeightNorm):
                    hook(module, ())

    def copy_for_averages(self) -> None:
        """Let `StochasticWeightAveraging` copy the model now that it has been built; its own look came before that."""
        for callback in () if trainer_of(self) is None else self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, StochasticWeightAveraging):
                callback.setup(self.trainer, self, "fit")

    def configure_callbacks(self) -> Sequence[pl.Callback] | pl.Callback:
        """Add none, and let those of the Trainer save a run that breaks off only where it has trained something.

        Lightning calls this before it sets up a run, whose refusals come next.
        """
        self._fit_progress.forget()
        guard_files(self.trainer)
        return super().configure_callbacks()

    def on_fit_start(self) -> None:
        """Forget how an earlier fit ended."""
        self._fault = None
        self._until_look = None
        self._backward_in = None
        self._fit_progress.forget()
        guard_files(self.trainer)  # of callbacks that `configure_callbacks` has added, too
        self._requeue = requeue_between_steps(self.trainer)  # Lightning hears the signal from here on
        if type(self).__module__.startswith(__name__.partition(".")[0]):  # a user's own may log what it likes
            check_monitors(self.trainer, self.logged_names)

    @property
    def logged_names(self) -> Collection[str]:
        """The names of the metrics that a fit logs; empty where nobody knows."""
        metrics = getattr(self, "val_metrics", None)
        measured = () if metrics is None else metric_names(metrics, getattr(self, "figure", ""))
        return ["train/loss", *(f"val/{name}" for name in measured)]

    def on_train_end(self) -> None:
        """Save for SLURM what it has asked for in the last batch or validation."""
        requeue, self._requeue = self._requeue, None
        if requeue is not None and requeue.take_note():
            requeue.save()

    def on_train_start(self) -> None:
        """Go on where the checkpoint says."""
        self._backward_in = None  # a tuner runs the first batches of a fit several times
        self._fit_progress.begin(self.trainer)
        self._early_stops.begin(self.trainer)
        show_hyperparameters(self.trainer, self.logged_names)
        saved, self._saved_gradients = self._saved_gradients, {}
        if self.trainer.ckpt_path is not None:
            restore_accumulated_gradients(saved, self.trainer)

    def on_validation_start(self) -> None:
        """Warn where `Trainer.validate`, `test` or `predict` is about to take weights as they were drawn.

        Raises:
            InvalidArgumentError: There are several loaders.
        """
        doing = self.trainer.state.fn
        loaders = (self.trainer.val_dataloaders, self.trainer.test_dataloaders, self.trainer.predict_dataloaders)
        for given in map(only_one, loaders):
            count = len(given) if isinstance(given, (list, tuple, dict)) else 1
            if count > 1:
                cure = "evaluate one split after the other; the DataModule has a loader for each"
                raise InvalidArgumentError(refusal("dataloaders", "one loader", f"{count} loaders", cure))
        if doing is None or doing == "fit" or self.has_trained_weights:
            return
        rank_zero_warn(
            f"{doing.value} takes untrained weights: this task has not been trained, nor loaded from a checkpoint;"
            " call trainer.fit first, or give ckpt_path"
        )

    on_test_start = on_predict_start = on_validation_start

    def on_validation_epoch_end(self) -> None:
        """Note that this validation is over."""
        self._fit_progress.note_validation(self.trainer)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], object] | None = None,
    ) -> None:
        """Make a step, as Lightning does.

        Raises:
            NotFiniteError: The learning rate is larger than a weight can be.
        """
        try:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            rates = [float(group["lr"]) for optimizer in self.trainer.optimizers for group in optimizer.param_groups]
            cure = "give a smaller lr, or look at what its schedule makes of it"
            self._fault = NotFiniteError(refusal("the learning rate", "one that float32 holds", max(rates), cure))
            raise self._fault from error

    def on_before_backward(self, loss: Tensor) -> None:
        """Keep the loss until its gradients are there."""
        self._loss = loss.detach()
        self._backward_in = self.trainer.fit_loop.total_batch_idx

    def on_after_backward(self) -> None:
        """Refuse a loss that is not finite; in some batches weights and gradients, too.

        Raises:
            NotFiniteError: The loss, a weight or a gradient is NaN or infinite.
        """
        loss, self._loss = self._loss, None
        if not self.detect_nan or loss is None:
            return
        if math.isfinite(loss.item()) and self._until_look:
            self._until_look -= 1
            return
        is_first, self._until_look = self._until_look is None, LOOK_EVERY - 1
        where = f"in batch {self.trainer.fit_loop.batch_idx} of epoch {self.trainer.current_epoch}"
        weights, of_gradients = dict(self.named_parameters()), not self._has_loss_scale
        self._end_on_fault(check_step, where, loss, weights, gradients=of_gradients, is_first=is_first)

    @property
    def _has_loss_scale(self) -> bool:
        # One that is too large shows in the gradients, and is made smaller.
        return getattr(self.trainer.precision_plugin, "scaler", None) is not None

    def on_train_epoch_end(self) -> None:
        """Refuse a weight that is not finite, of the last batches, too.

        Raises:
            NotFiniteError: A weight is NaN or infinite.
        """
        self._check_weights()

    def _check_weights(self) -> None:
        # Not the buffers: a mask may well be infinite.
        if self.detect_nan:
            self._end_on_fault(check_weights, dict(self.named_parameters()))

    def check_scores(self, *scores: Tensor) -> None:
        """Refuse scores of an evaluation that are not finite.

        Raises:
            NotFiniteError: A score is NaN or infinite.
        """
        if self.detect_nan:
            split = "test" if self.trainer.testing else "validation"
            self._end_on_fault(check_finite, f"scores of the {split}", [("", values) for values in scores])

    def check_saved(self, what: str, values: Mapping[str, object]) -> None:
        """Refuse tensors of a checkpoint that are not finite.

        Raises:
            NotFiniteError: A tensor is NaN or infinite.
        """
        if self.detect_nan:
            self._end_on_fault(check_finite, what, values.items())

    def check_saved_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Refuse gradients of a checkpoint that are not finite; all ranks have to hold the same.

        Raises:
            NotFiniteError: A gradient is NaN or infinite.
        """
        if not self._has_loss_scale:
            self.check_saved("gradient", gradients)

    def _end_on_fault(
        self, check: Callable[_Arguments, None], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> None:
        try:
            check(*args, **kwargs)
        except NotFiniteError as fault:
            self._fault = fault
            raise

    def has_work_to_save(self) -> bool:
        """Whether this is a fit that has trained a batch, and nothing in it is known to be not finite."""
        return self._fault is None and self._fit_progress.has_trained(self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add where the fit stands, unless there is something in it that is not finite.

        Raises:
            NotFiniteError: A weight or a gradient is NaN or infinite, or a value was when training ended.
        """
        if self._fault is not None:
            raise self._fault
        untouched = self.is_batch_untouched()
        gradients = accumulated_gradients(self.trainer, untouched=untouched)
        self._check_weights()
        self.check_saved_gradients(gradients)
        progress = self._fit_progress.state_dict(self.trainer)
        checkpoint[_CHECKPOINT_KEY] = progress | {"gradients": gradients, "untouched": untouched}

    def is_batch_untouched(self) -> bool:
        """Whether the batch under way, if there is one, has changed nothing yet that a checkpoint holds."""
        return self._backward_in != self.trainer.fit_loop.total_batch_idx

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over where the fit stood.

        Raises:
            InvalidArgumentError: A callback would search for a rate or size first.
        """
        saved = checkpoint.get(_CHECKPOINT_KEY, {})
        goes_on = trainer_of(self) is not None and self.trainer.state.fn == "fit"
        if goes_on and not self._fit_progress.has_begun:
            _refuse_search(self.trainer)
        _begin_averages_anew(checkpoint, told=goes_on)
        self._fit_progress.load(checkpoint, saved, told=goes_on)
        if goes_on:
            self._early_stops.load(checkpoint, self.trainer)
        self._saved_gradients = saved.get("gradients", {})


def _begin_averages_anew(checkpoint: dict[str, Any], *, told: bool) -> None:
    """Let averages that hold no weights, as earlier versions have saved them, begin with those of the checkpoint."""
    states = checkpoint.get("callbacks")
    for name, state in states.items() if isinstance(states, dict) else ():
        is_average = str(name).startswith(StochasticWeightAveraging.__name__) and isinstance(state, dict)
        if is_average and state.get("average_model_state") == {}:
            state |= {"average_model_state": checkpoint["state_dict"], "n_averaged": 0}
            if told:
                rank_zero_warn("the checkpoint's StochasticWeightAveraging has averaged nothing: it begins anew")


def _refuse_search(trainer: pl.Trainer) -> None:
    """Refuse Lightning's searches ahead of a fit that goes on: what they put back afterwards has no position."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, LearningRateFinder | BatchSizeFinder):
            name = type(callback).__name__
            cure = "leave the callback out, or ckpt_path, where the run is to begin anew"
            received = f"{name}, after which the run would begin at its first step"
            raise InvalidArgumentError(refusal("Trainer(callbacks=...)", "without a search to go on", received, cure))


def _before_there_is_a_model(name: str, known: Iterator[Parameter]) -> Iterator[Parameter]:
    """Yield parameters, but to no optimizer of torch; Lightning itself looks at them early, too."""
    if str(sys._getframe(1).f_globals.get("__name__")).startswith("torch.optim"):
        cure = (
            f"give the optimizer to the task, {name}(optimizer=...) or --model.optimizer=..., which makes it once there"
            " are parameters, or call data.setup() and task.build(data.info) first"
        )
        requirement = "asked for once the model is built for its data"
        raise InvalidArgumentError(refusal(f"the parameters of {name}", requirement, "no model yet", cure))
    yield from known


def _note_loaded_weights(task: Module, keys: object) -> None:
    assert isinstance(task, TrainedTask)
    task.has_trained_weights = True
