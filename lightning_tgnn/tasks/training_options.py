"""How weights are trained: optimizer, groups of parameters and schedule of the learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from inspect import isclass, signature
from math import isfinite, sqrt
from typing import Any, SupportsInt, TypeVar

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.types import Optimizable
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import LRSchedulerTypeUnion, OptimizerLRScheduler
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import Self

from lightning_tgnn.checks import (
    CheckpointError,
    InvalidArgumentError,
    check_bool,
    check_choice,
    check_not_negative,
    check_positive,
    plain,
)
from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.tasks.restoring import plain_name
from lightning_tgnn.types import batches_at_once

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
            raise CheckpointError(what, f"{saved[kind]}, as in the checkpoint", configured[kind], cure)


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


_Made = TypeVar("_Made")
OptimizerCallable = Callable[[Iterable], Optimizer]
LRSchedulerCallable = Callable[[Optimizer], LRScheduler | Mapping[str, Any]]
ParamGroups = Mapping[str, Mapping[str, Any]] | Callable[[str, Parameter], Mapping[str, Any]]

NOT_SAVED = ("optimizer", "lr_scheduler", "lr_scheduler_config", "param_groups")
"""Arguments of tasks that are no hyperparameters of a checkpoint: functions are no plain values."""

CAPTURE = ("off", "auto")
_SCHEDULE_KEYS = ("interval", "frequency", "monitor", "strict", "name")
_SCALINGS: dict[str, Callable[[int], float]] = {"none": lambda count: 1.0, "sqrt": sqrt, "linear": float}
_LENGTHS = ("total_steps", "epochs", "steps_per_epoch")


@dataclass(frozen=True)
class TrainingOptions:
    """How a task trains its weights: with Adam, or with another optimizer and a schedule.

    Args:
        lr: Learning rate of Adam.
        weight_decay: Of Adam.
        optimizer: Makes another optimizer from the parameters, or from their groups, such as ``torch.optim.AdamW`` or a
            `functools.partial` of it, with which ``lr`` and ``weight_decay`` are not used; None takes Adam.
        lr_scheduler: Makes the schedule of the learning rate from the optimizer, or Lightning's dictionary of one. An
            argument ``total_steps`` that is not set yet, `OneCycleLR` has it, gets the number of optimizer steps of
            the whole run. A schedule with such an argument advances with every step.
        lr_scheduler_config: ``interval`` (``"epoch"`` or ``"step"``), ``frequency``, ``monitor``, ``strict`` and
            ``name``, as in Lightning's ``lr_scheduler_config``.
        param_groups: Settings of the optimizer for some of the parameters: by a pattern of their names, such as
            ``{"*.bias": {"weight_decay": 0.0}}``, the first that fits, or by a function of name and parameter.
        lr_scaling: By what all learning rates, including the schedule's, are multiplied where n batches are trained at
            once, by ranks that share a batch or take turns: ``"none"``, ``"sqrt"`` of n, or ``"linear"``, n itself; see
            `batches_at_once`.
        detect_nan: End the run, on all ranks, where a loss, weight or score is not finite, and write no checkpoint any
            more. The loss is looked at in every batch, weights and gradients in every 50th, in a batch whose loss is
            not finite, and before they are saved; weights at the end of an epoch, too. Under ``precision="16-mixed"``
            gradients are left to the loss scale.
        capture: ``"auto"`` replays the stages of a step as CUDA graphs, recorded once for each size of padded batches
            (``TemporalDataModule(pad="auto")``); a stage that no graph can hold runs as it does without, and the log
            says why. ``"off"`` captures none. It has not been run on a GPU yet, and has no effect elsewhere.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    lr: float = 1e-3
    weight_decay: float = 0.0
    optimizer: OptimizerCallable | None = None
    lr_scheduler: LRSchedulerCallable | None = None
    lr_scheduler_config: Mapping[str, Any] | None = None
    param_groups: ParamGroups | None = None
    lr_scaling: str = "none"
    detect_nan: bool = True
    capture: str = "off"

    @classmethod
    def among(cls, arguments: Mapping[str, object]) -> Self:
        """Return the options that stand among the arguments of a task's constructor, ``locals()`` there."""
        return cls(**{option.name: arguments[option.name] for option in fields(cls)})  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        check_positive("lr", self.lr, cure="1e-3 is usual")
        check_not_negative("weight_decay", self.weight_decay, cure="0 is usual")
        check_bool("detect_nan", self.detect_nan, usual=True)
        check_choice("lr_scaling", self.lr_scaling, _SCALINGS)
        check_choice("capture", self.capture, CAPTURE)
        for name, example in (("optimizer", "AdamW"), ("lr_scheduler", "StepLR")):
            value = getattr(self, name)
            if value is not None and not callable(value):
                cure = f"the parameters do not exist yet: give a class or function, such as partial({example}, ...)"
                raise InvalidArgumentError(name, "what makes one when called", type(value).__name__, cure)
        for key in self.lr_scheduler_config or {}:
            check_choice("a key of lr_scheduler_config", key, _SCHEDULE_KEYS)
        interval = (self.lr_scheduler_config or {}).get("interval", "epoch")
        check_choice("lr_scheduler_config['interval']", interval, ("epoch", "step"))
        frequency = (self.lr_scheduler_config or {}).get("frequency", 1)
        if not isinstance(frequency, SupportsInt) or int(frequency) != frequency or frequency < 1:
            requirement, cure = "an integer of at least 1", "1 is every epoch or step"
            raise InvalidArgumentError("lr_scheduler_config['frequency']", requirement, frequency, cure)
        settings = self.param_groups.values() if isinstance(self.param_groups, Mapping) else []
        if not callable(self.param_groups) and self.param_groups is not None:
            mapping = isinstance(self.param_groups, Mapping)
            if not mapping or not all(isinstance(setting, Mapping) for setting in settings):
                cure = "write {'*.bias': {'weight_decay': 0.0}}"
                requirement = "settings of the optimizer by pattern of names, or a function"
                raise InvalidArgumentError("param_groups", requirement, self.param_groups, cure)

    def configure(
        self, task: pl.LightningModule, default: Callable[..., Optimizer], lr: float, weight_decay: float
    ) -> OptimizerLRScheduler:
        """Return what `configure_optimizers` has to.

        Args:
            task: Whose parameters are trained.
            default: Makes the optimizer where none is given.
            lr: Learning rate of the default.
            weight_decay: Of the default.

        Raises:
            InvalidArgumentError: The optimizer lacks a setting, a pattern fits no name, or the number of steps is
                needed and unknown.
        """
        groups = self.grouped((plain_name(name), parameter) for name, parameter in task.named_parameters())
        if self.optimizer is None:
            optimizer = default(groups, lr=lr, weight_decay=weight_decay)
        else:
            optimizer = _made("optimizer", self.optimizer, groups)
            _check_optimizer(optimizer, task)
            _warn_of_unused(task, lr=lr, weight_decay=weight_decay)
        for setting in {key for group in optimizer.param_groups for key in group} - {"params"}:
            check_choice("a setting in param_groups", setting, optimizer.defaults)
        for group in optimizer.param_groups:
            group.update({name: plain(value) for name, value in group.items() if name != "params"})
            for name in ("lr", "weight_decay"):
                if name in group and not isinstance(group[name], Tensor):
                    check_not_negative(f"{name} of a group of parameters", group[name], cure="1e-3 is a usual rate")
        if self.lr_scheduler is None:
            if self.lr_scheduler_config:
                cure = "give lr_scheduler, too"
                received = dict(self.lr_scheduler_config)
                raise InvalidArgumentError("lr_scheduler_config", "left out without lr_scheduler", received, cure)
            self._scale(task, optimizer)
            return optimizer
        schedule = self._schedule(self.lr_scheduler, optimizer, task.trainer)
        self._scale(task, optimizer, schedule["scheduler"])
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def _scale(self, task: pl.LightningModule, optimizer: Optimizer, *schedulers: LRScheduler) -> None:
        if self.lr_scaling == "none":
            return
        count = batches_at_once(task.trainer.strategy)
        factor = _SCALINGS[self.lr_scaling](count)
        scale_rates(optimizer, schedulers, factor)
        rates = ", ".join(f"{float(group['lr']):.3g}" for group in optimizer.param_groups)
        rank_zero_info(
            f"lr_scaling={self.lr_scaling!r}: {count} batches are trained at once, so learning rates are {factor:.3g} "
            f"times those given; the first are {rates}"
        )

    def grouped(self, named: Iterable[tuple[str, Parameter]]) -> list[Any]:
        """Return the parameters, in groups where there are some, in the order of the model within each."""
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        if self.param_groups is None:
            return [parameter for _, parameter in trained]
        choose = self.param_groups if callable(self.param_groups) else _by_pattern(self.param_groups, trained)
        groups: list[dict[str, Any]] = [{"params": []}]
        for name, parameter in trained:
            chosen = choose(name, parameter)
            try:
                setting = dict(chosen)
            except (TypeError, ValueError) as error:
                requirement, cure = "a function that returns settings", f"return {{}} for {name} where it has none"
                raise InvalidArgumentError("param_groups", requirement, type(chosen).__name__, cure) from error
            group = next((group for group in groups if _group_settings(group) == setting), None)
            if group is None:
                groups.append(group := {"params": [], **setting})
            group["params"].append(parameter)
        return [group for group in groups if group["params"]]

    def _schedule(self, make: LRSchedulerCallable, optimizer: Optimizer, trainer: pl.Trainer) -> Any:
        more = {"total_steps": _steps(trainer)} if _asks_for_length(make) else {}
        made = _made("lr_scheduler", make, optimizer, **more)
        if made is None:
            requirement, cure = "what makes a schedule of an optimizer, or Lightning's dictionary of one", "return it"
            raise InvalidArgumentError("lr_scheduler", requirement, type(made).__name__, cure)
        config: dict[str, Any] = {"interval": "step"} if _counts_steps(make) else {}
        monitor = getattr(made, "monitor", None)  # of LightningCLI's ReduceLROnPlateau
        if isinstance(made, Mapping):
            config |= made
        else:
            config |= {"scheduler": made} if monitor is None else {"scheduler": made, "monitor": monitor}
        config |= self.lr_scheduler_config or {}
        if isinstance(config.get("scheduler"), ReduceLROnPlateau) and config.get("monitor") is None:
            requirement, cure = "with a monitor for ReduceLROnPlateau", "set {'monitor': 'train/loss'}, say"
            raise InvalidArgumentError("lr_scheduler_config", requirement, self.lr_scheduler_config, cure)
        _check_length(make, config, trainer)
        return config


