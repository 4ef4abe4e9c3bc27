"""Guards a fit: it resumes exactly, with the states of every rank, and ends at the first value that is not finite."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, NotFiniteError
from lightning_tgnn.compat.callbacks import EarlyStops, guard_files, show_hyperparameters
from lightning_tgnn.compat.loops import FitProgress, accumulates, batches_begun_and_over, place_loader
from lightning_tgnn.compat.modules import trainer_of
from lightning_tgnn.compat.signals import Requeue, requeue_between_steps
from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.tasks.requirements import check_monitors
from lightning_tgnn.tasks.restoring import plain_name
from lightning_tgnn.tasks.training_options import check_same_optimizers, optimizer_settings, take_changed_options
from lightning_tgnn.tasks.value_checks import check_finite, check_finite_step, check_weights
from lightning_tgnn.types import LateValue, is_asynchronous

if TYPE_CHECKING:
    from lightning_tgnn.tasks.task import Task

_PYTHON_VERSION = 3  # of what `random.getstate` returns


def random_states(trainer: pl.Trainer) -> dict[str, Tensor | None]:
    """Return the random states of every rank, uint8 [M, n].

    They are torch's of the CPU and, where it trains, of CUDA, and the global ones of Python and NumPy, from which other
    code may draw.
    """
    device = trainer.strategy.root_device
    on_cuda = device.type == "cuda"
    return {
        "cpu": _from_all_ranks(torch.get_rng_state(), trainer).cpu(),
        "cuda": _from_all_ranks(torch.cuda.get_rng_state(device), trainer).cpu() if on_cuda else None,
        "python": _from_all_ranks(_python_state(), trainer).cpu(),
        "numpy": _from_all_ranks(_numpy_state(), trainer).cpu(),
    }


def _python_state() -> Tensor:
    _, words, gauss = random.getstate()
    return _as_bytes(np.array(words, np.uint32), np.array([np.nan if gauss is None else gauss]))


def _numpy_state() -> Tensor:
    state = np.random.get_state(legacy=False)
    words, position = state["state"]["key"], state["state"]["pos"]
    return _as_bytes(words, np.array([position, state["has_gauss"]], np.uint32), np.array([state["gauss"]]))


def _as_bytes(*arrays: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([array.view(np.uint8) for array in arrays]))


def _set_python_state(state: np.ndarray) -> None:
    (gauss,) = state[-8:].view(np.float64).tolist()
    random.setstate((_PYTHON_VERSION, tuple(state[:-8].view(np.uint32).tolist()), None if np.isnan(gauss) else gauss))


def _set_numpy_state(state: np.ndarray) -> None:
    *words, position, has_gauss = state[:-8].view(np.uint32).tolist()
    (gauss,) = state[-8:].view(np.float64).tolist()
    np.random.set_state(("MT19937", np.array(words, np.uint32), position, has_gauss, gauss))


def checked_states(saved: dict[str, Any]) -> dict[str, Any]:
    """Return random states of a checkpoint if they have the form of what `random_states` returns.

    Raises:
        ValueError: A table of states is missing, or has another form.
    """
    for device, states in saved.items():
        is_table = isinstance(states, Tensor) and states.dtype == torch.uint8 and states.dim() == 2
        if not is_table and (states is not None or device != "cuda"):
            raise ValueError(f"random states of {device} that are no table of bytes")
    if "cpu" not in saved:
        raise ValueError("no random states of the CPU")
    return saved


@content_of(*SAVED)
def restore_random_states(saved: dict[str, Any], trainer: pl.Trainer) -> None:
    """Go on with what `random_states` returned; a rank that was not among them keeps its own."""
    rank, device = trainer.global_rank, trainer.strategy.root_device
    if rank < len(saved["cpu"]):
        torch.set_rng_state(saved["cpu"][rank].cpu().clone())  # of a view, torch would read the whole storage
    if device.type == "cuda" and saved["cuda"] is not None and rank < len(saved["cuda"]):
        torch.cuda.set_rng_state(saved["cuda"][rank].cpu().clone(), device)
    for name, restore in {"python": _set_python_state, "numpy": _set_numpy_state}.items():
        if name in saved and rank < len(saved[name]):  # checkpoints of earlier versions have none
            restore(saved[name][rank].cpu().numpy().copy())


def _from_all_ranks(values: Tensor, trainer: pl.Trainer) -> Tensor:
    """Return the values of every rank, [M, ...]."""
    if trainer.world_size == 1:
        return values.unsqueeze(0)
    return trainer.strategy.all_gather(values.to(trainer.strategy.root_device))


def accumulated_gradients(trainer: pl.Trainer, *, untouched: bool) -> dict[str, Tensor]:
    """Return the gradients that each rank has accumulated, [M, ...], by parameter; nothing after an optimizer step.

    All ranks have to call it.

    Args:
        trainer: In a fit.
        untouched: Whether a batch that is under way, which Lightning counts, has not added to them yet.
    """
    begun, over = batches_begun_and_over(trainer)
    before = untouched and begun != over  # the batch under way has added nothing yet
    if not (over % trainer.accumulate_grad_batches if before else accumulates(trainer)):
        return {}
    gradients = {}
    for name, parameter in trainer.lightning_module.named_parameters():
        if not parameter.requires_grad:
            continue
        known = torch.tensor(parameter.grad is not None, device=parameter.device)
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        known, gradient = _from_all_ranks(known, trainer), _from_all_ranks(gradient, trainer)
        if known.any():
            gradients[plain_name(name)] = gradient.detach().cpu().clone()
    return gradients


@content_of(*SAVED)
def restore_accumulated_gradients(saved: dict[str, Tensor], trainer: pl.Trainer) -> None:
    """Continue with what `accumulated_gradients` returned; other numbers of ranks take the mean over the ranks."""
    for name, parameter in trainer.lightning_module.named_parameters():
        per_rank = saved.get(plain_name(name))
        if per_rank is not None:
            same = len(per_rank) == trainer.world_size
            parameter.grad = (per_rank[trainer.global_rank] if same else per_rank.mean(0)).to(parameter)


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
        self._unread: tuple[str, LateValue] | None = None  # of the latest batch
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
        self._fault = self._until_look = self._backward_in = self._unread = None
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

        The loss on an asynchronous device is read a batch later.

        Raises:
            NotFiniteError: The loss, a weight or a gradient is NaN or infinite.
        """
        loss, self._loss = self._loss, None
        if not task.detect_nan or loss is None:
            return
        where = f"in batch {task.trainer.fit_loop.batch_idx} of epoch {task.trainer.current_epoch}"
        if is_asynchronous(loss):
            self.check_unread()
            self._unread = f"loss {where}", LateValue(loss)
        if self._until_look and (is_asynchronous(loss) or math.isfinite(loss.item())):
            self._until_look -= 1
            return
        is_first, self._until_look = self._until_look is None, LOOK_EVERY - 1
        weights, checks_gradients = dict(task.named_parameters()), not has_loss_scale(task.trainer)
        self.end_on_fault(check_finite_step, where, loss, weights, gradients=checks_gradients, is_first=is_first)

    def check_scores(self, what: str, *scores: Tensor) -> None:
        """Refuse scores that are not finite; those on a GPU a batch later.

        Raises:
            NotFiniteError: A score is NaN or infinite.
        """
        if not is_asynchronous(scores[0]):
            self.end_on_fault(check_finite, what, [("", values) for values in scores])
        else:
            self.check_unread()
            extremes = [extreme.float() for values in scores if values.numel() for extreme in values.aminmax()]
            if extremes:
                self._unread = what, LateValue(torch.stack(extremes))

    def check_unread(self) -> None:
        """Refuse the loss or the scores of the latest batch if they have not been looked at and are not finite.

        Raises:
            NotFiniteError: A value is NaN or infinite.
        """
        unread, self._unread = self._unread, None
        if unread is not None:
            what, values = unread
            self.end_on_fault(check_finite, what, [("", values.read())])

    def check_weights(self, task: Task) -> None:
        """Refuse a weight that is not finite; not a buffer, for a mask may well be infinite.

        Raises:
            NotFiniteError: A weight, or the loss of the latest batch, is NaN or infinite.
        """
        if task.detect_nan:
            self.check_unread()
            self.end_on_fault(check_weights, dict(task.named_parameters()))

    def refuse_rates(self, trainer: pl.Trainer) -> NotFiniteError:
        """Return the refusal of a learning rate that is larger than a weight can be."""
        rates = [float(group["lr"]) for optimizer in trainer.optimizers for group in optimizer.param_groups]
        cure = "give a smaller lr, or look at what its schedule makes of it"
        self._fault = NotFiniteError("the learning rate", "one that float32 holds", max(rates), cure)
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
            raise InvalidArgumentError("Trainer(callbacks=...)", "without a search to resume", received, cure)
