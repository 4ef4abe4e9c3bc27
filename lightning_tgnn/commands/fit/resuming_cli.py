"""LightningCLI that finds the checkpoint of a run, refuses what contradicts it, and says how to resume after Ctrl-C."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, SaveConfigCallback
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

import lightning_tgnn.tasks as tasks
from lightning_tgnn.checks import CheckpointError, did_you_mean
from lightning_tgnn.commands.fit.broken_off import RunWatch, leave, was_interrupted
from lightning_tgnn.compat.command_line import CommandLine
from lightning_tgnn.files.checkpoint_folder import is_checkpoint
from lightning_tgnn.files.checkpoints import NO_PARTS, WholeCheckpointIO
from lightning_tgnn.files.runs import (
    LAST_OR_NEW,
    OF_FIT,
    WORDS,
    NoCheckpointError,
    RunFolders,
    checkpoints_in,
    class_at,
)
from lightning_tgnn.tasks.restoring import CURE, HYPER_PARAMETERS, check_same
from lightning_tgnn.tasks.task import Task
from lightning_tgnn.tasks.training_options import NOT_SAVED
from lightning_tgnn.trust import allowed_names, check_value, saved_arguments, saved_class

_OF_LIGHTNING = ("hpc", "registry")  # what it looks up itself; the second may continue with a name


class ResumingCLI(CommandLine):
    """Takes ``last`` and ``best`` for a checkpoint, and settings beside it that it does not fix."""

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments, and keep them: a checkpoint will put its own in their place."""
        super().parse_arguments(parser, args)
        self._words = sys.argv[1:] if args is None else args
        if self.config["subcommand"] != "fit":
            self.config[self.config["subcommand"]][OF_FIT] = None

    def take_checkpoint(self) -> None:
        """Find the checkpoint, and take the settings of the model from it that are not given beside it."""
        chosen = self.config[self.config["subcommand"]]
        word = chosen.get("ckpt_path")
        if word == LAST_OR_NEW and self.config["subcommand"] == "fit":
            word = "last"
            try:
                RunFolders.from_trainer(chosen["trainer"]).find(word)
            except NoCheckpointError:
                rank_zero_info("ckpt_path: there is no checkpoint to resume from; a new run begins")
                chosen["ckpt_path"] = word = None
        if word in WORDS:
            chosen["ckpt_path"] = str(RunFolders.from_trainer(chosen["trainer"]).find(word))
            rank_zero_info(f"ckpt_path: {chosen['ckpt_path']} is the {word} checkpoint")
        path = chosen.get("ckpt_path")
        if path and is_checkpoint(path):
            self._take_saved_task(path)
            self._keep_given_settings(self.config[self.config["subcommand"]]["model"])
        elif path and not (path.startswith(_OF_LIGHTNING) or "://" in path or Path(path).expanduser().exists()):
            cure = did_you_mean(path, WORDS) or "give the path of one, 'last' or 'best'"
            raise CheckpointError("ckpt_path", "a checkpoint that is there", path, cure)

    def _take_saved_task(self, path: str) -> None:
        """Take the task's arguments from a checkpoint, as LightningCLI does, but only what it may name."""
        options = self.config[self.config["subcommand"]]
        # What has just been parsed is right: to check it again takes as long as to write it.
        plain = {"skip_link_targets": False, "skip_none": False, "skip_validation": True, "format": "yaml"}
        dumped = self.parser.dump(self.config, **plain)
        chosen = yaml.safe_load(dumped)[self.config["subcommand"]]["model"] or {}
        held = WholeCheckpointIO().open_checkpoint(path, checked=NO_PARTS)
        model = saved_task(held, chosen, file=path, trust=options["trust"])
        if model is None:
            return
        if model["class_path"] != chosen.get("class_path"):
            options.pop("model")  # arguments of another class
        try:
            self.config = self.parser.parse_object({self.config["subcommand"]: {"model": model}}, self.config)
        except SystemExit:
            sys.stderr.write(f"The hyperparameters in {path} do not fit the task.\n")
            raise

    def _keep_given_settings(self, saved: Namespace) -> None:
        """Put those settings of the model back that were given, not only by default.

        Args:
            saved: The class and settings in the checkpoint.

        Raises:
            CheckpointError: A given class or setting differs from the checkpoint's.
        """
        words = self._words
        parsed = (
            self.parser.parse_args(words, defaults=False)
            if isinstance(words, list)
            else self.parser.parse_object(words, defaults=False)
        )
        given = parsed[self.config["subcommand"]].get("model")
        if given is None:
            return
        if given["class_path"] != saved["class_path"]:
            raise CheckpointError("--model", f"{saved['class_path']}, as in the checkpoint", given["class_path"], CURE)
        arguments = _plain(given.get("init_args"))
        kind = class_at(saved["class_path"])
        may_change = kind.may_change if issubclass(kind, Task) else frozenset(arguments)
        for place in ("init_args", "dict_kwargs"):
            held = saved.get(place)
            check_same(_plain(held), arguments, "--model.{}", may_change)
            for name in arguments.keys() & _plain(held).keys():
                held[name] = given["init_args"][name]

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Return the trainer, watched."""
        trainer = super().instantiate_trainer(**kwargs)
        path = self.chosen("ckpt_path")
        self._watch = RunWatch(trainer, path)
        trainer.callbacks[:0] = [self._watch, SameCheckpoint(path)]  # type: ignore[attr-defined]
        return trainer

    def run_subcommand(self, subcommand: str) -> None:
        """Run a subcommand, and say how to resume where Ctrl-C has ended it."""
        try:
            super().run_subcommand(subcommand)
        except BaseException as error:
            self._watch.remove_unused_folder(self.trainer)
            if not was_interrupted(error):
                raise
            words = self._words if isinstance(self._words, list) else None
            said = [self._watch.how_to_resume(words, self.trainer)] if subcommand == "fit" else []
            leave(*said, ranks=self.trainer.world_size)


class RunSettings(SaveConfigCallback):
    """Writes the settings of a run into its folder, and over nothing that a user has written.

    Without a logger, or with one that has no folder for each run, that may be the working directory.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Write them, on the first rank."""
        place = Path(trainer.log_dir or ".", self.config_filename).resolve()  # asked for on all ranks
        given = [Path(str(path)).resolve() for path in self.config.get("config") or []]
        shared = [Path(folder).resolve() for folder in (".", trainer.default_root_dir)]
        there = next(folder for folder in place.parents if folder.exists())
        why = None
        if place.exists() and (place in given or place.parent in shared):
            why = "is there already"
        elif place.parent in shared and not os.access(there, os.W_OK):
            why = "cannot be written"
        if trainer.strategy.broadcast(why) is None:
            anew = stage == "fit" and self.config.get("ckpt_path") is None
            run = place.parents[len(Path(getattr(trainer.logger, "sub_dir", None) or "").parts)]
            if anew and place.exists() and checkpoints_in(run / "checkpoints"):
                rank_zero_warn(
                    f"{run} has the checkpoints of an earlier run: the logs and the report of both lie in one"
                    " folder, and what this run saves comes beside those checkpoints or in their place; give the logger"
                    " another version"
                )
            super().setup(trainer, pl_module, stage)
        else:
            rank_zero_info(f"the settings of this run are not written: {place} {why}")


class SameCheckpoint(Callback):
    """Refuses ranks that resume from different checkpoints.

    Args:
        path: What this rank has found; None for none.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Compare with the first rank."""
        path = trainer.strategy.broadcast(self._path)
        if path != self._path:
            cure = "give its path, and keep runs in a folder that all machines see"
            raise CheckpointError("ckpt_path", f"{path} as on the first rank", self._path, cure)


def _plain(settings: Namespace | Mapping[str, Any] | None) -> dict[str, Any]:
    return settings.as_dict() if isinstance(settings, Namespace) else dict(settings or {})


_TASKS: dict[str, type] = {
    **tasks.TASKS_OF_EVENTS,
    **tasks.TASKS_OF_SNAPSHOTS,
    "NodeClassification": tasks.NodeClassification,
}
_PATHS = {
    path: kind
    for name, kind in _TASKS.items()
    for path in (f"lightning_tgnn.{name}", f"lightning_tgnn.tasks.{name}", f"{kind.__module__}.{name}")
}


def saved_task(
    checkpoint: Mapping[str, Any], chosen: Mapping[str, Any], *, file: object, trust: bool = False
) -> dict[str, Any] | None:
    """Return the class and the arguments that a checkpoint has for its task; None if it has none.

    A class that is none of this package, and what stands for a class, has to be what the command was given too.

    Args:
        checkpoint: What the file holds.
        chosen: Class and arguments that the command was given, or has by default.
        file: What to call the file.
        trust: Take whatever the file names.

    Raises:
        CheckpointError: The file names what it may not.
    """
    saved = checkpoint.get(HYPER_PARAMETERS)
    if not saved:
        return None
    if isinstance(saved, Mapping):  # what no checkpoint of ours holds, and the parser would import
        saved = {name: value for name, value in saved.items() if name not in NOT_SAVED}
    given = {**(chosen.get("init_args") or {}), **(chosen.get("dict_kwargs") or {})}
    given_class = chosen.get("class_path")
    path = _path_of(checkpoint, saved, given_class)
    kind = saved_class(path, _PATHS, argument="model", file=file, trust=trust or path == given_class)
    known = saved if isinstance(saved, Mapping) else {}
    equal = {name for name, value in known.items() if name in given and repr(given[name]) == repr(value)}
    arguments = saved_arguments(kind, saved, vouched=equal, file=file, trust=trust)
    if not trust and path not in _PATHS:  # what its strings mean nobody here knows, and the parser imports some
        words = allowed_names(kind)
        for name in arguments.keys() - equal:
            check_value(name, arguments[name], words.get(name, ()), file)
    named = inspect.signature(kind).parameters
    config: dict[str, Any] = {"class_path": path, "init_args": {}}
    for name, value in arguments.items():
        config.setdefault("init_args" if name in named else "dict_kwargs", {})[name] = value
    return config


def _path_of(checkpoint: Mapping[str, Any], saved: object, given: str | None) -> object:
    """Return the path of the task's class; a run from Python keeps no path: the path of our class of that name."""
    if isinstance(saved, Mapping) and "_class_path" in saved:
        return saved["_class_path"]
    own = checkpoint.get("lightning_tgnn")
    own = own if isinstance(own, Mapping) else {}
    name = "NodeClassification" if "graph" in own else own.get("task")
    return f"lightning_tgnn.tasks.{name}" if isinstance(name, str) and name in _TASKS else given
