"""Processes that are started from this one, and hand back to it what they have trained."""

from __future__ import annotations

import csv
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import Process
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher, _WorkerOutput
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override

from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.comm.sent_objects import check_arrives, unshare
from lightning_tgnn.compat.signals import quiet_torch
from lightning_tgnn.files.whole import write_tensors
from lightning_tgnn.types import FULL

_Result = TypeVar("_Result")
_SECONDS_TO_END = 3.0


class ReturningLauncher(_MultiProcessingLauncher):
    """Starts a process per rank, and gives this process what a checkpoint of the trained task would hold.

    Lightning's own launcher brings back the weights of the layers that the task had before the processes started, and
    drops all others. Here the task comes back with its layers, weights and node state, and the callbacks and the
    counts of steps and epochs with theirs, so that the next processes begin with what these have trained.
    """

    _folder: str | None = None
    _started: list[Process]
    _passes_on = _is_to_end = False

    @property
    @override
    def is_interactive_compatible(self) -> bool:
        return True  # what an interactive session rules out is refused when processes start

    @override
    def launch(
        self, function: Callable[..., _Result], *args: object, trainer: pl.Trainer | None = None, **kwargs: object
    ) -> _Result:
        """Run a function in new processes; see Lightning's.

        Raises:
            InvalidArgumentError: The new processes could not import, or not run, what they are given.
        """
        with _without_saving_at_errors(trainer):
            check_arrives((args, kwargs, trainer), self._start_method)
            for logger in [] if trainer is None else trainer.loggers:
                if isinstance(logger, TensorBoardLogger | CSVLogger):
                    _ = logger.version  # chosen here, so that these processes and the next ones log to one folder
                if isinstance(logger, CSVLogger) and isinstance(logger.experiment, ExperimentWriter):
                    _go_on_writing(logger.experiment)  # on other machines than the first a logger writes nothing
            with (
                TemporaryDirectory(prefix="lightning_tgnn-") as self._folder,
                self._passing_on_sigterm(),
                quiet_torch(),
            ):
                try:
                    return super().launch(function, *args, trainer=trainer, **kwargs)
                except KeyboardInterrupt:  # which a terminal sends to all: they tell each other before they are ended
                    until = time.monotonic() + _SECONDS_TO_END
                    for process in self._started:
                        process.join(max(until - time.monotonic(), 0))
                    raise

    @property
    def procs(self) -> list[Process]:
        """The processes that have been started; Lightning sets them once all of them have."""
        return self._started

    @procs.setter
    def procs(self, started: list[Process]) -> None:
        self._started = started
        if started and self._passes_on:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            if self._is_to_end:
                self._end()

    @contextmanager
    def _passing_on_sigterm(self) -> Iterator[None]:
        """Let SIGTERM end the ranks as it does elsewhere, and this process after them."""
        self._started, self._is_to_end = [], False
        is_main = threading.current_thread() is threading.main_thread()
        self._passes_on = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if not self._passes_on:  # the user's own handler decides
            yield
            return

        def note(signum: int, frame: FrameType | None) -> None:
            self._is_to_end = True
            if self._started:
                self._end()

        signal.signal(signal.SIGTERM, note)
        # Not before the processes are there to hear of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if self._is_to_end:
                sys.exit(128 + signal.SIGTERM)

    def _end(self) -> None:
        self.kill(signal.SIGTERM)
        for process in self._started:
            process.join()
        sys.exit(128 + signal.SIGTERM)

    @override
    def _wrapping_function(self, process_idx: int, *args: Any) -> None:
        if self._passes_on:
            # Every process has inherited that the signal is blocked.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if isinstance(args[0], pl.Trainer):
            unshare(args[0])
        try:
            super()._wrapping_function(process_idx, *args)
        except (Exception, SIGTERMException) as error:
            # Lightning tells only the callbacks of the process that has started this one.
            if isinstance(args[0], pl.Trainer):
                call._interrupt(args[0], error)
            raise

    @override
    def _collect_rank_zero_results(self, trainer: pl.Trainer, results: object) -> _WorkerOutput | None:
        trained = _trained(trainer) if trainer.state.fn == TrainerFn.FITTING else None
        if self._strategy.local_rank != 0:
            return None
        if trained is not None:
            write_tensors(self._file, trained)
        best = getattr(trainer.checkpoint_callback, "best_model_path", None)
        return _WorkerOutput(best, None, trainer.state, results, self.get_extra_results(trainer))

    @override
    def _recover_results_in_main_process(self, worker_output: _WorkerOutput, trainer: pl.Trainer) -> None:
        super()._recover_results_in_main_process(worker_output, trainer)
        if self._file.exists():
            # Written by a process of ours, in a folder that nobody else may write; callbacks hold what they like.
            _take_over(torch.load(self._file, map_location="cpu", weights_only=False), trainer)

    @property
    def _file(self) -> Path:
        assert self._folder is not None
        return Path(self._folder) / "trained.pt"


