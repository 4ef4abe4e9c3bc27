"""Seconds of operators on single snapshots, as ranks measure them and as a load model predicts them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from lightning_tgnn.algorithms.schedules.snapshot_loads import BACKWARD, HEAD, LAST_BACKWARD, LoadModel, Measured
from lightning_tgnn.strategies.stage_recorder import wait_for_device
from lightning_tgnn.types import Run, Snapshot, SnapshotGroup, Stages
from lightning_tgnn.types.layout import GRADIENTS

FORWARD = "forward"
SHORTEST = 1e-9  # seconds, of a clock that stands still


@dataclass(frozen=True)
class OperatorCall:
    """All calls of an operator on a snapshot; its forward pass, with what lies between them; or a backward pass.

    Attributes:
        measured: How long they took, and on what.
        snapshots: Numbers of the snapshots: of one, or of several where a backward pass covers them.
        spans: Beginning and end of each, seconds on a clock that the processes of a machine have in common.
    """

    measured: Measured
    snapshots: tuple[int, ...]
    spans: tuple[tuple[float, float], ...]


class _Work(NamedTuple):
    """Snapshots that an operator works on: their numbers, their sizes added up, and a group's last sizes."""

    snapshots: tuple[int, ...]
    vertices: int
    edges: int
    last: tuple[int, int] | None
    targets: int = 0

    @classmethod
    def on(cls, snapshots: Sequence[Snapshot], *, with_last: bool) -> _Work:
        sizes = [size_of(snapshot) for snapshot in snapshots]
        vertices, edges = (sum(size) for size in zip(*sizes, strict=True))
        return cls(tuple(snapshot.number for snapshot in snapshots), vertices, edges, sizes[-1] if with_last else None)

    @classmethod
    def for_head(cls, group: SnapshotGroup) -> _Work:
        last = group.snapshots[-1]
        vertices, edges = size_of(last)
        return cls((last.number,), vertices, 0, (vertices, edges), len(group.targets))

    @classmethod
    def for_backward(cls, group: SnapshotGroup) -> _Work:
        work = cls.on(group.snapshots, with_last=group.is_last)
        return work._replace(targets=len(group.targets)) if group.is_last else work


CallListener = Callable[[OperatorCall], None]


class LoadMeter:
    """Times what each operator of a snapshot takes, and each backward pass, as long as it has listeners.

    On a GPU it waits for the device at each of them.

    Args:
        device: Where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._listeners: list[CallListener] = []
        self._is_open = False
        self._under_way: list[tuple[str, float]] = []
        self._ended: dict[str, list[tuple[float, float]]] = {}

    def add(self, listener: CallListener, stages: Stages) -> None:
        """Add a listener, which hears of the operators that tell ``stages`` from now on; not within a turn."""
        if not self._listeners:
            stages.add(self)
        self._listeners.append(listener)

    def remove(self, listener: CallListener, stages: Stages) -> None:
        """Remove a listener, if it is there."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            if not self._listeners:
                stages.remove(self)

    @contextmanager
    def forward(self, snapshot: Snapshot, *, last: bool) -> Iterator[None]:
        """Take the operators of this context for operators of a snapshot, and all of it for its forward pass.

        Args:
            snapshot: Whose they are.
            last: Whether it is the last one of its group.
        """
        if not self._listeners:
            yield
            return
        self._is_open, self._under_way, self._ended = True, [], {}
        begin = self._now()
        try:
            yield
        finally:
            self._is_open = False
        work = _Work.on([snapshot], with_last=last)
        for operator, spans in {**self._ended, FORWARD: [(begin, self._now())]}.items():
            self._record(operator, spans, work)

    @contextmanager
    def head(self, group: SnapshotGroup) -> Iterator[None]:
        """Take this context for the head of a group, with the loss; it reads vertices and targets, and no edges."""
        with self._in_group(HEAD, lambda: _Work.for_head(group)):
            yield

    @contextmanager
    def backward(self, group: SnapshotGroup) -> Iterator[None]:
        """Take this context for the backward pass of this rank's snapshots of a group, with the head if it is here."""
        with self._in_group(BACKWARD, lambda: _Work.for_backward(group)):
            yield

    @contextmanager
    def _in_group(self, operator: str, work: Callable[[], _Work]) -> Iterator[None]:
        if not self._listeners:
            yield
            return
        begin = self._now()
        yield
        self._record(operator, [(begin, self._now())], work())

    def enter(self, stage: str, turn: int) -> None:
        """Take note that an operator begins, unless it is of no snapshot."""
        if self._is_open:
            self._under_way.append((stage, self._now()))

    def leave(self, stage: str, turn: int) -> None:
        """Take note that it ends."""
        if self._is_open:
            operator, begin = self._under_way.pop()
            self._ended.setdefault(operator, []).append((begin, self._now()))

    def _record(self, operator: str, spans: Sequence[tuple[float, float]], work: _Work) -> None:
        seconds = max(sum(end - begin for begin, end in spans), SHORTEST)
        measured = Measured(operator, seconds, len(work.snapshots), *work[1:])
        call = OperatorCall(measured, work.snapshots, tuple(spans))
        for listener in self._listeners:
            listener(call)

    def _now(self) -> float:
        wait_for_device(self._device)
        return perf_counter()


