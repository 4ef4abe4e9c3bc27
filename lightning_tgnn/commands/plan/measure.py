"""Measures the stages of a user's training on this machine, with as many processes at once as it is to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product
from statistics import median
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities.types import STEP_OUTPUT

from lightning_tgnn.callbacks import SystemMonitor
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.bench.comparison import Limits, RunOptions
from lightning_tgnn.commands.bench.meters import reduced, summed_flows
from lightning_tgnn.commands.bench.tables import say, without_setup_notes
from lightning_tgnn.commands.plan.gradient_compression import CompressedGradients, gradient_bytes, measured_compressions
from lightning_tgnn.commands.simulate.plans import CUT_COPIES
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.state import state_bytes
from lightning_tgnn.strategies.depcache import DepCacheStrategy
from lightning_tgnn.strategies.disttgl import DistTGLStrategy
from lightning_tgnn.strategies.pipetgl import PipeTGLStrategy
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.strategies.stage_recorder import wait_for_device
from lightning_tgnn.strategies.sven import SvenStrategy
from lightning_tgnn.tasks import LinkPrediction
from lightning_tgnn.types import datamodule_of, has_stages

_WINDOWS = 3  # that count
_LOOKED_AT = 24  # batches whose rows are compared with the rows of the batch before
_NARROW = 100  # events
_WIDER = 4  # how many times as large the second batch is from which the share that does not grow follows


@dataclass(frozen=True)
class MeasuredTurns:
    """A strategy as it has run on this machine.

    Attributes:
        seconds: Of the stages of a turn of one rank, without those in which it waited for others.
        seconds_per_turn: What a turn has taken, waiting and all that lies between steps included.
        sent: Bytes by operation that all ranks have sent in a turn; gradients apart.
        windows: Seconds of a turn in each window of steps that it was measured in; the rest is of the fastest.
    """

    seconds: Mapping[str, float]
    seconds_per_turn: float
    sent: Mapping[str, float]
    windows: tuple[float, ...] = ()

    def with_windows_of(self, other: MeasuredTurns | None) -> MeasuredTurns:
        """Return the faster of two, with the windows of both."""
        if other is None:
            return self
        return replace(min(other, self, key=_turn), windows=other.windows + self.windows)


@dataclass(frozen=True)
class Measurements:
    """What was measured of the stream, the model and the strategies.

    Attributes:
        processes: That ran at once.
        batch_size: Events per rank and turn.
        strategies: By name; disttgl with a copy of node memory for each process, `CUT_COPIES` with one that is cut
            over all of them.
        fixed_share: Share of a turn that does not grow with the batch; None where noise hid it.
        gradient_bytes: Of all weights.
        state_bytes: Of a copy of node state.
        targets: Share of a batch's rows that the batch before changes.
        repeated: Share of the rows which a batch writes that the next one writes, too.
        compressed: What compressions make of gradients, by name.
    """

    processes: int
    batch_size: int
    strategies: Mapping[str, MeasuredTurns]
    fixed_share: float | None
    gradient_bytes: float
    state_bytes: float
    targets: float
    repeated: float
    compressed: Mapping[str, CompressedGradients] = field(default_factory=dict)

    @property
    def spread(self) -> float:
        """How much longer than its fastest window the median one of a strategy took, at most; 0.1 is a tenth."""
        windows = [measured.windows for measured in self.strategies.values() if measured.windows]
        return max((median(each) / min(each) - 1 for each in windows), default=0.0)

    def turn_of(self, events: float) -> float:
        """Return how long a turn of so many events takes, beside one of ``batch_size``."""
        fixed = self.fixed_share or 0.0
        return fixed + (1 - fixed) * events / self.batch_size


class StageMeter(SystemMonitor):
    """Measures windows of steps, after one to warm up.

    Args:
        steps: Of a window.

    Attributes:
        measured: The fastest window, which others on the machine have disturbed least; None before the first.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(every_n_steps=steps, points=0)
        self._steps, self._begin = steps, 0.0
        self.passed = 0
        self.measured: MeasuredTurns | None = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        """Count a step; the window that it may end is on all ranks at the same step."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        strategy = trainer.strategy
        assert isinstance(strategy, PlanRunner)
        self.passed += 1
        if self.passed % self._steps:
            return
        wait_for_device(strategy.root_device)
        taken = perf_counter() - self._begin
        if self.passed > self._steps:
            (slowest,) = reduced(strategy, [taken], "max")
            found = self._from_window(slowest / self._steps, strategy)
            self.measured = found.with_windows_of(self.measured)
        strategy.barrier()
        strategy.exchange.traffic.take()
        self._begin = perf_counter()

    def _from_window(self, turn: float, strategy: PlanRunner) -> MeasuredTurns:
        flows = summed_flows(strategy, strategy.exchange.traffic.take())
        step = self.latest["system/milliseconds_per_step"] / 1e3
        seconds = {name.removeprefix("time/"): each * step for name, each in self.latest.items() if "time/" in name}
        seconds.pop("wait", None)
        # What no worker has hidden, and what Lightning does between steps, is a rank's own time.
        between = max(turn - step, 0.0) + seconds.pop("sample", 0.0)
        seconds["other"] = seconds.get("other", 0.0) + between
        return MeasuredTurns(seconds, turn, {name: flow.sent / self._steps for name, flow in flows.items()}, (turn,))


def _turn(measured: MeasuredTurns) -> float:
    return measured.seconds_per_turn


@without_setup_notes()
def measure(
    data: TemporalDataModule,
    task_options: dict[str, Any],
    run: RunOptions,
    batch_size: int | None,
    *,
    steps: int,
    rounds: int,
) -> Measurements:
    """Train for some steps with each strategy; called by every process.

    Args:
        data: What to train on.
        task_options: Arguments of `LinkPrediction`.
        run: Where.
        batch_size: Events per rank and turn; None for what saturates a device, as far as that can be seen.
        steps: Of a window.
        rounds: Times that the strategies take turns.
    """
    ranks = run.processes.ranks
    narrow, own_events = batch_size or _NARROW, len(data.split.train) // ranks
    largest = own_events // (2 * steps)  # of which there are enough turns
    if largest < (batch_size or 1):
        cure = "give a longer stream, fewer --steps or --processes, or a smaller --batch_size"
        received = f"{own_events:,} on each of {ranks} processes"
        requirement = f"a stream of at least {2 * steps * (batch_size or 1):,} training events per process"
        raise InvalidArgumentError("source", requirement, received, cure)
    wide = max(min(_WIDER * narrow, own_events // 4), narrow + 1)
    turns: dict[int, float] = {}
    for size in (wide, narrow):  # the first run pays for what later ones find warm
        data.batch_size = size
        say(f"depcache, batches of {size} events, {ranks} processes at once")
        window = max(min(steps // 2, own_events // size // 2), 1)
        turns[size] = _trained(data, task_options, run, DepCacheStrategy(), window)[0].seconds_per_turn
    size = batch_size or saturating_size(turns, narrow, wide, largest)
    data.batch_size = size
    strategies: dict[str, Callable[[], PlanRunner]] = {
        "depcache": DepCacheStrategy,
        "sven": SvenStrategy,
        "pipetgl": PipeTGLStrategy,
        "disttgl": lambda: DistTGLStrategy(memory=ranks),
        CUT_COPIES: lambda: DistTGLStrategy(minibatch=ranks, store="sharded"),
    }
    found: dict[str, MeasuredTurns] = {}
    for number, (name, strategy) in product(range(rounds), strategies.items()):
        say(f"{name}, batches of {size} events, round {number + 1} of {rounds}")
        runner = strategy()
        measured, task = _trained(data, task_options, run, runner, steps)
        found[name] = measured.with_windows_of(found.get(name))
    if size == narrow:
        turns[narrow] = min(turns[narrow], found["depcache"].seconds_per_turn)
    assert has_stages(task)
    device = runner.root_device
    targets, repeated = _shares_of_rows(data)
    return Measurements(
        processes=ranks,
        batch_size=size,
        strategies=found,
        fixed_share=fixed_share(turns, narrow, wide, size),
        gradient_bytes=gradient_bytes(task),
        state_bytes=float(state_bytes(task.state_spec)),
        targets=targets,
        repeated=repeated,
        compressed=measured_compressions(task, device),
    )


def _line(turns: Mapping[int, float], narrow: int, wide: int) -> tuple[float, float]:
    """Return the seconds of a turn that do not grow with its events, and the seconds of each event."""
    growing = min(max(turns[wide] - turns[narrow], 1e-9) / (wide - narrow), turns[narrow] / narrow)
    return turns[narrow] - growing * narrow, growing


def saturating_size(turns: Mapping[int, float], narrow: int, wide: int, largest: int) -> int:
    """Return the events at which four fifths of the speed of endless batches are reached, within what was measured.

    Args:
        turns: Seconds of a turn of ``narrow`` and of ``wide`` events.
        narrow: Fewer events are not chosen: nobody has seen how fast these are.
        wide: Nor are more.
        largest: Events of which there are enough turns, which may be less than both.
    """
    fixed, growing = _line(turns, narrow, wide)
    return min(max(round(4 * fixed / growing), narrow), wide, largest)


def fixed_share(turns: Mapping[int, float], narrow: int, wide: int, size: int) -> float | None:
    """Return the share of a turn of ``size`` events that does not grow with them.

    It is None where events of ``wide`` took as long as events of ``narrow`` each, or longer: a share never grows, and
    noise hid it.
    """
    if turns[wide] / wide >= turns[narrow] / narrow:
        return None
    fixed, growing = _line(turns, narrow, wide)
    return fixed / (fixed + growing * size)


def _trained(
    data: TemporalDataModule, task_options: dict[str, Any], run: RunOptions, strategy: PlanRunner, steps: int
) -> tuple[MeasuredTurns, LinkPrediction]:
    """Train a new task and return what was measured."""
    meter, task = StageMeter(steps), LinkPrediction(**task_options)
    trainer = run.trainer(strategy, meter, Limits(1, (1 + _WINDOWS) * steps, 0))
    pl.seed_everything(data.seed, verbose=False)
    trainer.fit(task, datamodule=data)
    assert datamodule_of(trainer) is data
    if meter.measured is None:
        cure = "give a longer stream, fewer --steps or --processes, or a smaller --batch_size"
        received = f"{meter.passed} turns of {data.batch_size} events on {run.processes.ranks} processes"
        raise InvalidArgumentError("source", f"a stream of at least {2 * steps} turns", received, cure)
    return meter.measured, task


def _shares_of_rows(data: TemporalDataModule) -> tuple[float, float]:
    """Return which share of a batch's rows the batch before changes, and which share of those that it writes."""
    changed, rows, again, written = 0, 0, 0, 0
    before = np.empty(0, dtype=np.int64)
    for batch in islice(data.train_dataloader(), _LOOKED_AT):
        nodes = batch.nodes.numpy()
        same = np.isin(nodes, before)
        changed, rows = changed + int(same.sum()), rows + len(nodes)
        own = same[: batch.num_written]
        again, written = again + int(own.sum()), written + len(own)
        before = nodes[: batch.num_written]
    return changed / max(rows, 1), again / max(written, 1)
