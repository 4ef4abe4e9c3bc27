"""Signals that end a run: SIGTERM ends all ranks at one step; Ctrl-C the first, which ends the others.

At the one with which SLURM says that it is about to end the job all ranks save a checkpoint at one step.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from subprocess import Popen, TimeoutExpired
from types import FrameType
from typing import TypeVar

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.comm import PeerFailureError, is_interrupt, peer_failure

_EVALUATION_BATCHES = 8
_STARTED_BY = "LIGHTNING_TGNN_STARTED_BY"
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
_LOOKS_EVERY = 0.5  # seconds
_PATIENCE = 20.0  # seconds; longer than a rank takes to find out who has gone
_pressed = threading.Event()
"""Ctrl-C, of a rank that leaves it to the first one."""
_Result = TypeVar("_Result")
Handler = Callable[[int, FrameType | None], object] | int
"""What a process does at a signal, as `signal.signal` has it."""


class Requeue:
    """Takes down that SLURM is about to end the job.

    Lightning's handler of the signal saves from wherever the process is, in the middle of a step or of an exchange with
    other ranks. Here the handler makes a note of it in a fit, and `save` does between two steps what Lightning's does.

    Args:
        trainer: Whose handler is replaced, before Lightning registers it.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._has_come = False
        trainer._signal_connector._slurm_sigusr_handler_fn = self._note  # type: ignore[method-assign, assignment]

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._trainer.state.fn == "fit" or self._trainer.world_size > 1:
            self._has_come = True
        else:  # there are no steps to come
            self.save()

    def take_note(self) -> bool:
        """Whether the signal has come since this was last asked."""
        has_come = self._has_come
        if has_come:  # not otherwise: it may come right now
            self._has_come = False
        return has_come

    def save(self) -> None:
        """Save a checkpoint and have the job requeued, as Lightning does; all ranks have to call it together."""
        connector = self._trainer._signal_connector
        type(connector)._slurm_sigusr_handler_fn(connector, signal.SIGUSR1, None)  # type: ignore[arg-type]


def requeue_between_steps(trainer: pl.Trainer) -> Requeue | None:
    """Save ahead of the next batch if SLURM is about to end a job of one process; ranks have to agree on one first.

    Returns:
        What has to be asked once more when there is no next batch; None where there is no such job.
    """
    if trainer.world_size > 1 or not isinstance(trainer._accelerator_connector.cluster_environment, SLURMEnvironment):
        return None
    loop, requeue = trainer.fit_loop.epoch_loop, Requeue(trainer)
    loop.advance = partial(_advance, loop, requeue)  # type: ignore[method-assign]
    return requeue


def _advance(loop: _TrainingEpochLoop, requeue: Requeue, data_fetcher: _DataFetcher) -> None:
    if requeue.take_note():
        requeue.save()
    type(loop).advance(loop, data_fetcher)


class Termination:
    """Takes down that this process has been asked to end, and ends the run where all ranks have come to.

    So it is with the signal at which a SLURM job is requeued: once in a run all ranks save a checkpoint for it.

    Lightning's handler of the signal talks to the other ranks from wherever the process is, in the middle of another
    exchange as well, and only the first rank's word counts. Here the handler makes a note, and the ranks compare notes
    between two steps, where Lightning broadcasts the first rank's. What was compared is looked at one step later, so
    that no rank waits for the others to come to the same step: ranks that take turns never do.

    Args:
        trainer: Whose handler and broadcast are replaced.
        device: Where the note is sent from.
        before: Of an earlier run of the Trainer, whose last steps may have come too late to compare a note.
    """

    def __init__(self, trainer: pl.Trainer, device: torch.device, before: Termination | None = None) -> None:
        self._trainer, self._device = trainer, device
        self._must_end: bool = before is not None and before._must_end
        self._requeue = Requeue(trainer)
        self._is_due = self._has_requeued = False
        self._batches = 0
        self._compared: tuple[Tensor, dist.Work | None] | None = None
        trainer._signal_connector._sigterm_notifier_fn = self._note  # type: ignore[method-assign, assignment]
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = self.compare  # type: ignore[method-assign]

    def _note(self, signum: int, frame: FrameType | None) -> None:
        launcher = self._trainer.strategy.launcher
        if launcher is not None and not self._must_end:
            launcher.kill(signum)  # of the processes that this one has started
        self._must_end = True

    def compare(self) -> None:
        """End the run if any rank had been asked to at the step before, or save; all ranks have to call it.

        Raises:
            SIGTERMException: A rank has been asked to end.
            KeyboardInterrupt: Ctrl-C was pressed for another rank, and this is the first one, without a handler.
        """
        self._compare()
        if self._is_due and not self._has_requeued:  # the ranks hear the signal at different steps
            self._has_requeued = True
            self._requeue.save()

    def _compare(self) -> None:
        notes = [int(self._must_end), int(self._requeue.take_note()), int(_take_press())]
        own, before = torch.tensor(notes, device=self._device), self._compared
        with peer_failure("comparison of ranks between two steps"):
            self._compared = own, dist.all_reduce(own, dist.ReduceOp.MAX, async_op=True)
            if before is None:
                return
            asked, work = before
            if work is not None:
                work.wait()
        ends, is_due, is_pressed = asked.tolist()
        self._is_due = self._is_due or bool(is_due)
        self._pass_on(is_pressed)
        if ends:
            self._trainer._signal_connector.received_sigterm = True
            rank_zero_info(f"SIGTERM: all {self._trainer.world_size} ranks end after step {self._trainer.global_step}")
            raise SIGTERMException

    def _pass_on(self, is_pressed: bool | int) -> None:
        """Have the first rank do at Ctrl-C for another one what it does at its own."""
        if is_pressed and self._trainer.is_global_zero:
            if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # of one in the background of a shell
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)

    def settle(self) -> None:
        """Do at the end of a fit what any rank has been asked since it trained its last; all ranks have to call it."""
        last, self._compared = self._compared, None
        if last is not None and last[1] is not None:
            last[1].wait()
        is_due = self._requeue.take_note() or self._is_due or (last is not None and bool(last[0][1]))
        is_pressed = _take_press() or (last is not None and bool(last[0][2]))
        asked = torch.tensor([int(is_due and not self._has_requeued), int(is_pressed)], device=self._device)
        with peer_failure("comparison of ranks at the end of a fit"):
            dist.all_reduce(asked, dist.ReduceOp.MAX)
        is_due, is_pressed = asked.bool().tolist()
        if is_due:
            self._has_requeued = True
            self._requeue.save()
        self._pass_on(is_pressed)

    def compare_in_evaluation(self) -> None:
        """End the run after some batches of an evaluation: they are many, and short. None is a moment to save at."""
        self._batches += 1
        if self._batches % _EVALUATION_BATCHES == 0:
            self._compare()