def size_of(snapshot: Snapshot) -> tuple[int, int]:
    """Return vertices and edges of a snapshot, as a load model takes them."""
    return len(snapshot.vertices), sum(len(edges.columns) for edges in snapshot.layers[0])


class MeasuredCalls:
    """The calls of operators that this rank hears of, but for whole forward passes: their operators are there."""

    def __init__(self) -> None:
        self._meter: LoadMeter | None = None
        self._stages = Stages()
        self._heard: list[Measured] = []

    @property
    def is_listening(self) -> bool:
        """Whether calls are taken down."""
        return self._meter is not None

    def listen(self, meter: LoadMeter, stages: Stages) -> None:
        """Hear of what comes; not within a turn."""
        self._meter, self._stages = meter, stages
        meter.add(self._hear, stages)

    def stop(self) -> None:
        """Hear of nothing more, and drop what has been heard."""
        if self._meter is not None:
            self._meter.remove(self._hear, self._stages)
        self._meter = None
        self._heard.clear()

    def from_all_ranks(self, run: Run) -> list[Measured]:
        """Return what all ranks have heard since the last time, the same on every rank; all of them call it."""
        gathered = run.messages(GRADIENTS).gather([astuple(one) for one in self._heard])
        self._heard.clear()
        return [Measured(*one) for from_rank in run.broadcast(gathered) for one in from_rank]

    def _hear(self, call: OperatorCall) -> None:
        if call.measured.operator != FORWARD:
            self._heard.append(call.measured)


class MeasuredLoads:
    """Seconds of snapshots by a model that has been fitted to this run; see `PredictedLoads`.

    Args:
        model: Of the operators.
        kept: Operators whose products are kept, which cost nothing any more.
    """

    def __init__(self, model: LoadModel, kept: Collection[str] = ()) -> None:
        self.model, self._kept = model, {*kept}

    def forward(self, vertices: np.ndarray, edges: np.ndarray, targets: np.ndarray | None = None) -> np.ndarray:
        """Return seconds [l] of the forward pass, with the head of a last snapshot."""
        last = targets is not None
        return self._added(self._operators(last=last) | ({HEAD} if last else set()), vertices, edges, targets)

    def step(self, vertices: np.ndarray, edges: np.ndarray, *, last: bool) -> np.ndarray:
        """Return seconds [l] of the forward pass without the head."""
        return self._added(self._operators(last=last), vertices, edges)

    def backward(self, vertices: np.ndarray, edges: np.ndarray, targets: np.ndarray | None = None) -> np.ndarray:
        """Return seconds [l] of the backward pass."""
        return self._added({BACKWARD} if targets is None else {BACKWARD, LAST_BACKWARD}, vertices, edges, targets)

    def predicts(self, operator: str) -> bool:
        """Return whether an operator has predicted seconds; one whose products are kept does no work any more."""
        return operator in self.model.loads and operator not in self._kept

    def _operators(self, *, last: bool) -> set[str]:
        others = {BACKWARD, LAST_BACKWARD, HEAD, *self._kept, *(() if last else self.model.last_only)}
        return self.model.loads.keys() - others

    def _added(
        self, operators: Collection[str], vertices: np.ndarray, edges: np.ndarray, targets: np.ndarray | None = None
    ) -> np.ndarray:
        # In the order of the model: sums have to be the same on all ranks.
        own, scored = [name for name in self.model.loads if name in operators], 0 if targets is None else targets
        seconds = [self.model.predict(name, vertices, edges, targets=scored) for name in own]
        return np.asarray(sum(seconds, np.zeros(len(vertices))))
