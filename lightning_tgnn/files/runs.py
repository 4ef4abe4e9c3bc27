"""Where the runs of a logger keep their checkpoints, the last and the best, and how later ones name the best."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.checkpoint_folder import is_checkpoint
from lightning_tgnn.files.checkpoints import NO_PARTS, WholeCheckpointIO

_PATHS = ("best_model_path", "kth_best_model_path")
_RUN_NAMES = 3  # of a path: version, checkpoints, file


def deciding_callback(trainer: pl.Trainer) -> ModelCheckpoint | None:
    """Return the first callback that saves the best by a figure, or else the first that saves; None without any."""
    saving = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    return next((callback for callback in saving if callback.monitor), saving[0] if saving else None)


def best_of(checkpoint: dict[str, Any], path: Path) -> Path | None:
    """Return the best checkpoint so far of the run that has saved ``checkpoint``; None where no figure decided.

    Args:
        checkpoint: Its content.
        path: Where it was read from.

    Raises:
        FileNotFoundError: The best one has gone.
    """
    for state in checkpoint.get("callbacks", {}).values():
        if isinstance(state, dict) and state.get("monitor") and state.get("best_model_path"):
            recorded = state["best_model_path"]
            found = _find_again(recorded, path)
            if found is None:
                raise FileNotFoundError(f"the best checkpoint, {recorded} as {path} has it, is not there any more")
            return Path(found)
    return None


def carry_best(checkpoint: dict[str, Any], trainer: pl.Trainer) -> None:
    """Let a run that resumes in a new folder know the best so far as if it had found it itself.

    Lightning's `ModelCheckpoint` looks for the best anew in another folder. All ranks call this. Where a run is only
    evaluated, its callbacks keep what they know.

    Args:
        checkpoint: About to be restored; the states of its callbacks are changed.
        trainer: Goes on with it.
    """
    states = checkpoint.get("callbacks", {})
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint) or callback.state_key not in states:
            continue
        state = states.pop(callback.state_key)
        if trainer.state.fn != "fit":
            continue
        scores = state.get("best_k_models", {})
        names = {*scores, *(state.get(name, "") for name in _PATHS)} - {""}
        place = {"": "", **_places_on_first_rank(sorted(names), trainer)}
        gone = sorted(name for name in names if place[name] is None)
        if gone and callback.monitor:
            rank_zero_warn(f"{gone[0]} is not there any more: the best {callback.monitor} is looked for anew")
            continue
        moved = {name: place[state.get(name, "")] or state.get(name, "") for name in _PATHS}
        moved_scores = {place[name] or name: score for name, score in scores.items()}
        states[callback.state_key] = {
            **state,
            **moved,
            "best_k_models": moved_scores,
            "dirpath": callback.dirpath,
        }


def _places_on_first_rank(recorded: list[str], trainer: pl.Trainer) -> dict[str, str | None]:
    """Return where files lie now, None for those that have gone: the same on all ranks."""
    beside = Path(trainer.ckpt_path or "")
    found = {name: _find_again(name, beside) for name in recorded} if trainer.is_global_zero else {}
    return trainer.strategy.broadcast(found)


def _find_again(recorded: str, beside: Path) -> str | None:
    """Return where a file lies that a checkpoint names: there, or where both were moved together."""
    names = Path(recorded).parts
    places = [Path(recorded), beside.parent / names[-1]]
    for above, length in enumerate((2, _RUN_NAMES, _RUN_NAMES + 1), 1):  # a slash in a name makes a folder more
        for folder in beside.parents[above : above + 2] if len(names) >= length else ():
            places.append(folder.joinpath(*names[-length:]))
    return next((str(place) for place in places if is_checkpoint(place)), None)


WORDS = ("last", "best")
"""Words that may stand for the path of a checkpoint."""
LAST_OR_NEW = "last-or-new"
"""The last checkpoint of a fit, or none where there is none: one command that can be started again and again."""


class NoCheckpointError(InvalidArgumentError):
    """No run has the checkpoint that is asked for."""


_CONFIG = "config.yaml"
OF_FIT = "test_after_fit"
"""An option of no other subcommand; what others have saved of their settings says None."""
_CURE = "give the path of a checkpoint, or run fit without one to train anew"


@dataclass(frozen=True)
class RunFolders:
    """Folders in which a command keeps its runs.

    Attributes:
        root: Holds a folder for each run, such as ``version_3``; None where there is no logger.
        version: The only one that counts; None for all.
        sub_dir: Folder of the logs in the folder of a run.
        shared: Folders in which checkpoints of all runs lie.
    """

    root: Path | None
    version: str | None = None
    sub_dir: str = ""
    shared: tuple[Path, ...] = field(default=())

    @classmethod
    def from_trainer(cls, settings: Namespace) -> RunFolders:
        """Return the folders that the settings of a Trainer mean.

        Args:
            settings: Arguments of `lightning.pytorch.Trainer`, classes as ``class_path`` and ``init_args``.

        Raises:
            InvalidArgumentError: The logger is of a kind that does not keep runs in folders.
        """
        callbacks = settings.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
        named = (_arguments(callback).get("dirpath") for callback in callbacks)
        shared = tuple(Path(folder).expanduser() for folder in named if folder)
        default = Path(settings.get("default_root_dir") or ".").expanduser()
        logger = settings.get("logger")
        logger = logger[0] if isinstance(logger, list) and logger else logger
        if logger is False or logger == []:
            return cls(None, shared=(*shared, default / "checkpoints"))
        if logger is None or logger is True:
            return cls(default / "lightning_logs", shared=shared)
        _check_kind(logger["class_path"])
        chosen = _arguments(logger)
        version = chosen.get("version")
        return cls(
            Path(chosen["save_dir"], chosen.get("name") or "").expanduser(),
            f"version_{version}" if isinstance(version, int) else version,
            chosen.get("sub_dir") or "",
            shared,
        )

    def find(self, word: str) -> Path:
        """Return the last or the best checkpoint of the newest run.

        A run that resumes another and has saved nothing yet stands for that other one; runs that never trained do
        not count.

        Args:
            word: ``"last"`` or ``"best"``.

        Raises:
            InvalidArgumentError: No run has such a checkpoint; the message says where it was looked for.
        """
        last = self._last(word)
        if word == "last":
            return last
        try:
            best = best_of(WholeCheckpointIO().open_checkpoint(last, checked=NO_PARTS), last)
        except FileNotFoundError as error:
            raise _nowhere(word, str(error)) from error
        if best is None:
            raise _nowhere(word, f"{last} names none: its run had no ModelCheckpoint with a monitor")
        return best

    def _last(self, word: str) -> Path:
        saved = [path for folder in self.shared for path in checkpoints_in(folder)]
        for run in self._newest_first():
            own = checkpoints_in(run / "checkpoints")
            saved += own
            if own and self.version is None:
                break
            written = run / self.sub_dir / _CONFIG
            settings = _settings_of(written)
            if settings.get(OF_FIT) is None:
                continue  # it ended before it began, or was an evaluation
            if any(path.stat().st_mtime_ns >= written.stat().st_mtime_ns for path in saved):
                break  # else they are of another run, which has kept them in the same folder
            before = settings.get("ckpt_path")
            if before is None and saved:
                newer = f"{written} has been written after {max(saved, key=_age)}, the latest checkpoint there is"
                raise _nowhere(word, f"{newer}: its run has none yet, unless these files have been copied")
            if before is None:
                raise _nowhere(word, f"the newest run, {run}, has ended before its first checkpoint")
            if not is_checkpoint(before):
                raise _nowhere(word, f"the newest run, {run}, resumed from {before}, which is not there any more")
            return Path(before)
        if not saved:
            root = [] if self.root is None else [f"{self.root / (self.version or 'version_*')}/checkpoints"]
            raise _nowhere(word, f"there is no checkpoint in {' or '.join([*root, *map(str, self.shared)])}")
        return max(saved, key=_age)

    def _newest_first(self) -> Iterator[Path]:
        if self.root is None:
            return
        if self.version is not None:
            yield self.root / self.version
            return
        numbered = [path for path in self.root.glob("version_*") if re.fullmatch(r"version_\d+", path.name)]
        yield from sorted(numbered, key=lambda run: int(run.name.removeprefix("version_")), reverse=True)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the one saved last at the end."""
    # In folders below as well: a slash in the name of a metric, such as {val/ap}, makes one.
    return sorted((path for path in folder.expanduser().rglob("*.ckpt") if is_checkpoint(path)), key=_age)


def class_at(class_path: str) -> type:
    """Return the class that a recipe names."""
    module, _, name = class_path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _age(path: Path) -> tuple[int, bool]:
    # Of two that were saved at once, Lightning's `last` is the later one.
    return path.stat().st_mtime_ns, path.name.startswith("last")


def _arguments(configured: object) -> Mapping[str, Any]:
    """Return the arguments of a class that is given by its path."""
    return (configured.get("init_args") if isinstance(configured, (Mapping, Namespace)) else None) or {}


def _check_kind(class_path: str) -> None:
    if not issubclass(class_at(class_path), (TensorBoardLogger, CSVLogger)):
        cure = "give the path of a checkpoint"
        requirement = "a path with a logger other than TensorBoardLogger and CSVLogger"
        raise InvalidArgumentError("ckpt_path", requirement, f"'last' or 'best' with {class_path}", cure)


def _settings_of(path: Path) -> dict[str, Any]:
    """Return the settings that a run has written down, nothing where it has not come so far."""
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # cut off while it was written
        return {}
    return read if isinstance(read, dict) else {}


def _nowhere(word: str, where: str) -> NoCheckpointError:
    return NoCheckpointError("ckpt_path", "the path of a checkpoint", word, f"{where}; {_CURE}")
