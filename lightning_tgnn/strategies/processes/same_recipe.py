"""Settings that have to be equal on all ranks: the data, and everything that decides how it is trained on.

Ranks on several hosts read files and recipes of their own. Where these differ, gradients are summed without an error
while the copies of the weights drift apart, or messages come with lengths that nobody expects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from inspect import signature
from zlib import crc32

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.comm import Messages
from lightning_tgnn.compat.strategy import OpenDDPStrategy
from lightning_tgnn.types import Broadcast, KnownData, Plan, datamodule_of, known_data

_WITH_CHECKPOINT = {"ckpt_path": "a checkpoint"}
_PACKAGE = __name__.partition(".")[0]
_CURE = "start all with the same recipe and data"
_FREE = frozenset({"source", "device", "devices", "global_rank", "local_rank", "node_rank", "trust"})
_OF_SPEED = frozenset({"num_workers", "prefetch_batches", "row_cache_mb", "foreach", "fused"})
"""Settings by which the ranks of a run may differ: where things are, and what is only a matter of speed."""
_PLACES = frozenset({"dir", "path", "root", "folder", "file"})  # the last word of a name
_OF_UPDATES = frozenset({"lr", "weight_decay"})  # a search for rates may have left others, which no evaluation asks for
_PATH = "a path"
_DEEPEST = 6
_MOST_READ = 1 << 16  # numbers of a tensor; to read a large one would take longer than a short run
_TRAINED = (
    "max_epochs",
    "min_epochs",
    "max_steps",
    "min_steps",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "limit_train_batches",
    "limit_val_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "num_sanity_val_steps",
    "overfit_batches",
    "reload_dataloaders_every_n_epochs",
)
"""Options of a Trainer that decide what a fit comes to, and when ranks meet in it."""
_MEETING: dict[type[pl.Callback], tuple[str, ...]] = {
    ModelCheckpoint: (
        "monitor",
        "mode",
        "save_top_k",
        "save_last",
        "save_on_exception",
        "_every_n_train_steps",
        "_every_n_epochs",
        "_train_time_interval",
    ),
    OnExceptionCheckpoint: (),
    EarlyStopping: ("monitor", "mode", "patience", "min_delta", "stopping_threshold", "divergence_threshold"),
    BatchSizeFinder: (),
    LearningRateFinder: (),
    StochasticWeightAveraging: (),
    GradientAccumulationScheduler: (),
}
"""Callbacks in which all ranks come together, and the settings that decide when."""
_COLLECTIVE = tuple(_MEETING)


def check_same_on_all(tell: Callable[[], Mapping[str, str]], everyone: Messages, broadcast: Broadcast) -> None:
    """Refuse ranks that differ, on all of them alike; they have to call this together, before what depends on it.

    One small sum says whether they do. The values travel only where they do.

    Args:
        tell: Returns what this rank has, as text, by the name that a refusal calls it.
        everyone: To all ranks.
        broadcast: Sends a value of the first rank to all.

    Raises:
        InvalidArgumentError: A value differs between ranks.
        PeerFailureError: A rank has failed.
    """
    if everyone.ranks == 1:
        return
    reported = tell()
    digest = blake2b(repr(sorted(reported.items())).encode(), digest_size=7).digest()
    if everyone.all_alike(int.from_bytes(digest, "big")):
        return
    raise InvalidArgumentError(broadcast(_refused(everyone.gather(dict(reported)))))


def check_checkpoint_on_all(everyone: Messages, broadcast: Broadcast) -> None:
    """Refuse ranks of which only some resume from a checkpoint, ahead of reading it; only those call this.

    The others tell what they are about to run by then, which is something else. The one of a SLURM job may be on the
    disk of one host.

    Args:
        everyone: To all ranks.
        broadcast: Sends a value of the first rank to all.

    Raises:
        InvalidArgumentError: Some ranks have no checkpoint.
        PeerFailureError: A rank has failed.
    """
    check_same_on_all(lambda: _WITH_CHECKPOINT, everyone, broadcast)


def _refused(per_rank: list[dict[str, str]]) -> str | None:
    """Return on the first rank what to say of ranks that differ; None elsewhere."""
    if not per_rank:
        return None
    known = dict.fromkeys(name for reported in per_rank for name in reported)
    names = [name for name in known if len({reported.get(name) for reported in per_rank}) > 1]
    in_all = [
        name for name in names if all(name in reported for reported in per_rank)
    ]  # others mostly follow from these
    differing = {name: _by_value(name, per_rank) for name in in_all or names}
    received = [*differing.values()] if len(differing) == 1 else [f"{name}: {one}" for name, one in differing.items()]
    return refusal(", ".join(differing), "the same on all ranks", _Plain("; ".join(received)), _CURE)


def _by_value(name: str, per_rank: list[dict[str, str]]) -> str:
    holders: dict[str, list[int]] = {}
    for rank, reported in enumerate(per_rank):
        holders.setdefault(reported.get(name, "nothing"), []).append(rank)
    ranks = {value: ", ".join(map(str, held)) for value, held in holders.items()}
    return ", ".join(f"{value} on rank{'s' * (', ' in held)} {held}" for value, held in ranks.items())


class _Plain(str):
    """A text that a refusal shows in quotes of one kind, whatever quotes it has."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{self}'"


