"""The seconds of snapshot operators in this run, as its ranks have measured them and as a load model predicts them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple

import numpy as np

from lightning_tgnn.algorithms.schedules.snapshot_loads import BACKWARD, HEAD, LAST_BACKWARD, LoadModel, Measured
from lightning_tgnn.strategies.parts.load_meter import FORWARD, LoadMeter, OperatorCall
from lightning_tgnn.types import Run, Stages
from lightning_tgnn.types.layout import GRADIENTS


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
