"""A process beside the ranks of a machine that answers what they ask, and ends when one of them does."""

from __future__ import annotations

import importlib
import os
import pickle
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import torch.distributed as dist

from lightning_tgnn.comm.failure import peer_failure

Serve = Callable[..., None]
"""Answers connections, one per rank in the order of their places, until it returns."""


class Service:
    """A process of its own, started anew rather than forked: threads of the ranks would not survive a fork.

    It sees a rank's connection close, however that comes about.

    Args:
        serve: What it runs, a function of a module: called with the connections, and ``arguments``.
        arguments: Plain values and tensors.
        name: What it is, for errors.
        ranks: That share it, by their numbers in the run; the first starts it.
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
        self._name, self._process = name, None
        told: list[Any] = [None]
        if rank == ranks[0]:
            address, key = _address(), secrets.token_bytes(16)
            self._process = _start(serve, (address, key, len(ranks), arguments))
            told = [(address, key, self._process.pid)]
        if len(ranks) > 1:
            with peer_failure(f"start of the {name}"):
                dist.broadcast_object_list(told, src=ranks[0], group=group)
        address, key, self.pid = told[0]
        with self._answering():
            self._connection = Client(address, authkey=key)
            self._connection.send(ranks.index(rank))
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
        """End the process."""
        with suppress(OSError):
            self._connection.close()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def _address() -> str:
    """Return where to listen: a name without a file where there are such."""
    name = f"lightning_tgnn-{secrets.token_hex(8)}"
    return f"\0{name}" if sys.platform == "linux" else os.path.join(tempfile.gettempdir(), name)


def _start(serve: Serve, settings: tuple[Any, ...]) -> subprocess.Popen[bytes]:
    """Start the process, and return once it listens."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the ranks, whose end it waits for
    )
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump((serve.__module__, serve.__qualname__, *settings), process.stdin)
    process.stdin.flush()
    if not process.stdout.read(1):
        raise RuntimeError(f"process {process.pid} did not start: see its words above")
    process.stdout.close()
    return process


def main() -> None:
    """Be the process."""
    module, name, address, key, count, arguments = pickle.load(sys.stdin.buffer)
    are_connected = threading.Event()
    threading.Thread(target=_end_with_parent, args=(are_connected,), daemon=True).start()
    serve = getattr(importlib.import_module(module), name)
    with Listener(address, authkey=key, backlog=count) as listener:
        os.write(1, b".")
        os.dup2(2, 1)  # what else it prints is for the user
        connections: dict[int, Connection] = {}
        while len(connections) < count:
            connection = listener.accept()
            connections[connection.recv()] = connection
    are_connected.set()
    in_order = [connections[place] for place in sorted(connections)]
    for connection in in_order:
        with suppress(OSError):  # it has ended
            connection.send(None)
    serve(in_order, *arguments)


def _end_with_parent(are_connected: threading.Event) -> None:
    """End when the rank that has started this process does before all are connected; later their connections tell."""
    while os.read(0, 1):
        pass
    if not are_connected.is_set():
        os._exit(0)
