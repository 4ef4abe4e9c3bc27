"""The metrics of `SnapshotMonitor`, from what every rank has counted; no clock, no process group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from lightning_tgnn.algorithms.schedules.operator_order import GRAPH
from lightning_tgnn.algorithms.schedules.snapshot_loads import BACKWARD, Measured
from lightning_tgnn.algorithms.schedules.stage_times import kind_of, overlap_seconds
from lightning_tgnn.comm import Flow
from lightning_tgnn.comm.hand_over import BACK, FORTH
from lightning_tgnn.strategies.parts.load_meter import FORWARD, OperatorCall
from lightning_tgnn.strategies.parts.measured_loads import MeasuredLoads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEATURES, HIDDEN_STATE, WEIGHTS, SHARED_MEMORY = "features", "hidden_state", "weights", "shared_memory"
_MILLISECONDS = 1e3
_Span = tuple[float, float]
_Key = TypeVar("_Key", str, int)


@dataclass
class LoadSums:
    """Calls of an operator, or of several, added up.

    Attributes:
        calls: How many.
        seconds: They took.
        foretold: How many of them somebody had predicted.
        measured: Seconds that these took.
        predicted: Seconds that had been predicted of these.
        error: Sum of the relative errors of these.
    """

    calls: int = 0
    seconds: float = 0.0
    foretold: int = 0
    measured: float = 0.0
    predicted: float = 0.0
    error: float = 0.0

    def __add__(self, other: LoadSums) -> LoadSums:
        return LoadSums(*(own + more for own, more in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass
class RankCounts:
    """What one rank counts in some training steps.

    Attributes:
        steps: How many.
        seconds: They took.
        waited: Seconds of these in which the rank stood waiting for others.
        sent: Bytes by kind.
        loads: By operator, the forward pass and the backward pass among them.
        graph: Beginning and end of each product with edges in a forward pass, on the clock of the machine.
        nn: The same of each product with weights and each recurrent cell.
    """

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)
    loads: dict[str, LoadSums] = field(default_factory=dict)
    graph: list[_Span] = field(default_factory=list)
    nn: list[_Span] = field(default_factory=list)

    def packed(self) -> dict[str, Any]:
        """Return all of it as tensors and plain values, to be sent to the others."""
        spans = {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in ("graph", "nn")}
        return {**vars(self), **spans, "loads": {operator: astuple(sums) for operator, sums in self.loads.items()}}

    @classmethod
    def of(cls, packed: Mapping[str, Any]) -> RankCounts:
        """Return what `packed` has returned on another rank."""
        spans = {name: packed[name].tolist() for name in ("graph", "nn")}
        loads = {operator: LoadSums(*sums) for operator, sums in packed["loads"].items()}
        return cls(**{**packed, **spans, "loads": loads})

    def add_sent(self, flows: Mapping[str, Flow], gradients: Mapping[str, Flow], moved: int) -> None:
        """Count what has travelled.

        Args:
            flows: By operation.
            gradients: The same of gradients of weights.
            moved: Bytes that have gone through shared memory.
        """
        kinds = chain(
            ((HIDDEN_STATE if name.startswith((FORTH, BACK)) else FEATURES, flow.sent) for name, flow in flows.items()),
            ((WEIGHTS, flow.sent) for flow in gradients.values()),
            [(SHARED_MEMORY, moved)],
        )
        for kind, sent in kinds:
            self.sent[kind] = self.sent.get(kind, 0.0) + sent

    def add_calls(self, calls: Sequence[OperatorCall], loads: MeasuredLoads | None) -> None:
        """Count calls, of which ``loads`` has predicted how long they take."""
        for operator, own in _grouped(calls, lambda call: call.measured.operator).items():
            self.loads[operator] = self.loads.get(operator, LoadSums()) + load_sums(own, loads)
            if operator not in (FORWARD, BACKWARD):
                spans = self.graph if kind_of(operator) == GRAPH else self.nn
                spans += [span for call in own for span in call.spans]


def load_sums(calls: Sequence[OperatorCall], loads: MeasuredLoads | None) -> LoadSums:
    """Return calls of one operator added up.

    Args:
        calls: At least one.
        loads: What predicts how long they take; None where nobody does.
    """
    seconds = np.array([call.measured.seconds for call in calls])
    sums = LoadSums(len(calls), float(seconds.sum()))
    operator = calls[0].measured.operator
    if loads is None or (operator != FORWARD and operator not in loads.model.loads):
        return sums
    predicted = np.array([_predicted(call.measured, loads) for call in calls])
    error = float((np.abs(predicted - seconds) / seconds).sum())
    return LoadSums(sums.calls, sums.seconds, sums.calls, sums.seconds, float(predicted.sum()), error)


def _predicted(one: Measured, loads: MeasuredLoads) -> float:
    if one.operator != FORWARD:
        return loads.model.seconds_of(one)
    return float(loads.step(np.array([one.vertices]), np.array([one.edges]), last=one.last is not None)[0])


def sums_of_snapshots(calls: Iterable[OperatorCall], loads: MeasuredLoads | None) -> dict[int, LoadSums]:
    """Return the forward passes of each snapshot added up, by its number."""
    passes = [call for call in calls if call.measured.operator == FORWARD]
    return {number: load_sums(own, loads) for number, own in _grouped(passes, lambda call: call.snapshots[0]).items()}


def snapshot_metrics(counts: Sequence[RankCounts], pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return what is logged.

    Args:
        counts: Of every rank.
        pairs: Ranks that share a device.
    """
    steps, shares = counts[0].steps, [rank.waited / rank.seconds for rank in counts]
    metrics = {
        "snapshots/waiting_share": float(np.mean(shares)),
        "snapshots/longest_waiting_share": max(shares),
    }
    kinds = dict.fromkeys(kind for rank in counts for kind in rank.sent)
    for kind in kinds:
        metrics[f"snapshots/{kind}_bytes"] = sum(rank.sent.get(kind, 0.0) for rank in counts) / steps
    if pairs and any(rank.graph for rank in counts):
        overlaps = [_overlap_share(counts[one], counts[other]) for one, other in pairs]
        metrics["snapshots/overlap_share"] = float(np.mean(overlaps))
    return metrics | _load_metrics(counts)


