"""A process beside the ranks of a machine that answers their requests, and ends with them."""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from queue import SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

import torch.distributed as dist

from lightning_tgnn.comm.failure import peer_failure

Serve = Callable[..., None]
"""Answers connections, one per rank in the order of their places, until it returns."""

# All that this process has started. Python and torch take seconds to start, so one whose ranks have left serves again.
_started: list[subprocess.Popen[bytes]] = []
if hasattr(os, "register_at_fork"):  # a forked process must neither use them nor keep them alive
    os.register_at_fork(after_in_child=_started.clear)
_asked: WeakValueDictionary[int, Service] = WeakValueDictionary()  # those that this rank has not left, by process
_LEAVING = 2.0  # seconds in which the other ranks leave a process, too: about what a new one takes to start


class Service:
    """A separate process, started anew rather than forked, because threads of the ranks would not survive a fork.

    It sees a rank's connection close, however that comes about. It ends with the rank that has started it; until then
    that rank's later services reuse it.

    Args:
        serve: The function of a module that the process runs, called with the connections and ``arguments``.
        arguments: Plain values and tensors.
        name: Name of the service in error messages.
        ranks: Ranks that share the process, by their numbers in the run; the first starts it.
        rank: This rank, by its number in the run.
        group: Their process group; None for one rank.
    """

    def __init__(
        self,
        serve: Serve,
        arguments: tuple[Any, ...],
        name: str,
        ranks: tuple[int, ...],
        rank: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._name = name
        if rank != ranks[0]:
            self._connect([None], ranks, rank, group)
            return
        folder = tempfile.mkdtemp(prefix="lightning_tgnn-")  # which no other user can enter
        try:
            key, address = secrets.token_bytes(16), os.path.join(folder, "s")
            pid = _start(folder, (serve.__module__, serve.__qualname__, address, key, len(ranks), arguments))
            self._connect([(address, key, pid)], ranks, rank, group)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _connect(self, received: list[Any], ranks: tuple[int, ...], rank: int, group: dist.ProcessGroup | None) -> None:
        """Wait until all ranks are connected to the process, of which the first tells the others."""
        name = self._name
        if len(ranks) > 1:
            with peer_failure(f"start of the {name}"):
                dist.broadcast_object_list(received, src=ranks[0], group=group)
        address, key, self.pid = received[0]
        _asked[self.pid] = self
        with self._answering():
            self._connection = Client(address, authkey=key)
            self._connection.send(ranks.index(rank))
        if len(ranks) > 1:
            with peer_failure(f"start of the {name}"):
                dist.barrier(group)  # where one has failed the others would wait for ever
        with self._answering():
            self._connection.recv()  # all ranks are connected

    def send(self, message: object) -> None:
        """Ask for something, or tell it.

        Raises:
            PeerFailureError: The process has ended, and most likely a rank.
        """
        with self._answering():
            self._connection.send(message)

    def receive(self) -> tuple[Any, ...]:
        """Return the next answer, once it is here.

        Raises:
            PeerFailureError: The process has ended, and most likely a rank.
        """
        with self._answering():
            answer: tuple[Any, ...] = self._connection.recv()
        return answer

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            with peer_failure(self._name):
                raise RuntimeError(f"the {self._name}, process {self.pid}, has ended") from error

    def close(self) -> None:
        """Leave the process; once all ranks have left, it can serve others."""
        _asked.pop(self.pid, None)
        with suppress(OSError):
            self._connection.close()


def _start(folder: str, job: tuple[Any, ...]) -> int:
    """Give the job to a process that has none, or to a new one; return that one's number once it listens.

    Should this rank end before it does, the process removes the folder.
    """
    for process in _at_hand():
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            pickle.dump((folder, pickle.dumps(job)), process.stdin)
            process.stdin.flush()
            if _has_reported(process):
                return process.pid
    raise RuntimeError(f"process {process.pid} did not start: see its words above")


def _at_hand() -> Iterator[subprocess.Popen[bytes]]:
    """Yield the processes that have reported the end of a service, and then a new one."""
    _started[:] = [process for process in _started if process.poll() is None]
    by_report = {process.stdout.fileno(): process for process in _started if process.stdout is not None}
    is_left = any(process.pid not in _asked for process in _started)
    there = wait(list(by_report), _LEAVING if is_left else 0)
    for report, process in by_report.items():
        if report in there and _has_reported(process):
            yield process
    yield _new()


def _has_reported(process: subprocess.Popen[bytes]) -> bool:
    """Wait for the next word of a process; return whether there was one before its end."""
    assert process.stdout is not None
    return bool(os.read(process.stdout.fileno(), 1))  # nothing may wait in a buffer, where nobody looks


def _new() -> subprocess.Popen[bytes]:
    # What is imported stays: to look through it for garbage takes a quarter of the time.
    process = subprocess.Popen(
        [sys.executable, "-c", f"import gc; gc.disable(); from {__name__} import main; gc.enable(); main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C is for the ranks, whose end it waits for
    )
    _started.append(process)
    return process


@atexit.register
def _end() -> None:
    """End all processes; one that still serves, once its ranks have left."""
    for process in _started:
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()


def main() -> None:
    """Be the process: serve, report, and serve again, until the rank that has started it ends."""
    # Of a cluster to all processes: the ranks decide.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    report = os.dup(1)
    os.dup2(2, 1)  # what it prints is for the user
    jobs: SimpleQueue[bytes] = SimpleQueue()
    is_serving = threading.Event()
    threading.Thread(target=_hear, args=(jobs, is_serving), daemon=True).start()
    while job := jobs.get():
        _serve(report, is_serving, *pickle.loads(job))
        is_serving.clear()
        with suppress(BrokenPipeError):  # the rank that has started it is the one that has ended
            os.write(report, b".")


def _hear(jobs: SimpleQueue[bytes], is_serving: threading.Event) -> None:
    """Take in jobs. With the rank that gives them the process ends: at once, or when its service does."""
    folder = None
    with suppress(EOFError):
        while True:
            folder, job = pickle.load(sys.stdin.buffer)
            jobs.put(job)
    if not is_serving.is_set():
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
    jobs.put(b"")


def _serve(
    report: int,
    is_serving: threading.Event,
    module: str,
    name: str,
    address: str,
    key: bytes,
    count: int,
    arguments: tuple[Any, ...],
) -> None:
    """Wait for all ranks and serve them."""
    serve = getattr(importlib.import_module(module), name)
    connections: dict[int, Connection] = {}
    with Listener(address, authkey=key, backlog=count) as listener:
        os.write(report, b".")
        while len(connections) < count:
            connection = listener.accept()
            connections[connection.recv()] = connection
    is_serving.set()
    in_order = [connections[place] for place in sorted(connections)]
    for connection in in_order:
        with suppress(OSError):  # it has ended
            connection.send(None)
    serve(in_order, *arguments)
    for connection in in_order:
        connection.close()
