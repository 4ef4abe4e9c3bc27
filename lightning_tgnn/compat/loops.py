"""The position of a fit within its epochs, where Lightning's counters are not enough to resume it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.loops.evaluation_loop import RestartStage
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.progress import _ProcessedTracker
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from lightning_tgnn.types import ScheduledLoader, only_one


class FitProgress:
    """Puts Lightning's counters right where it resumes in the middle of an epoch or at its end.

    Lightning counts an epoch as begun in some hooks and as finished in others. A checkpoint of an epoch's last step
    falls in between: it would skip the validation that follows, count the next epoch as finished before it has begun,
    and begin that one anew if it is resumed a second time. Here a checkpoint lies either behind some steps of an epoch,
    whose validation is still to come or over, or before the first step of an epoch.
    """

    def __init__(self) -> None:
        self._validated = -1
        self._loaded: _Loaded | None = None
        self._begun_at: int | None = None  # batches, when the fit began to train

    def forget(self) -> None:
        """Forget the fit before, or a search ahead of this one: it has trained nothing."""
        self._begun_at = None

    @property
    def has_begun(self) -> bool:
        """Whether a loop has begun to train since, a search for a learning rate included."""
        return self._begun_at is not None

    def has_trained(self, trainer: pl.Trainer) -> bool:
        """Whether this is a fit that has trained a batch, since a checkpoint if it resumes from one."""
        return trainer.state.fn == "fit" and self._begun_at is not None and _batches(trainer) > self._begun_at

    def note_validation(self, trainer: pl.Trainer) -> None:
        """Note that the validation after the current step is over."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._validated = _batches(trainer)

    def state_dict(self, trainer: pl.Trainer) -> dict[str, Any]:
        """Return whether the validation after the current step is over, and the metrics that schedules look at."""
        metrics = {name: value.detach().cpu().clone() for name, value in trainer.callback_metrics.items()}
        return {"validated": self._validated == _batches(trainer), "figures": metrics}

    def load(self, checkpoint: dict[str, Any], state: dict[str, Any], *, warns: bool = True) -> None:
        """Put the counters of a checkpoint right, before Lightning reads them.

        Args:
            checkpoint: Changed in place.
            state: What `state_dict` returned when it was saved.
            warns: Whether to warn of what the checkpoint lacks.
        """
        self._loaded = None
        loop = checkpoint.get("loops", {}).get("fit_loop")
        if loop is None:
            return
        epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
        now = epochs["current"]
        within = now["processed"] < now["started"] == now["ready"] and batches["current"]["processed"] > 0
        self._loaded = _Loaded(
            within_epoch=within,
            validated=state.get("validated", False),
            ends_epoch=not within and now["completed"] < now["processed"],
            metrics=dict(state.get("figures", {})),
        )
        if batches["current"]["ready"] != batches["current"]["processed"] and "untouched" in state:
            _leave_batch(loop, untouched=state["untouched"], warns=warns)
        unfinished = batches if within else epochs
        for count in (unfinished["total"], unfinished["current"]):
            count |= dict.fromkeys(count, count["processed"])
        evaluated = loop["epoch_loop.val_loop.batch_progress"]
        evaluated["total"] |= dict.fromkeys(evaluated["total"], evaluated["total"]["processed"])
        evaluated["current"] |= dict.fromkeys(evaluated["current"], 0)  # a validation begins at its first batch

    @property
    def is_within_epoch(self) -> bool:
        """Whether the checkpoint that was loaded lies behind some steps of an epoch that is still to be ended."""
        return self._loaded is not None and self._loaded.within_epoch

    def begin(self, trainer: pl.Trainer) -> None:
        """Tell the loops of a resumed fit what is still to be done; to be called when it starts."""
        loaded, self._loaded = self._loaded, None
        self._validated = -1
        self._begun_at = _batches(trainer)
        if loaded is None or trainer.ckpt_path is None:
            return
        trainer.callback_metrics.update(loaded.metrics)
        if loaded.within_epoch:
            _set_callbacks_of_epoch(trainer)
            self._validated = _batches(trainer) if loaded.validated else -1
            _go_on_within_epoch(trainer.fit_loop, validated=loaded.validated)
            return
        if loaded.ends_epoch:
            _follow_metrics(trainer.fit_loop)
        # The next epoch begins as any other; Lightning says otherwise where `max_steps` is given.
        trainer.fit_loop.epoch_loop.restarting = False
        trainer.fit_loop._restarting = False


def accumulates(trainer: pl.Trainer) -> bool:
    """Whether the gradients of the current batch wait for the gradients of later batches."""
    return trainer.fit_loop._should_accumulate()


def ends_epoch(trainer: pl.Trainer) -> bool:
    """Whether the batch under way is the last one of its epoch."""
    return trainer.fit_loop.epoch_loop._num_ready_batches_reached()


