"""After a command breaks off: removes the folder of a run that never trained, and says how to resume."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn.comm import is_interrupt
from lightning_tgnn.commands import INTERRUPTED
from lightning_tgnn.compat.command_line import MultiProcessingLauncher
from lightning_tgnn.files.runs import checkpoints_in
from lightning_tgnn.files.unfinished import remove_unfinished

_LINE = "lightning-tgnn: interrupted"


class RunWatch(Callback):
    """Knows what a run has made since it was set up: its folder, and the checkpoints in it.

    Args:
        trainer: Of the run. Of its loggers the first one counts, where it keeps runs in folders of a root.
        ckpt_path: The checkpoint from which the run resumes; None for none.
    """

    def __init__(self, trainer: pl.Trainer, ckpt_path: str | None) -> None:
        self._ckpt_path = ckpt_path
        logger = trainer.logger
        self._logger = logger if isinstance(logger, TensorBoardLogger | CSVLogger) else None
        self._started = time.time()
        self._before = self._folders()
        for folder in self._before:
            remove_unfinished(folder / "checkpoints")
        self._began = False

    def _folders(self) -> set[Path]:
        root = None if self._logger is None else Path(self._logger.root_dir).expanduser()
        return set(root.iterdir()) if root is not None and root.is_dir() else set()

    def on_train_batch_end(self, *_: object) -> None:
        """Note that there is something to keep."""
        self._began = True

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        """Note that there is something to keep."""
        self._began = self._began or not trainer.sanity_checking

    def on_test_batch_end(self, *_: object) -> None:
        """Note that there is something to keep."""
        self._began = True

    @rank_zero_only
    def remove_unused_folder(self, trainer: pl.Trainer) -> None:
        """Remove the folder of a run that has ended before its first batch, and folders above that hold nothing else.

        Not where other processes trained the batches, which have started from a copy of this callback.
        """
        if self._began or self._logger is None or isinstance(trainer.strategy.launcher, MultiProcessingLauncher):
            return
        new = self._folders() - self._before
        # Asked for earlier, it would fix the number of the run.
        own = Path(self._logger.log_dir).expanduser() if new else Path()
        for folder in new:
            has_more = checkpoints_in(folder / "checkpoints") or _is_shared(folder, trainer)
            if own.is_relative_to(folder) and not has_more:
                shutil.rmtree(folder, ignore_errors=True)
        if new and not self._before:
            with suppress(OSError):  # they hold something else
                Path(self._logger.root_dir).expanduser().rmdir()
                Path(self._logger.save_dir).expanduser().rmdir()

    def how_to_resume(self, words: Sequence[str] | None, trainer: pl.Trainer) -> str:
        """Return the line for somebody who has interrupted the run.

        Args:
            words: The command without its name; None where there is no command to repeat.
            trainer: Of the run.
        """
        folders = {str(getattr(callback, "dirpath", None) or "") for callback in trainer.checkpoint_callbacks} - {""}
        paths = [path for folder in folders for path in checkpoints_in(Path(folder))]
        saved = [path for path in paths if path.stat().st_mtime >= self._started]
        path = max(saved, key=lambda path: path.stat().st_mtime_ns) if saved else self._ckpt_path
        if words is None:
            return f"{_LINE}; resume with {path}" if path else f"{_LINE} before the first checkpoint"
        resume = ["--ckpt_path", str(path)] if path else []
        command = shlex.join(["lightning-tgnn", *_without_checkpoint(words), *resume])
        if "TORCHELASTIC_RUN_ID" in os.environ:
            command = f"{command}, under torchrun as before"
        if path is None:
            return f"{_LINE} before the first checkpoint; start anew with: {command}"
        return f"{_LINE}; resume with: {command}"


def _is_shared(folder: Path, trainer: pl.Trainer) -> bool:
    """Whether another process writes into the folder of a run, too, as far as its files say so."""
    own = f".{socket.gethostname()}.{os.getpid()}."  # as TensorBoard names its files
    if any(own not in path.name for path in folder.rglob("*tfevents*")):
        return True
    return not any(isinstance(one, CSVLogger) for one in trainer.loggers) and any(folder.rglob("metrics.csv"))


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is what ended a run, here or on another rank; Lightning makes an exit of its own of it."""
    reason = error.__context__ if isinstance(error, SystemExit) else error
    return reason is not None and is_interrupt(reason)


def leave(line: str = _LINE, *, ranks: int = 1) -> NoReturn:
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