def _trained(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what the fit leaves behind; all ranks have to call it."""
    held: dict[str, Any] = {
        "state_dict": trainer.strategy.lightning_module_state_dict(),
        "callbacks": call._call_callbacks_state_dict(trainer),
        "loops": trainer.fit_loop.state_dict(),
        "requires_grad": {
            name: parameter.requires_grad for name, parameter in trainer.lightning_module.named_parameters()
        },
    }
    before = getattr(trainer.strategy, "state_dict_type", FULL)
    try:
        trainer.strategy.state_dict_type = FULL  # type: ignore[attr-defined]  # all of it goes back to one process
        call._call_lightning_module_hook(trainer, "on_save_checkpoint", held)
    finally:
        trainer.strategy.state_dict_type = before  # type: ignore[attr-defined]
    # Rank 0 has the node state, and every host's first process hands back.
    return trainer.strategy.broadcast(held) if trainer.num_nodes > 1 else held


def _take_over(held: dict[str, Any], trainer: pl.Trainer) -> None:
    """Give this process's trainer and task what `_trained` returned.

    Raises:
        CheckpointError: The task has no place for the weights.
    """
    task = trainer.lightning_module
    for callback in trainer.checkpoint_callbacks:  # without its folder one forgets its best checkpoint
        if (folder := held["callbacks"].get(callback.state_key, {}).get("dirpath")) is not None:
            callback.dirpath = folder  # type: ignore[attr-defined]
    call._call_callbacks_load_state_dict(trainer, held)
    trainer.fit_loop.load_state_dict(held["loops"])
    before, task._trainer = task._trainer, None  # of an earlier fit in this process; what is resumed there is not this
    try:
        task.on_load_checkpoint(held)
    finally:
        task._trainer = before
    differing = task.load_state_dict(held["state_dict"], strict=False)
    for name, parameter in task.named_parameters():  # what callbacks of the ranks have frozen stays frozen
        parameter.requires_grad_(held["requires_grad"].get(name, parameter.requires_grad))
    if differing.unexpected_keys:
        received = f"no place for {', '.join(differing.unexpected_keys[:5])}"
        cure = "build its layers in __init__ or on_load_checkpoint, or evaluate with ckpt_path='best'"
        raise CheckpointError("model", "a task that can take back its weights", received, cure)


@contextmanager
def _without_saving_at_errors(trainer: pl.Trainer | None) -> Iterator[None]:
    """Keep this process's callbacks from saving at an error: it has trained nothing, and the ranks tell their own."""
    callbacks = [] if trainer is None else trainer.checkpoint_callbacks
    try:
        yield
    except BaseException:
        for callback in callbacks:
            vars(callback)["on_exception"] = partial(_forget, callback, "on_exception")
        raise


def _forget(held: object, name: str, *_: object) -> None:
    """Remove an attribute, and with it this function, so that the method of the class is called the next time."""
    vars(held).pop(name, None)


def _go_on_writing(writer: ExperimentWriter) -> None:
    """Let this process's writer append to a table that ranks have written.

    Each of Lightning's writers removes the table that is there when it is made, so this process makes the only one, and
    sends copies of it. It learns from the table which columns they have written.
    """
    table = Path(writer.metrics_file_path)
    if table.is_file():
        with table.open(newline="") as file:
            writer.metrics_keys = next(csv.reader(file), [])
