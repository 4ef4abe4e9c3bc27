"""Tasks that come back from a checkpoint: read in one way, made again from what a file may name only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from inspect import Parameter, currentframe, signature
from io import BytesIO
from pathlib import Path
from types import FrameType
from typing import IO, Any, ClassVar, TypeVar

import lightning.pytorch as pl
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.core.saving import load_hparams_from_tags_csv
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn
from typing_extensions import Self, override

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, plain, refusal, shown
from lightning_tgnn.compat.modules import MapLocation, Module, restricted_classmethod
from lightning_tgnn.files.checkpoints import WholeCheckpointIO, where_it_was
from lightning_tgnn.models.class_paths import class_path, import_path
from lightning_tgnn.trust import describes_a_class, saved_arguments

HYPER_PARAMETERS = pl.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY
_Task = TypeVar("_Task", bound=pl.LightningModule)


class RestorableTask(Module):
    """A LightningModule whose checkpoints choose nothing that runs code, see `lightning_tgnn.trust`."""

    file_may_name: ClassVar[Mapping[str, Collection[str]]] = {}
    """Arguments that stand for classes or go to them: the strings that a file may hold there. Others are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(_without_compiler)
        self.register_load_state_dict_pre_hook(_with_compiler)

    def save_hyperparameters(
        self,
        *args: object,
        ignore: Sequence[str] | str | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Save arguments as Lightning does, and of a class or function its path: checkpoints hold plain values only.

        Numbers, text and containers of other libraries become Python's own.

        Raises:
            InvalidArgumentError: An argument is no plain value, so that no reader of a checkpoint would take it.
        """
        current = currentframe()
        frame = frame or (current and current.f_back)
        super().save_hyperparameters(*args, ignore=ignore, frame=frame, logger=logger)
        for name, value in self.hparams.items():
            self.hparams[name] = _readable(f"{type(self).__name__}({name}=...)", value)
        self.keep_hyperparameters()

    @override
    @restricted_classmethod
    def load_from_checkpoint(
        cls,  # noqa: N805
        checkpoint_path: str | Path | IO,
        map_location: MapLocation = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        *,
        trust: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Return the task of a checkpoint, with its weights.

        Neither the reading nor what the file names runs code: it holds tensors and plain values, and its
        hyperparameters may name the layers and models of `lightning_tgnn.trust` and of ``file_may_name`` only.

        Args:
            checkpoint_path: A path, an address, or an open file.
            map_location: As for `torch.load`; None puts weights where they were, if there is such a device.
            hparams_file: Hyperparameters to take in place of the file's, ``.yaml`` or ``.csv``; they may name as much.
            strict: Whether the names of the weights have to be those of the task; None asks its ``strict_loading``.
            weights_only: False reads objects of other classes too, which runs code of the file's choosing.
            trust: Import and call what the hyperparameters name, as LightningCLI does.
            **kwargs: Arguments of the task in place of the file's, such as ``layer=MyLayer``.

        Raises:
            CheckpointError: The file is damaged, of another task or graph, or names what it may not.
        """
        checkpoint = WholeCheckpointIO().load_checkpoint(checkpoint_path, map_location or where_it_was, weights_only)
        saved = checkpoint.get(HYPER_PARAMETERS, {}) if hparams_file is None else _read(str(hparams_file))
        file = checkpoint_path if hparams_file is None else hparams_file
        task = task_again(cls, saved, given=kwargs, file=file, trust=trust)
        task.configure_model()
        task.on_load_checkpoint(checkpoint)
        weights = load_weights(task, checkpoint, checkpoint_path, strict)
        devices = {weight.device for weight in weights.values() if hasattr(weight, "device")}
        return task.to(devices.pop()) if len(devices) == 1 else task


def load_weights(
    task: pl.LightningModule, checkpoint: Mapping[str, Any], file: object, strict: bool | None = None
) -> dict[str, Any]:
    """Give a task the weights of a checkpoint, and return them.

    Args:
        task: With its model.
        checkpoint: The content of the file.
        file: What to call it.
        strict: Whether the names of the weights have to be those of the task; None asks its ``strict_loading``.

    Raises:
        CheckpointError: There are none, or they are of another model.
    """
    weights = checkpoint.get("state_dict")
    if not isinstance(weights, dict):
        cure = "give a checkpoint of a run"
        raise CheckpointError(refusal(str(file), "a checkpoint with weights", sorted(checkpoint), cure))
    try:
        keys = task.load_state_dict(weights, strict=task.strict_loading if strict is None else strict)
    except Exception as error:  # what torch raises on values that are no tensors is anything
        cure = "take the class that the checkpoint is of, with its arguments"
        what = f"a checkpoint with the weights of this {type(task).__name__}"
        raise CheckpointError(refusal(str(file), what, str(error), cure)) from error
    for kind, names in (("missing", keys.missing_keys), ("unexpected", keys.unexpected_keys)):
        if names:  # not strict, or an error has said so
            rank_zero_warn(f"weights of {file} that are {kind}: {', '.join(names)}")
    return weights


def task_again(
    kind: type[_Task], saved: object, *, given: Mapping[str, Any] | None = None, file: object, trust: bool = False
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


def _readable(argument: str, value: object) -> object:
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
        raise InvalidArgumentError(refusal(argument, requirement, received, cure)) from error
    return held


def _check_taken(kind: type, given: Mapping[str, Any]) -> None:
    known = signature(kind).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for name in given.keys() - known.keys():
        requirement = f"one that {kind.__name__} takes"
        raise InvalidArgumentError(refusal("argument", requirement, name, "correct its name"))


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


def _read(path: str) -> object:
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
        raise CheckpointError(refusal(path, "hyperparameters that are plain values", reason, cure)) from error


_COMPILED = "_orig_mod."
"""What `torch.compile` of a module puts before the names of its weights."""


def plain_name(name: str) -> str:
    """Return the name that a parameter has where nothing is compiled.

    >>> plain_name("model._orig_mod.embedding.weight")
    'model.embedding.weight'
    """
    return name.replace(_COMPILED, "")


def _without_compiler(task: nn.Module, weights: dict[str, Any], prefix: str, local_metadata: object) -> None:
    for name in [name for name in weights if _COMPILED in name]:
        weights[plain_name(name)] = weights.pop(name)


def _with_compiler(task: nn.Module, weights: dict[str, Any], prefix: str, *_: object) -> None:
    """Give weights the names that they have in this task, whether it or the task that saved them is compiled."""
    own = {prefix + name for name in (*dict(task.named_parameters()), *dict(task.named_buffers()))}
    held = {plain_name(name): name for name in own}
    for name in list(weights):
        known = held.get(plain_name(name), plain_name(name))
        if known != name:
            weights[known] = weights.pop(name)