def recipe_of(strategy: OpenDDPStrategy, trainer: pl.Trainer) -> dict[str, str]:
    """Return what a rank is about to run, as text, by the name that a refusal calls it.

    Args:
        strategy: Of the Trainer; of its plan see `plan_of`.
        trainer: About to train or to evaluate, with its data read.
    """
    task, data, training = trainer.lightning_module, datamodule_of(trainer), trainer.state.fn == "fit"
    reported = {
        "lightning_tgnn": str(vars(sys.modules[_PACKAGE]).get("__version__")),
        "run": f"{trainer.state.fn and trainer.state.fn.value}",
        "ckpt_path": "None",
    }
    reported |= {} if trainer.ckpt_path is None else _WITH_CHECKPOINT
    known = known_data(trainer)
    reported |= {"datamodule": type(data).__name__} | _texts(_graph(known), "{}", " of the data")
    settings = {**known.fixed_settings(training=training), "batch_size": known.batch_size}
    reported |= _texts(settings, f"{type(data).__name__}({{}}=...)")
    arguments = _arguments_of_package(type(task)) - (frozenset() if training else _OF_UPDATES)
    hparams = {name: value for name, value in task.hparams.items() if name in arguments}
    reported |= {"model": type(task).__name__} | _texts(hparams, f"{type(task).__name__}({{}}=...)")
    names = _TRAINED if training else ("limit_val_batches", "limit_test_batches", "limit_predict_batches")
    values = {name: getattr(trainer, name) for name in ("precision", *names)}
    if training:
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        reported["Trainer(callbacks=...)"] = "; ".join(
            _meeting(one) for one in callbacks if isinstance(one, _COLLECTIVE)
        )
    reported |= _texts(values, "Trainer({}=...)")
    options = {name: value for name, value in strategy.ddp_options.items() if isinstance(value, bool | int | float)}
    return reported | {"strategy": type(strategy).__name__} | _texts(options, f"{type(strategy).__name__}({{}}=...)")


def _arguments_of_package(kind: type) -> frozenset[str]:
    """Return the arguments that classes of this package take; what a user's own means to a run, nobody knows."""
    own = [one for one in kind.__mro__ if one.__module__.partition(".")[0] == _PACKAGE]
    return frozenset(name for one in own for name in signature(one).parameters)


def _meeting(callback: pl.Callback) -> str:
    settings = next(settings for kind, settings in _MEETING.items() if isinstance(callback, kind))
    held = ", ".join(f"{name}={_text(getattr(callback, name))}" for name in settings)
    return f"{type(callback).__name__}({held})"


def _graph(data: KnownData) -> dict[str, object]:
    """Return what tells one graph from another; numbers with a fraction may be rounded otherwise on another machine."""
    info = data.info
    if info is None or not is_dataclass(info):
        return {}
    values = {field.name: getattr(info, field.name) for field in fields(info)}
    return {name: value for name, value in values.items() if not isinstance(value, float)}


