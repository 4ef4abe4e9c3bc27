"""How a task comes back from a checkpoint, and what contradicts the checkpoint that it resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from inspect import Parameter, signature
from io import BytesIO
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.core.saving import load_hparams_from_tags_csv
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, plain, shown
from lightning_tgnn.models.class_paths import class_path, import_path
from lightning_tgnn.trust import describes_a_class, saved_arguments
from lightning_tgnn.types import KnownData

HYPER_PARAMETERS = pl.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY
_Task = TypeVar("_Task", bound=pl.LightningModule)


def load_weights(
    task: pl.LightningModule, checkpoint: Mapping[str, Any], file: object, strict: bool | None = None
) -> dict[str, Any]:
    """Give a task the weights of a checkpoint, and return them.

    Args:
        task: With its model.
        checkpoint: The content of the file.
        file: What to call it.
        strict: Whether the names of the weights have to equal the task's names; None asks its ``strict_loading``.

    Raises:
        CheckpointError: There are none, or they are of another model.
    """
    weights = checkpoint.get("state_dict")
    if not isinstance(weights, dict):
        raise CheckpointError(str(file), "a checkpoint with weights", sorted(checkpoint), "give a checkpoint of a run")
    try:
        keys = task.load_state_dict(weights, strict=task.strict_loading if strict is None else strict)
    except Exception as error:  # what torch raises on values that are no tensors is anything
        cure = "take the class that the checkpoint is of, with its arguments"
        what = f"a checkpoint with the weights of this {type(task).__name__}"
        raise CheckpointError(str(file), what, str(error), cure) from error
    for kind, names in (("missing", keys.missing_keys), ("unexpected", keys.unexpected_keys)):
        if names:  # not strict, or an error has reported it
            rank_zero_warn(f"weights of {file} that are {kind}: {', '.join(names)}")
    return weights


def task_again(
    kind: type[_Task], saved: object, *, given: Mapping[str, Any] | None = None, file: object, trust: bool
) -> _Task:
    """Return a new task with the hyperparameters of a file, those that the caller gives aside.

    Args:
        kind: Its class.
        saved: The file's hyperparameters.
        given: The caller's. A class that the file names too gets the plain arguments that the file has for it.
        file: What to call the file.
        trust: Make the objects that the file describes.

    Raises:
        CheckpointError: The file names what it may not.
        InvalidArgumentError: The task does not take an argument that the caller gives.
    """
    given = dict(given or {})
    _check_taken(kind, given)
    if isinstance(saved, Mapping):
        given = {name: _with_saved_arguments(value, saved.get(name)) for name, value in given.items()}
    arguments = saved_arguments(kind, saved, given=given, file=file, trust=trust)
    own = {name: value for name, value in arguments.items() if name not in given}
    if describes_a_class(own):  # which is trusted
        own = _made(kind, own, set(given))
    return kind(**{**own, **given})


def readable(argument: str, value: object) -> object:
    """Return a hyperparameter as the readers of checkpoints take it.

    Raises:
        InvalidArgumentError: A reader of checkpoints would refuse the value.
    """
    held = plain(class_path(value) if callable(value) else value)
    try:
        written = BytesIO()
        torch.save(held, written)
        written.seek(0)
        torch.load(written, weights_only=True)
    except Exception as error:  # what cannot be written raises anything
        received = f"{shown(repr(value))} ({type(value).__name__})"
        cure = "give plain values, or leave it out by self.save_hyperparameters(ignore=[...])"
        requirement = "numbers, text, tensors, or lists and dicts of them, which a checkpoint gives back"
        raise InvalidArgumentError(argument, requirement, received, cure) from error
    return held


def _check_taken(kind: type, given: Mapping[str, Any]) -> None:
    known = signature(kind).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for name in given.keys() - known.keys():
        raise InvalidArgumentError("argument", f"one that {kind.__name__} takes", name, "correct its name")


def _with_saved_arguments(given: object, saved: object) -> object:
    """Return a class that the caller gives with the arguments that the file has for a class of that path."""
    if not isinstance(given, type) or not isinstance(saved, Mapping) or saved.get("class_path") != import_path(given):
        return given
    arguments = saved.get("init_args") or {}
    if not isinstance(arguments, Mapping) or describes_a_class(arguments):
        return given
    return partial(given, **arguments)


def _made(kind: type, arguments: Mapping[str, Any], given: set[str]) -> dict[str, Any]:
    """Return arguments with the objects that they describe, as LightningCLI makes them."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "task", skip=given, instantiate=False, fail_untyped=False)
    made = parser.instantiate_classes(parser.parse_object({"task": dict(arguments)}))
    return {name: made.task[name] for name in arguments}