class FirstRankLauncher(_SubprocessScriptLauncher):
    """Starts processes that leave Ctrl-C to the one that has started them.

    A terminal sends it to all of them. Those that end by themselves break off what they exchange with the others, which
    ends these by an abort in the middle of a C++ destructor, without a word.
    """

    @override
    def launch(
        self, function: Callable[..., _Result], *args: object, trainer: pl.Trainer | None = None, **kwargs: object
    ) -> _Result:
        try:
            launched: _Result = super().launch(function, *args, trainer=trainer, **kwargs)
        except Exception as error:
            atexit.register(_end_all, self.procs)
            if is_interrupt(error) and not isinstance(error, PeerFailureError):
                raise KeyboardInterrupt from error  # by no other does Lightning end the processes that it has started
            raise
        return launched

    @override
    def _call_children_scripts(self) -> None:
        os.environ[_STARTED_BY] = str(os.getpid())  # for the new processes, which inherit it
        try:
            with deaf_to_interrupts(), quiet_torch():  # they inherit what is ignored, too
                super()._call_children_scripts()
        finally:
            del os.environ[_STARTED_BY]
        self.procs = [_Started(process) for process in self.procs]  # type: ignore[misc]


class _Started:
    """A process that has been started, of whose end by an error Lightning hears late.

    It ends the first rank by SIGKILL when it hears of it. Before that the first rank says what has become of the other
    one, and how to resume.

    Args:
        process: That has been started.
    """

    def __init__(self, process: Popen[bytes]) -> None:
        self._process, self._ended = process, 0.0

    def poll(self) -> int | None:
        """Look whether it has ended, and return what `returncode` is."""
        self._process.poll()
        return self.returncode

    @property
    def returncode(self) -> int | None:
        """The code that it has ended with; None where it runs, or its end is not to be seen yet."""
        code = self._process.returncode
        if code is not None and not self._ended:
            self._ended = time.monotonic()
        return None if code and time.monotonic() < self._ended + _PATIENCE else code

    def __getattr__(self, name: str) -> object:
        return getattr(self._process, name)


def _end_all(started: Sequence[Popen[bytes]]) -> None:
    """Let processes end by themselves, and end those that do not: what is stopped would stay for ever."""
    until = time.monotonic() + _PATIENCE / 2
    for process in started:
        with suppress(TimeoutExpired):
            process.wait(max(until - time.monotonic(), 0))
    for process in started:
        process.kill()
        process.wait()


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Let processes that are started print no warnings of torch's C++ code: frames, where a rank has gone meanwhile."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "ERROR"
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for a while."""
    before = ignore_interrupts()
    try:
        yield
    finally:
        restore_interrupts(before)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Let SIGTERM end this process where it is for a while: who waits in C++ runs no handler of Python."""
    before = signal.getsignal(signal.SIGTERM)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ended_with_starter() -> Iterator[None]:
    """End this process for a while with the first rank that has started it, if one has: nobody else does.

    A rank that joins the first one asks for it again and again, until the timeout of the process group. The first rank
    is ended without a word to the others where SIGTERM comes ahead of Lightning's handler, or SIGKILL at any time.
    """
    starter = os.environ.get(_STARTED_BY)
    if starter is None:
        yield
        return
    is_over, parent = threading.Event(), os.getppid()  # the parent may be a wrapper that the starter has started

    def watch() -> None:
        while os.getppid() == parent and _is_there(int(starter)):
            if is_over.wait(_LOOKS_EVERY):
                return
        print("the process that has started this rank has gone, so this one ends", file=sys.stderr, flush=True)
        os._exit(128 + signal.SIGTERM)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _is_there(pid: int) -> bool:
    with suppress(PermissionError):  # of another user's
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def ignore_interrupts() -> Handler | None:
    """Ignore Ctrl-C from now on, and return what `restore_interrupts` needs; other threads cannot, and get None."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGINT, signal.SIG_IGN)


def _take_press() -> bool:
    """Return whether Ctrl-C was pressed for this rank since the last time."""
    is_pressed = _pressed.is_set()
    if is_pressed:
        _pressed.clear()
    return is_pressed


def pass_on_interrupts() -> Handler | None:
    """Have the first rank hear Ctrl-C in place of this one, and return what `restore_interrupts` needs.

    A rank that ignores it, as one in the background of a shell does, continues doing so.
    """
    before = ignore_interrupts()
    if before is not None and before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda signum, frame: _pressed.set())
    return before


def restore_interrupts(before: Handler | None) -> None:
    """Do at Ctrl-C what was done before `ignore_interrupts`."""
    if before is not None:
        signal.signal(signal.SIGINT, before)
