"""What a command leaves behind that breaks off: no folder of a run that never trained, and word of how to go on."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn.runs import checkpoints_in

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 and the number of the signal."""


class NewRunFolder(Callback):
    """Knows which folder a logger makes for a run, and removes it where the run has ended before its first batch.

    Args:
        logger: The first of the Trainer's; only those that keep runs in folders of a root have one.
    """

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._root = None if getattr(logger, "root_dir", None) is None else Path(logger.root_dir)
        self._before = self._found()
        self._began = False

    def _found(self) -> set[Path]:
        return set(self._root.iterdir()) if self._root is not None and self._root.is_dir() else set()

    def on_train_batch_end(self, *_: Any) -> None:
        """Note that there is something to keep."""
        self._began = True

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Note that there is something to keep."""
        self._began = self._began or not trainer.sanity_checking

    def on_test_batch_end(self, *_: Any) -> None:
        """Note that there is something to keep."""
        self._began = True

    @rank_zero_only
    def remove_if_unused(self) -> None:
        """Remove what the logger has made since, and folders above that hold nothing else."""
        if self._began or self._root is None:
            return
        new = self._found() - self._before
        own = Path(self._logger.log_dir) if new else None  # asked for earlier, it would fix the number of the run
        for folder in new:
            if own is not None and own.is_relative_to(folder) and not checkpoints_in(folder / "checkpoints"):
                shutil.rmtree(folder, ignore_errors=True)
        if not self._before:
            with suppress(OSError):  # of others, or not there
                self._root.rmdir()
                self._root.parent.rmdir()


def how_to_go_on(words: Sequence[str] | None, trainer: pl.Trainer) -> str:
    """Return the line for somebody who has interrupted a run.

    Args:
        words: The command without its name; None where there is no command to repeat.
        trainer: Of the run.
    """
    saved = [path for callback in trainer.checkpoint_callbacks for path in _saved_by(callback)]
    if saved:
        path: str | None = str(max(saved, key=lambda path: path.stat().st_mtime_ns))
    else:
        path = None if trainer.ckpt_path is None else str(trainer.ckpt_path)
    if words is None:
        return (
            "lightning-tgnn: interrupted, without a checkpoint so far"
            if path is None
            else f"lightning-tgnn: interrupted; go on with {path}"
        )
    command = shlex.join(
        ["lightning-tgnn", *_without_checkpoint(words), *(() if path is None else ("--ckpt_path", path))]
    )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        command = f"{command} under torchrun as before"
    if path is None:
        return f"lightning-tgnn: interrupted before the first checkpoint; start anew with: {command}"
    return f"lightning-tgnn: interrupted; go on with: {command}"


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is what ended a run; Lightning makes an exit of its own of it."""
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt)
    )


def leave(line: str, *, ranks: int = 1) -> NoReturn:
    """End the process with a line on standard error, from the first rank, and `INTERRUPTED`.

    Args:
        line: What to say.
        ranks: Of the run. The others may have gone in the middle of an exchange, and gloo aborts where Python takes
            down what is left of it.
    """
    _say(line)
    if ranks == 1:
        sys.exit(INTERRUPTED)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


@rank_zero_only
def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _saved_by(callback: Any) -> list[Path]:
    if not isinstance(callback, ModelCheckpoint) or not callback.dirpath:
        return []
    return checkpoints_in(Path(callback.dirpath))


def _without_checkpoint(words: Sequence[str]) -> list[str]:
    """Return a command without its ``--ckpt_path``."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == "--ckpt_path":
            skip = True
        elif not word.startswith("--ckpt_path="):
            kept.append(word)
    return kept