class _PlainLoader(yaml.SafeLoader):
    """Reads plain values only, and the tuples that loggers write among them."""


_PlainLoader.add_constructor("tag:yaml.org,2002:python/tuple", lambda loader, node: loader.construct_sequence(node))


def read_hyperparameters(path: str) -> object:
    """Return the hyperparameters that a logger has written; nothing in the file is run.

    Raises:
        CheckpointError: The file is damaged, or holds more than plain values.
    """
    if path.endswith(".csv"):
        return load_hparams_from_tags_csv(path)
    try:
        with open(path, encoding="utf-8") as file:
            return yaml.load(file, _PlainLoader)
    except (ValueError, yaml.YAMLError) as error:
        cure = "give the hparams.yaml of a run, or the arguments themselves"
        reason = str(error).partition("\n")[0]
        raise CheckpointError(path, "hyperparameters that are plain values", reason, cure) from error


_COMPILED = "_orig_mod."
"""What `torch.compile` of a module puts before the names of its weights."""


def plain_name(name: str) -> str:
    """Return the name that a parameter has where nothing is compiled.

    >>> plain_name("model._orig_mod.embedding.weight")
    'model.embedding.weight'
    """
    return name.replace(_COMPILED, "")


def without_compiler(task: nn.Module, weights: dict[str, Any], prefix: str, local_metadata: object) -> None:
    """Give weights the names that they have where nothing is compiled."""
    for name in [name for name in weights if _COMPILED in name]:
        weights[plain_name(name)] = weights.pop(name)


def with_compiler(task: nn.Module, weights: dict[str, Any], prefix: str, *_: object) -> None:
    """Give weights the names that they have in this task, whether it or the task that saved them is compiled."""
    own = {prefix + name for name in (*dict(task.named_parameters()), *dict(task.named_buffers()))}
    held = {plain_name(name): name for name in own}
    for name in list(weights):
        known = held.get(plain_name(name), plain_name(name))
        if known != name:
            weights[known] = weights.pop(name)


CURE = "give that, or run fit without a checkpoint to train anew"
# Arguments of DataModules that came after checkpoints were made, with what these were trained with.
BEFORE = {"embed_at": "event", "standardize_features": False, "protocol": None}
ARGUMENTS_BEFORE = {"dropout_on_sums": False}


def check_same_data(saved: Mapping[str, Any], data: KnownData, *, training: bool) -> None:
    """Refuse a DataModule that contradicts a checkpoint.

    Args:
        saved: Its settings in the checkpoint.
        data: The one at hand.
        training: Whether it is trained on, rather than shown.

    Raises:
        CheckpointError: A setting of the DataModule differs from the checkpoint's.
    """
    check_same({**BEFORE, **saved}, data.fixed_settings(training=training), f"{type(data).__name__}({{}}=...)")


def check_same(
    saved: Mapping[str, Any], given: Mapping[str, Any], argument: str, may_change: frozenset[str] = frozenset()
) -> list[str]:
    """Refuse what contradicts a checkpoint.

    Args:
        saved: Settings in the checkpoint.
        given: Settings now; those that only one of the two has do not count, nor names with ``_`` at their head.
        argument: How a setting is called in the refusal, with ``{}`` for its name.
        may_change: Settings that may differ.

    Returns:
        A line for each setting of these that does.

    Raises:
        CheckpointError: A setting outside ``may_change`` differs.
    """
    names = differing(saved, given)
    for name in names:
        if name not in may_change:
            raise CheckpointError(argument.format(name), f"{saved[name]!r}, as in the checkpoint", given[name], CURE)
    return [f"{name}: {saved[name]!r} in the checkpoint, {given[name]!r} from here on" for name in names]


def differing(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that differ; see `check_same`."""
    return [name for name in saved if not name.startswith("_") and name in given and _differ(saved[name], given[name])]


def task_name(kind: type) -> str:
    """Return what a checkpoint calls a task: a class of this package by its name, another by its import path."""
    package = __name__.partition(".")[0]
    return kind.__name__ if kind.__module__.startswith(f"{package}.") else import_path(kind)


def _differ(saved: object, given: object) -> bool:
    saved, given = _as_in_yaml(saved), _as_in_yaml(given)
    if isinstance(saved, dict | str) and isinstance(given, dict | str) and type(saved) is not type(given):
        return False  # a class by its path and arguments from a recipe, by its name from Python
    return saved != given


def _as_in_yaml(value: object) -> object:
    if isinstance(value, dict):
        return {name: _as_in_yaml(held) for name, held in value.items()}
    return [_as_in_yaml(held) for held in value] if isinstance(value, list | tuple) else value


def kinds_below(kind: type) -> Iterator[type]:
    """Yield the classes that descend from one."""
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from kinds_below(child)
