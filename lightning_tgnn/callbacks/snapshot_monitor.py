"""Logs what training on groups of snapshots costs: predicted and measured loads, waiting, bytes by kind, overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.types import STEP_OUTPUT
from typing_extensions import override

from lightning_tgnn.algorithms.schedules.operator_order import GRAPH
from lightning_tgnn.algorithms.schedules.snapshot_loads import BACKWARD, Measured
from lightning_tgnn.algorithms.schedules.stage_times import kind_of, overlap_seconds
from lightning_tgnn.callbacks.measures.tensorboard_writers import write_figure
from lightning_tgnn.callbacks.monitor import WindowedMonitor
from lightning_tgnn.comm import Flow, StepTraffic
from lightning_tgnn.comm.hand_over import BACK, FORTH
from lightning_tgnn.strategies.parts.load_meter import FORWARD, LoadMeter, MeasuredLoads, OperatorCall
from lightning_tgnn.strategies.runner import SnapshotRunner
from lightning_tgnn.types import Stages
from lightning_tgnn.types.layout import PIPELINES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SnapshotMonitor(WindowedMonitor):
    """Logs what training on groups of snapshots costs under `BLADStrategy` and the strategies that it is compared with.

    Means over a window of training steps, logged by rank 0:

    - ``snapshots/waiting_share``: share of the ranks' time in which they stand waiting for each other;
      ``…/longest_waiting_share`` of the rank that does so longest.
    - ``snapshots/features_bytes`` (rows of vertices), ``…/hidden_state_bytes`` (with its gradients and messages that
      announce it) and ``…/weights_bytes`` (gradients of weights): sent by all ranks in a step;
      ``…/shared_memory_bytes``: hidden state and gradients that processes of one machine hand over without sending.
    - ``snapshots/forward_milliseconds`` of a snapshot and ``…/backward_milliseconds`` of a rank's part of a group. Once
      loads are known, ``…/predicted_forward_milliseconds`` and ``…/predicted_backward_milliseconds`` beside them, and
      ``…/error_<operator>``, the mean relative error of what was predicted: of ``forward``, ``backward`` and operators
      such as ``graph_1``. A forward pass is predicted as the sum of its operators and measured with what lies between
      them.
    - ``snapshots/overlap_share``, where two processes share a device: share of the time in which one runs graph
      operators of a forward pass and the other NN operators.

    At the end of an epoch TensorBoard gets ``snapshots/loads``, a picture of the forward pass of every snapshot,
    measured and predicted. Loads are not measured under `VertexPartitionStrategy`. On a GPU the monitor waits for the
    device at every operator.

    Args:
        every_n_steps: Batches of a window; a shorter one ends each epoch.

    Attributes:
        latest: The metrics of the latest window, on every rank.

    Raises:
        InvalidArgumentError: The window has no batch; in `setup`, a Trainer has several of these.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        super().__init__(every_n_steps)
        self._strategy: SnapshotRunner | None = None
        self._meter: LoadMeter | None = None

    @override
    def strategy_of(self, trainer: pl.Trainer) -> SnapshotRunner | None:
        strategy = trainer.strategy
        if isinstance(strategy, SnapshotRunner):
            return strategy
        measured = "blad, snapshot_partition and vertex_partition"
        rank_zero_info(f"SnapshotMonitor has nothing to do: {type(strategy).__name__} is none of {measured}")
        return None

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        strategy = self._strategy = self.strategy_of(trainer)
        if strategy is None:
            return
        self._traffic = StepTraffic(strategy.exchange.traffic), StepTraffic(strategy.gradient_traffic)
        state, self._calls = strategy.snapshot_state, list[OperatorCall]()
        self._pipeline = None if state is None else state.pipeline
        self._stages: Stages = pl_module.stages  # type: ignore[assignment]
        if self._pipeline is not None:
            self._meter = self._pipeline.meter
            self._meter.add(self._calls.append, self._stages)
        layout = strategy.layout
        self._pairs = [
            (ranks[0], ranks[1])
            for ranks in layout.families[PIPELINES]
            if len(ranks) == 2 and layout.hosts[ranks[0]] == layout.hosts[ranks[1]]
        ]
        self._counts = RankCounts()
        self._snapshots: dict[int, LoadSums] = {}

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        strategy = self._strategy
        if strategy is None:
            return
        for traffic in self._traffic:
            traffic.clear()
            traffic.begin()
        state = strategy.snapshot_state
        # What is measured in this step must not be what its prediction was fitted to.
        self._loads = None if state is None else state.loads
        self._begun = perf_counter(), strategy.waited, self._moved

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        strategy = self._strategy
        if strategy is None:
            return
        for traffic in self._traffic:
            traffic.end()
        counts, (begun, waited, moved) = self._counts, self._begun
        counts.steps += 1
        counts.seconds += perf_counter() - begun
        counts.waited += strategy.waited - waited
        rows, gradients = self._traffic
        counts.add_sent(rows.flows, gradients.flows, self._moved - moved)
        counts.add_calls(self._calls, self._loads)
        for number, sums in sums_of_snapshots(self._calls, self._loads).items():
            self._snapshots[number] = self._snapshots.get(number, LoadSums()) + sums
        self._calls.clear()
        if counts.steps == self.every_n_steps:
            self._close_window(trainer, strategy)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        strategy = self._strategy
        if strategy is None:
            return
        if self._counts.steps:
            self._close_window(trainer, strategy)
        whole: dict[int, LoadSums] = {}
        for from_rank in strategy.from_all_ranks({number: astuple(sums) for number, sums in self._snapshots.items()}):
            for number, sums in from_rank.items():
                whole[number] = whole.get(number, LoadSums()) + LoadSums(*sums)
        self._snapshots = {}
        if trainer.is_global_zero and whole:
            write_figure(trainer, "snapshots/loads", partial(load_figure, whole))

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._meter is not None:
            self._meter.remove(self._calls.append, self._stages)
        self._strategy = self._meter = None

    @property
    def _moved(self) -> int:
        return 0 if self._pipeline is None else self._pipeline.hand_over.moved

    def _close_window(self, trainer: pl.Trainer, strategy: SnapshotRunner) -> None:
        counts = [RankCounts.of(packed) for packed in strategy.from_all_ranks(self._counts.packed())]
        self.latest = snapshot_metrics(counts, self._pairs)
        self.log_latest(trainer)
        self._counts = RankCounts()


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
        num_predicted: How many of them had been predicted.
        measured: Seconds that these took.
        predicted: Seconds that had been predicted of these.
        error: Sum of the relative errors of these.
    """

    calls: int = 0
    seconds: float = 0.0
    num_predicted: int = 0
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
        if sums.num_predicted:
            if operator in (FORWARD, BACKWARD):
                metrics[f"snapshots/predicted_{name}_milliseconds"] = (
                    _MILLISECONDS * sums.predicted / sums.num_predicted
                )
            metrics[f"snapshots/error_{name}"] = sums.error / sums.num_predicted
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
    known = [number for number in numbers if snapshots[number].num_predicted]
    if known:
        predicted = [_MILLISECONDS * snapshots[number].predicted / snapshots[number].num_predicted for number in known]
        axes.plot(known, predicted, marker="o", markersize=3, label="predicted")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
