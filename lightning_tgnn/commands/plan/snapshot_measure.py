"""Measures the operators of snapshots on this machine, with as many processes at once as it is to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT
from typing_extensions import override

from lightning_tgnn.algorithms.schedules.links import Link
from lightning_tgnn.algorithms.schedules.snapshot_loads import BACKWARD, LAST_BACKWARD, Load, LoadModel, Measured
from lightning_tgnn.algorithms.traffic.gradient_compression import BFloat16, Int8, PowerSGD
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.bench.comparison import Limits, RunOptions
from lightning_tgnn.commands.bench.tables import say, without_setup_notes
from lightning_tgnn.commands.plan.gradient_compression import CompressedGradients, gradient_bytes, measured_compressions
from lightning_tgnn.commands.simulate.snapshot_costs import SnapshotCosts
from lightning_tgnn.data import SnapshotDataModule
from lightning_tgnn.strategies.blad import BLADStrategy
from lightning_tgnn.strategies.parts.group_pipeline import PipelinedGroups
from lightning_tgnn.strategies.parts.load_meter import FORWARD, LoadMeter, OperatorCall
from lightning_tgnn.strategies.parts.operator_choice import ChosenOperators
from lightning_tgnn.strategies.runner import SnapshotRunner
from lightning_tgnn.strategies.stage_recorder import wait_for_device
from lightning_tgnn.tasks import SnapshotLinkPrediction

_FLOAT = 4  # bytes
_HELD_OUT = 4  # of so many sizes one
_MESSAGES = 21


@dataclass(frozen=True)
class SnapshotMeasurements:
    """What was measured of snapshots and a model.

    Attributes:
        processes: That ran at once.
        costs: Of operators, updates and messages.
        error: Mean relative error of the loads, by operator, on snapshots of sizes that they were not fitted to.
        compressed: What compressions make of gradients, by name.
    """

    processes: int
    costs: SnapshotCosts
    error: Mapping[str, float]
    compressed: Mapping[str, CompressedGradients]


@without_setup_notes()
def measure_snapshots(
    data: SnapshotDataModule,
    task_options: dict[str, Any],
    run: RunOptions,
    *,
    reuse: bool,
    groups: int,
    epochs: int,
    updates: int | None,
    local: Link,
) -> SnapshotMeasurements:
    """Train whole groups on every process; called by every process.

    Args:
        data: What to train on.
        task_options: Arguments of `SnapshotLinkPrediction`.
        run: Where.
        reuse: Whether products without weights are kept.
        groups: Of a process and update.
        epochs: That count, after one to warm up.
        updates: Of an epoch; None takes all.
        local: Between the processes of a machine, for the hand-over of hidden state.

    Raises:
        InvalidArgumentError: Snapshots and task do not go together.
    """
    ranks = run.processes.ranks
    kept = "" if reuse else ", no product is kept"
    say(f"{1 + epochs} epochs of whole groups, {ranks} processes at once{kept}")
    data.batch_size = groups
    meter = OperatorMeter(epochs)
    task = SnapshotLinkPrediction(**{**task_options, "reuse": reuse})
    trainer = run.trainer(
        BLADStrategy(processes_per_device=1, balance="even", reorder=False),
        meter,
        Limits(1 + epochs, updates, val_batches=0),
    )
    pl.seed_everything(data.seed, verbose=False)
    trainer.fit(task, datamodule=data)
    costs = _costs(meter.measured, task, data, local)
    compressed = measured_compressions(task, trainer.strategy.root_device)
    costs = replace(
        costs,
        update=meter.update_seconds,
        message=meter.message_seconds,
        gradients_bfloat16=compressed[BFloat16.name].nbytes,
        gradients_int8=compressed[Int8.name].nbytes,
        gradients_powersgd=compressed[PowerSGD.name].nbytes,
        compress_bfloat16=compressed[BFloat16.name].seconds,
        compress_int8=compressed[Int8.name].seconds,
        compress_powersgd=compressed[PowerSGD.name].seconds,
    )
    return SnapshotMeasurements(ranks, costs, held_out_error(meter.measured), compressed)


def held_out_error(measured: Sequence[Measured]) -> dict[str, float]:
    """Return the mean relative error of loads on calls that they were not fitted to, by operator.

    One of four sizes is held out, between the smallest and the largest. An operator all of whose calls have one size is
    left out.

    Args:
        measured: All calls.
    """
    sizes: dict[str, set[tuple[float, ...]]] = {}
    for one in measured:
        sizes.setdefault(one.operator, set()).add(_size(one))
    kept_from = {operator: set(sorted(found)[1::_HELD_OUT]) for operator, found in sizes.items()}
    held_out = [one for one in measured if _size(one) in kept_from[one.operator]]
    fitted = [one for one in measured if _size(one) not in kept_from[one.operator]]
    return LoadModel.fit(fitted).error(held_out) if held_out else {}


class OperatorMeter(pl.Callback):
    """Measures the operators of all ranks in the epochs behind the first.

    Args:
        epochs: That count.

    Attributes:
        measured: Calls of all ranks, at the end.
        update_seconds: What an update takes beside them, at the end: of the rank that is busy longest, the median.
        message_seconds: What an exchange of a row between all ranks takes, the median.
    """

    def __init__(self, epochs: int) -> None:
        self.measured: list[Measured] = []
        self.update_seconds = self.message_seconds = 0.0
        self._last, self._meter = epochs, LoadMeter(torch.device("cpu"))
        self._heard: list[Measured] = []
        self._begin, self._calls = 0.0, 0
        self._updates: list[tuple[float, float]] = []

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, SnapshotLinkPrediction)
        order = pl_module.group_order
        assert isinstance(order, PipelinedGroups)
        self._meter = order.meter
        self._meter.add(self._hear, pl_module.stages)
        assert isinstance(trainer.strategy, SnapshotRunner)
        self.message_seconds = _message_seconds(trainer.strategy)

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == 1:
            self._heard.clear()
            self._updates.clear()
        wait_for_device(pl_module.device)
        self._begin, self._calls = perf_counter(), len(self._heard)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        wait_for_device(pl_module.device)
        now, calls = perf_counter(), self._heard
        self._updates.append((now - self._begin, sum(one.seconds for one in calls[self._calls :])))
        self._begin, self._calls = now, len(calls)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch != self._last:
            return
        assert isinstance(pl_module, SnapshotLinkPrediction)
        assert isinstance(trainer.strategy, SnapshotRunner)
        self._meter.remove(self._hear, pl_module.stages)
        found = trainer.strategy.from_all_ranks(([astuple(one) for one in self._heard], self._updates))
        self.measured = [Measured(*one) for calls, _ in found for one in calls]
        updates = np.array([from_rank for _, from_rank in found])  # [ranks, updates, 2]
        # The rank that has computed longest has waited least for others.
        beside = (updates[..., 0] - updates[..., 1]).min(axis=0)
        self.update_seconds = float(max(np.median(beside), 0.0))

    def _hear(self, call: OperatorCall) -> None:
        """Record a call, unless it is a whole forward pass, whose operators are recorded one by one."""
        if call.measured.operator != FORWARD:
            self._heard.append(call.measured)


def _message_seconds(strategy: SnapshotRunner) -> float:
    """Return the median seconds in which each rank sends every other one a row; 0 if there is one rank."""
    exchange, seconds = strategy.exchange, []
    if exchange.ranks == 1:
        return 0.0
    counts = [1] * exchange.ranks
    rows = torch.zeros(exchange.ranks, 1, device=strategy.root_device)
    for _ in range(_MESSAGES):
        wait_for_device(strategy.root_device)
        begin = perf_counter()
        exchange.start(rows, counts, counts, "probe").wait()
        wait_for_device(strategy.root_device)
        seconds.append(perf_counter() - begin)
    return float(np.median(seconds))


def _size(one: Measured) -> tuple[float, ...]:
    return one.snapshots, one.vertices, one.edges, one.targets


def _costs(
    measured: Sequence[Measured], task: SnapshotLinkPrediction, data: SnapshotDataModule, local: Link
) -> SnapshotCosts:
    """Return what the operators of a snapshot take, graph operators by width."""
    if not measured:
        cure = "give more --updates, or leave it out"
        raise InvalidArgumentError("updates", "so many that every process trains a group", 0, cure)
    (group,) = data.train_dataloader().largest_group().groups
    task.operators = widths = ChosenOperators(task.operators)
    with torch.no_grad():
        task.step(group.snapshots[-1], task.start(group), last=True)
        carried = task.start(group)
    task.operators = widths.inner
    fitted, loads, found = LoadModel.fit(measured), {}, {}
    for operator, load in fitted.loads.items():
        width = _width(operator, widths, task) if operator.startswith("graph") else 1.0
        loads[operator] = Load(load.call, load.vertex / width, load.edge / width, load.target)
        if operator not in (BACKWARD, LAST_BACKWARD):
            found[operator] = width
    state = float(sum(tensor.numel() for tensor in carried))
    most = max(float(data.snapshots.sizes[0].max()), 1.0)
    return SnapshotCosts(
        LoadModel(loads, fitted.last_only),
        found,
        state_width=state / most,
        embedding_width=float(task.model.embedding_dim),  # type: ignore[arg-type, union-attr]
        hand_over=local.latency + _FLOAT * state / local.bandwidth,
        gradients=gradient_bytes(task),
    )


def _width(operator: str, operators: ChosenOperators, task: SnapshotLinkPrediction) -> float:
    """Return the width of the rows that a graph operator multiplies, which travel where vertices are cut."""
    layer = int(operator.split()[1]) - 1
    if layer not in operators.widths:  # a layer of the user's own, which has not reported them
        assert task.model is not None
        return float(task.model.embedding_dim)  # type: ignore[arg-type]
    in_dim, out_dim = operators.widths[layer]
    weights_first: Callable[[int, int, int], bool] = operators.inner.weights_first
    return float(out_dim if weights_first(layer, in_dim, out_dim) else in_dim)