def optimizers_of(trainer: pl.Trainer) -> dict[str, str]:
    """Return how long a rank trains by which optimizers and schedulers, by the name that a refusal calls it."""
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    names = sorted({name for group in groups for name in group if name != "params"})
    configs = trainer.lr_scheduler_configs
    reported = {
        "epochs": trainer.max_epochs,
        "optimizers": [type(optimizer).__name__ for optimizer in trainer.optimizers],
        "schedulers": [type(config.scheduler).__name__ for config in configs],
        "settings of the schedulers": [
            [_settings_of(config.scheduler), config.interval, config.frequency] for config in configs
        ],
        "parameters in the groups of the optimizers": [len(group["params"]) for group in groups],
    }
    options: dict[str, object] = {name: [group.get(name) for group in groups] for name in names}
    if len(groups) == 1:
        options = {name: groups[0][name] for name in names}
    return _texts(reported, "{}") | _texts(options, "{} of the optimizers")


def _settings_of(scheduler: object) -> dict[str, object]:
    held = {name: value for name, value in vars(scheduler).items() if not name.startswith("_")}
    return {name: value for name, value in held.items() if isinstance(value, bool | int | float | str | list)}


def plan_of(plan: Plan) -> dict[str, str]:
    """Return the parts of a plan and their settings, as text, by the name that a refusal calls them."""
    reported = {"copies of node state": str(len(plan.layout.copies)), "hosts": str(plan.layout.hosts)}
    for kind in ("schedule", "store", "order", "updates"):
        part = getattr(plan, kind)
        settings = {field.name: getattr(part, field.name) for field in fields(part)} if is_dataclass(part) else {}
        # Of partitions the first rank's counts, whatever the others are given.
        settings = {name: value for name, value in settings.items() if not isinstance(value, Tensor)}
        reported |= {f"{kind} of the plan": type(part).__name__} | _texts(settings, f"{type(part).__name__}({{}}=...)")
    return reported


def _texts(values: Mapping[str, object], called: str, ending: str = "") -> dict[str, str]:
    kept = {str(name): value for name, value in values.items() if not _is_free(str(name))}
    return {called.format(name) + ending: _text(value) for name, value in kept.items()}


def _is_free(name: str) -> bool:
    is_place = name.rpartition("_")[2] in _PLACES and name != "class_path"
    return name in _FREE | _OF_SPEED or name.startswith("_") or is_place


def _text(value: object, depth: int = 0) -> str:
    """Return what two ranks have alike of equal values: no addresses, no paths, and no more than a type of the rest."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return f"{value:.12g}"  # 1.0 in one recipe is 1 in another
    if isinstance(value, bool | int | Enum | None):
        return str(value)
    if isinstance(value, os.PathLike) or (isinstance(value, str) and (os.sep in value or value.endswith(".pt"))):
        return _PATH
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]} {_digest(value)}"
    if depth == _DEEPEST:
        return type(value).__qualname__
    return _text_of_several(value, depth + 1)


def _text_of_several(value: object, depth: int) -> str:
    if isinstance(value, Mapping):
        kept = {str(name): part for name, part in value.items() if not _is_free(str(name))}
        return f"{{{', '.join(f'{name}: {_text(kept[name], depth)}' for name in sorted(kept))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(part, depth) for part in value)}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_text(part, depth) for part in value))}}}"
    if isinstance(value, type) or hasattr(value, "__qualname__"):  # a class or a function
        return str(value.__qualname__)
    if type(value).__module__.partition(".")[0] == _PACKAGE and hasattr(value, "__dict__"):  # a part of a plan
        own = {name.lstrip("_"): part for name, part in vars(value).items()}
        return f"{type(value).__qualname__}{_text_of_several(own, depth)}"
    return type(value).__qualname__


def _digest(values: Tensor) -> str:
    if values.layout is not torch.strided or values.is_meta or values.numel() > _MOST_READ:
        return ""
    plain = values.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return f"{crc32(plain.flatten().view(torch.uint8).numpy().data):08x}"