def batches_begun_and_over(trainer: pl.Trainer) -> tuple[int, int]:
    """Return how many batches of the epoch have begun, and how many are over."""
    count = cast(_ProcessedTracker, trainer.fit_loop.epoch_loop.batch_progress.current)
    return count.ready, count.processed


def place_loader(trainer: pl.Trainer) -> None:
    """Give the loader the position of the checkpoint once more.

    Lightning does so when it makes the loader: too early where `configure_optimizers` asks for
    `trainer.estimated_stepping_batches` (Lightning #20550).
    """
    trainer.fit_loop._load_combined_loader_states()


def clip_gradients(trainer: pl.Trainer, task: pl.LightningModule, optimizer: Optimizer) -> None:
    """Clip gradients as the Trainer asks; no hook is called."""
    trainer.precision_plugin._clip_gradients(
        task, optimizer, trainer.gradient_clip_val, gradient_clip_algorithm=trainer.gradient_clip_algorithm
    )


def _batches(trainer: pl.Trainer) -> int:
    """Return the batches that are over, of all epochs; one that is under way does not count."""
    return cast(_ProcessedTracker, trainer.fit_loop.epoch_loop.batch_progress.total).processed


def _leave_batch(loop: dict[str, Any], *, untouched: bool, warns: bool) -> None:
    """Go back to before the batch within which a checkpoint was saved; on from it where it has changed something.

    Loaders count a batch as they hand it out, Lightning when it is over.

    Args:
        loop: Of the checkpoint, changed in place.
        untouched: Whether the batch had changed neither weights nor node state.
        warns: Whether to warn where it had.
    """
    progress = loop["epoch_loop.batch_progress"]
    for count in (progress["total"], progress["current"]):
        count |= dict.fromkeys(count, count["processed"])
    done = progress["current"]["processed"]
    if not untouched and warns:
        lost = "not trained on again, and its update of the weights may be missing"
        if not done:  # its epoch begins anew
            lost = "trained on again, and where its update of the weights was made already, it is made twice"
        rank_zero_warn(f"the checkpoint was saved within batch {done} of an epoch: that batch is {lost}")
    if not untouched and done:
        return
    progress["is_last_batch"] = False
    for held in loop["state_dict"].get("combined_loader", []):
        if isinstance(held, dict) and held.get("position"):
            held["position"] -= 1
            if "batches_per_turn" in held:
                held["batches"] = held["first"] + held["position"] * held["batches_per_turn"]


@dataclass(frozen=True)
class _Loaded:
    """Where a checkpoint lies: behind steps of an epoch, or in the hooks at its end, or before the next."""

    within_epoch: bool
    validated: bool
    ends_epoch: bool
    metrics: dict[str, Tensor]


def _set_callbacks_of_epoch(trainer: pl.Trainer) -> None:
    """Let callbacks of Lightning do what they do at the start of an epoch, which it leaves out in the middle of one.

    Their states tell them what they have already done in this epoch.
    """
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GradientAccumulationScheduler | StochasticWeightAveraging):
            callback.on_train_epoch_start(trainer, trainer.lightning_module)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate  # which a schedule of averages changes as it is made


def _go_on_within_epoch(fit: _FitLoop, *, validated: bool) -> None:
    loop = fit.epoch_loop
    assert fit._data_fetcher is not None
    loader = only_one(loop.trainer.train_dataloader)
    if isinstance(loader, ScheduledLoader) and loop.trainer.num_training_batches == len(loader):
        # Other numbers of ranks play as many batches in other numbers of turns.
        played = len(loader) - loader.turns_left
        loop.batch_progress.current = _ProcessedTracker(played, played, played, played)
    ends_in_validation = loop._should_check_val_fx(fit._data_fetcher)
    to_validate = ends_in_validation and not validated
    loop.val_loop._restart_stage = RestartStage.RESTARTED_MID_EVALUATION if to_validate else RestartStage.NONE
    if loop._num_ready_batches_reached() and not ends_in_validation:
        fit._data_fetcher.done = True  # the loader may have more batches than an epoch takes
    if loop._batches_that_stepped < loop.global_step and not ends_in_validation:
        # Schedules that follow a figure of each step: Lightning has saved too early, and counts such steps behind them.
        loop.update_lr_schedulers("step", update_plateau_schedulers=True)
    if loop.trainer.lightning_module.automatic_optimization:
        still_to_count = ends_in_validation and not loop._should_accumulate()
        loop._batches_that_stepped = loop.global_step - int(still_to_count)
    fit._restarting = False  # schedules that follow a figure are left out at the end of an epoch otherwise


def _follow_metrics(fit: _FitLoop) -> None:
    """Let schedules that follow a figure take the step of the epoch, for which Lightning has saved too early."""
    if fit.epoch_loop._num_ready_batches_reached():
        fit.epoch_progress.current.completed -= 1  # of that epoch, not of the next
        fit.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
        fit.epoch_progress.current.completed += 1