def _made(argument: str, make: Callable[..., _Made], *given: object, **named: object) -> _Made:
    """Make an optimizer or a schedule; what its class does not take is refused with the words of the class."""
    try:
        return make(*given, **named)
    except (TypeError, ValueError) as error:
        if not isclass(getattr(make, "func", make)):  # of functools.partial
            raise  # out of a function of the user's own
        requirement = "what makes one with the settings that it is given"
        raise InvalidArgumentError(argument, requirement, str(error), "correct its settings") from error


def _check_optimizer(optimizer: object, task: pl.LightningModule) -> None:
    """Refuse what is no optimizer, and one that would leave all parameters of the task as they are."""
    if not isinstance(optimizer, Optimizable):
        requirement, cure = "what makes an optimizer of parameters", "return it from the function"
        raise InvalidArgumentError("optimizer", requirement, type(optimizer).__name__, cure)
    own = {id(parameter) for parameter in task.parameters()}
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if own.isdisjoint(held):
        cure = "make it of the parameters that the function is called with"
        raise InvalidArgumentError("optimizer", "of the task's parameters", f"{len(held)} others", cure)


def _warn_of_unused(task: pl.LightningModule, **given: float) -> None:
    """Say which settings of the task an optimizer of the user's own does not get to see."""
    known = signature(type(task)).parameters
    unused = [f"{name}={value}" for name, value in given.items() if name in known and value != known[name].default]
    if unused:
        rank_zero_warn(f"{' and '.join(unused)} of the task are not used: the optimizer that was given has its own")


