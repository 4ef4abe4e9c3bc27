"""Logs what training on groups of snapshots costs: predicted and measured loads, waiting, bytes by kind, overlap."""

from __future__ import annotations

from dataclasses import astuple
from functools import partial
from time import perf_counter

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.types import STEP_OUTPUT
from typing_extensions import override

from lightning_tgnn.callbacks.measures.snapshot_metrics import (
    LoadSums,
    RankCounts,
    load_figure,
    snapshot_metrics,
    sums_of_snapshots,
)
from lightning_tgnn.callbacks.measures.tensorboard_writers import write_figure
from lightning_tgnn.callbacks.monitor import WindowedMonitor
from lightning_tgnn.comm import StepTraffic
from lightning_tgnn.strategies.parts.load_meter import LoadMeter, OperatorCall
from lightning_tgnn.strategies.snapshot_runner import SnapshotRunner
from lightning_tgnn.types import Stages
from lightning_tgnn.types.layout import PIPELINES


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
