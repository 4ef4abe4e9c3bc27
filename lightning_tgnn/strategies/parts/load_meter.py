"""How long operators of single snapshots take, and backward passes over several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch

from lightning_tgnn.algorithms.schedules.snapshot_loads import BACKWARD, Measured
from lightning_tgnn.types import Snapshot, Stages

FORWARD = "forward"
SHORTEST = 1e-9  # seconds, of a clock that stands still


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator, or all of a snapshot's: its forward pass, with what lies between them.

    Attributes:
        measured: How long it took, and on what.
        snapshots: Numbers of the snapshots: of one, or of several where a backward pass covers them.
        begin: Seconds, on a clock that the processes of a machine have in common.
    """

    measured: Measured
    snapshots: tuple[int, ...]
    begin: float


class _Work(NamedTuple):
    """Snapshots that an operator works on: their numbers, and their sizes added up."""

    snapshots: tuple[int, ...]
    vertices: int
    edges: int


CallListener = Callable[[OperatorCall], None]


class LoadMeter:
    """Times what each operator of a snapshot takes, and each backward pass, as long as somebody listens.

    On a GPU it waits for the device at each of them.

    Args:
        device: Where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._listeners: list[CallListener] = []
        self._work: _Work | None = None
        self._under_way: list[tuple[str, float]] = []

    def add(self, listener: CallListener, stages: Stages) -> None:
        """Have a listener hear of what comes, of the operators that tell ``stages``; not within a turn."""
        if not self._listeners:
            stages.add(self)
        self._listeners.append(listener)

    def remove(self, listener: CallListener, stages: Stages) -> None:
        """Have it hear of nothing more."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            if not self._listeners:
                stages.remove(self)

    @contextmanager
    def forward(self, snapshot: Snapshot) -> Iterator[None]:
        """Take the operators of this context for those of a snapshot, and all of it for its forward pass."""
        if not self._listeners:
            yield
            return
        work = _Work((snapshot.number,), *size_of(snapshot))
        self._work, self._under_way, begin = work, [], self._now()
        try:
            yield
        finally:
            self._work = None
        self._tell(FORWARD, begin, work)

    @contextmanager
    def backward(self, snapshots: Sequence[Snapshot]) -> Iterator[None]:
        """Take this context for the backward pass of snapshots."""
        if not self._listeners:
            yield
            return
        vertices, edges = (sum(size) for size in zip(*(size_of(snapshot) for snapshot in snapshots), strict=True))
        begin = self._now()
        yield
        self._tell(BACKWARD, begin, _Work(tuple(snapshot.number for snapshot in snapshots), vertices, edges))

    def enter(self, stage: str, turn: int) -> None:
        """Take note that an operator begins, unless it is of no snapshot."""
        if self._work is not None:
            self._under_way.append((stage, self._now()))

    def leave(self, stage: str, turn: int) -> None:
        """Take note that it ends."""
        if self._work is not None:
            self._tell(*self._under_way.pop(), self._work)

    def _tell(self, operator: str, begin: float, work: _Work) -> None:
        seconds = max(self._now() - begin, SHORTEST)
        measured = Measured(operator, seconds, len(work.snapshots), work.vertices, work.edges)
        call = OperatorCall(measured, work.snapshots, begin)
        for listener in self._listeners:
            listener(call)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()


def size_of(snapshot: Snapshot) -> tuple[int, int]:
    """Return vertices and edges of a snapshot, as a load model takes them."""
    return len(snapshot.vertices), sum(len(edges.columns) for edges in snapshot.layers[0])