def _load_metrics(counts: Sequence[RankCounts]) -> dict[str, float]:
    metrics = {}
    for operator in sorted({operator for rank in counts for operator in rank.loads}):
        sums = sum((rank.loads.get(operator, LoadSums()) for rank in counts), LoadSums())
        name = operator.replace(" ", "_")
        if operator in (FORWARD, BACKWARD):
            metrics[f"snapshots/{name}_milliseconds"] = _MILLISECONDS * sums.seconds / sums.calls
        if sums.foretold:
            if operator in (FORWARD, BACKWARD):
                metrics[f"snapshots/predicted_{name}_milliseconds"] = _MILLISECONDS * sums.predicted / sums.foretold
            metrics[f"snapshots/error_{name}"] = sums.error / sums.foretold
    return metrics


def _overlap_share(one: RankCounts, other: RankCounts) -> float:
    """Return the share of the time of two processes in which one runs graph and the other NN operators."""
    spans = [np.array(sorted(found)).reshape(-1, 2) for found in (one.graph, one.nn, other.graph, other.nn)]
    both = overlap_seconds(spans[0], spans[3]) + overlap_seconds(spans[1], spans[2])
    return 2 * both / (one.seconds + other.seconds)


def _grouped(calls: Iterable[OperatorCall], key: Callable[[OperatorCall], _Key]) -> dict[_Key, list[OperatorCall]]:
    found: dict[_Key, list[OperatorCall]] = {}
    for call in calls:
        found.setdefault(key(call), []).append(call)
    return found


def load_figure(snapshots: Mapping[int, LoadSums]) -> Figure:
    """Return a matplotlib figure of the seconds of each snapshot's forward pass, as measured and as predicted.

    Args:
        snapshots: Forward passes, by the number of their snapshot.
    """
    from matplotlib.figure import Figure  # not pyplot: nothing to open a window or to keep metrics alive

    numbers = sorted(snapshots)
    measured = [_MILLISECONDS * snapshots[number].seconds / snapshots[number].calls for number in numbers]
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.add_subplot(xlabel="snapshot", ylabel="ms", title="forward pass of a snapshot")
    axes.plot(numbers, measured, marker="o", markersize=3, label="measured")
    foretold = [number for number in numbers if snapshots[number].foretold]
    if foretold:
        predicted = [_MILLISECONDS * snapshots[number].predicted / snapshots[number].foretold for number in foretold]
        axes.plot(foretold, predicted, marker="o", markersize=3, label="predicted")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