def _group_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _by_pattern(
    settings: Mapping[str, Mapping[str, Any]], named: list[tuple[str, Parameter]]
) -> Callable[[str, Parameter], Mapping[str, Any]]:
    names = [name for name, _ in named]
    for pattern in settings:
        if not any(fnmatchcase(name, pattern) for name in names):
            cure = f"the names are {', '.join(names)}"
            raise InvalidArgumentError("param_groups", "patterns that fit a name", pattern, cure)
    return lambda name, _: next((value for pattern, value in settings.items() if fnmatchcase(name, pattern)), {})


def _asks_for_length(make: Callable[..., Any]) -> bool:
    given = getattr(make, "keywords", {})  # of functools.partial, which is what a class path becomes, too
    if any(given.get(name) is not None for name in _LENGTHS):
        return False
    return _counts_steps(make)


def _counts_steps(make: Callable[..., Any]) -> bool:
    """Return whether the length of a schedule is one in steps of the optimizer, as OneCycleLR's is."""
    return "total_steps" in getattr(make, "keywords", {}) or "total_steps" in signature(make).parameters


def _check_length(make: Callable[..., Any], config: Mapping[str, Any], trainer: pl.Trainer) -> None:
    """Refuse a length in steps that is shorter than the run, and so probably one in epochs."""
    given = getattr(make, "keywords", {}).get("total_steps")
    if not isinstance(given, int) or config.get("interval") != "step":
        return
    if given < (steps := trainer.estimated_stepping_batches) and isfinite(steps):
        cure = "leave it out for these, or count epochs by lr_scheduler_config={'interval': 'epoch'}"
        requirement = f"at least the {steps:,} steps of the run"
        raise InvalidArgumentError("total_steps of lr_scheduler", requirement, given, cure)


def _steps(trainer: pl.Trainer) -> int:
    steps = trainer.estimated_stepping_batches
    if not isfinite(steps):
        cure = "set max_epochs or max_steps of the Trainer, or total_steps of the schedule"
        raise InvalidArgumentError("total_steps of lr_scheduler", "known ahead", steps, cure)
    return int(steps)
