"""How optimizers and schedulers are configured, and how a resumed run takes settings that have changed since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.utilities.types import LRSchedulerTypeUnion
from torch.optim import Optimizer

from lightning_tgnn.checks import CheckpointError, refusal
from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.tasks.restoring import plain_name

_FIXED = {
    "optimizers": "optimizers",
    "schedulers": "schedulers",
    "total_steps": "total_steps of the schedulers",
    "members": "parameters of the optimizers' groups",
}
_DECIDES_LENGTH = "keep max_epochs, max_steps, batch_size, devices and accumulate_grad_batches as they were"
_RATES_OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
_RATES_OF_SCHEDULES = ("base_lrs", "_last_lr", "eta_min", "min_lrs", "max_lrs")
_PLAIN = (bool, int, float, str, tuple, type(None))


def optimizer_settings(trainer: pl.Trainer, saved: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return classes of optimizers and schedulers, and the options of each parameter group; plain values all.

    To be asked before a checkpoint is restored and before the first step: then they are what was configured.

    Args:
        trainer: With optimizers.
        saved: The same of the run that is resumed, if one is. Where `StochasticWeightAveraging` had put a scheduler of
            its own in the place of others, it takes these away: they are taken to be as they were.
    """
    settings = _settings(trainer)
    averages = any(isinstance(callback, StochasticWeightAveraging) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    if saved is not None and averages and not settings["schedulers"]:
        settings |= {name: saved[name] for name in ("schedulers", "total_steps") if name in saved}
    return settings


def _settings(trainer: pl.Trainer) -> dict[str, Any]:
    names = {id(parameter): plain_name(name) for name, parameter in trainer.lightning_module.named_parameters()}
    return {
        "optimizers": [type(optimizer).__name__ for optimizer in trainer.optimizers],
        "schedulers": [type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs],
        "total_steps": [getattr(config.scheduler, "total_steps", None) for config in trainer.lr_scheduler_configs],
        "members": [
            [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]
            for optimizer in trainer.optimizers
        ],
        "groups": [[_options(group) for group in optimizer.param_groups] for optimizer in trainer.optimizers],
    }


def scale_rates(optimizer: Optimizer, schedulers: Iterable[LRSchedulerTypeUnion], factor: float) -> None:
    """Multiply the learning rates of an optimizer and of schedules by a factor, for all steps to come.

    Schedules of torch are scaled whole, schedules of a user's own as far as they follow the optimizer's rates.

    Args:
        optimizer: With its schedules made, and no step made.
        schedulers: Its schedules.
        factor: What to multiply with.
    """
    for group in optimizer.param_groups:
        group.update({name: group[name] * factor for name in _RATES_OF_GROUPS if name in group})
    for scheduler in schedulers:
        _scale_schedule(scheduler, factor)


@content_of(*SAVED)
def check_same_optimizers(saved: dict[str, Any], configured: dict[str, Any]) -> None:
    """Refuse optimizers that cannot take over the state of those in a checkpoint.

    Args:
        saved: `optimizer_settings` of the run that has saved them.
        configured: `optimizer_settings` of this one.

    Raises:
        CheckpointError: Optimizers, schedulers or their lengths are others, or groups have other parameters.
    """
    for kind, what in _FIXED.items():
        if kind in saved and saved[kind] != configured[kind]:
            keep = _DECIDES_LENGTH if kind == "total_steps" else "resume with those"
            cure = f"{keep}, or leave the checkpoint out to train anew"
            raise CheckpointError(refusal(what, f"{saved[kind]}, as in the checkpoint", configured[kind], cure))


@content_of(*SAVED)
def take_changed_options(saved: dict[str, Any], configured: dict[str, Any], trainer: pl.Trainer) -> None:
    """Give the optimizers what was configured otherwise than in the run that saved them.

    Restoring has overwritten all of their options. A learning rate that a scheduler has changed since keeps its
    relation to the configured one.

    Args:
        saved: `optimizer_settings` of that run.
        configured: `optimizer_settings` of this one.
        trainer: About to resume, with everything restored.
    """
    pairs = zip(saved["groups"], configured["groups"], trainer.optimizers, strict=True)
    for before, now, optimizer in pairs:
        for old, new, group in zip(before, now, optimizer.param_groups, strict=True):
            changed = {name for name in new if name in old and old[name] != new[name]}
            group.update({name: new[name] for name in changed - {"lr", "initial_lr"}})
            if changed & {"lr", "initial_lr"}:
                group["lr"] = _rescaled(float(group["lr"]), old["lr"], new["lr"])
                if "initial_lr" in group:
                    group["initial_lr"] = new["initial_lr"]
    for config in trainer.lr_scheduler_configs:
        _rescale_scheduler(config.scheduler, saved, configured, trainer)


def _scale_schedule(scheduler: LRSchedulerTypeUnion, factor: float) -> None:
    for name in _RATES_OF_SCHEDULES:
        held = getattr(scheduler, name, None)
        if held is not None:
            setattr(scheduler, name, [rate * factor for rate in held] if isinstance(held, list) else held * factor)
    for member in getattr(scheduler, "_schedulers", []):
        _scale_schedule(member, factor)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in group.items() if name != "params" and isinstance(value, _PLAIN)}
    if isinstance(group["lr"], torch.Tensor):
        options["lr"] = float(group["lr"])
    return options


def _rescaled(rate: float, old: float, new: float) -> float:
    return new if rate == old or not old else rate * (new / old)


def _rescale_scheduler(
    scheduler: LRSchedulerTypeUnion, saved: dict[str, Any], configured: dict[str, Any], trainer: pl.Trainer
) -> None:
    """Tell a scheduler the learning rates that have changed, and the schedulers of which it is made."""
    number = next((n for n, optimizer in enumerate(trainer.optimizers) if optimizer is scheduler.optimizer), None)
    if number is None or not hasattr(scheduler, "base_lrs"):
        return
    groups = zip(saved["groups"][number], configured["groups"][number], strict=True)
    initial = [(old.get("initial_lr", old["lr"]), new.get("initial_lr", new["lr"])) for old, new in groups]
    for name in ("base_lrs", "_last_lr"):
        rates = getattr(scheduler, name, [])
        if len(rates) == len(initial):
            setattr(scheduler, name, [_rescaled(rate, *pair) for rate, pair in zip(rates, initial, strict=True)])
    for member in getattr(scheduler, "_schedulers", []):
        _rescale_scheduler(member, saved, configured, trainer)
