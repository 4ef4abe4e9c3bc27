"""The cost of training over all ranks, in steps or in epochs: time, and bytes that ranks exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT

from lightning_tgnn.comm import Flow
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.strategies.stage_recorder import wait_for_device
from lightning_tgnn.types import EventBatch

Metrics = dict[str, Any]
"""Plain values by name, as bench.json has them."""

# Control flow of an exchange: everybody has to wait for it before anything can be hidden.
_NEVER_HIDDEN = {"counts", "request"}
_SUMMED = ("sent", "received", "calls", "waited", "in_flight")


@dataclass(frozen=True)
class Measurement:
    """Some steps, over all ranks.

    Attributes:
        events: Events of the steps.
        seconds: Of the slowest rank.
        flows: Exchanges by operation, added up over the ranks; the all-reduce of gradients is not among them.
    """

    events: int
    seconds: float
    flows: dict[str, Flow]

    @property
    def events_per_second(self) -> float:
        """Events of all ranks per second."""
        return self.events / self.seconds

    @property
    def sent_per_event(self) -> dict[str, float]:
        """Bytes sent per event, by operation."""
        return {name: flow.sent / self.events for name, flow in self.flows.items()}

    @property
    def hidden_share(self) -> float | None:
        """Share of the time under way that nobody waited for; None where nothing was under way."""
        flows = [flow for name, flow in self.flows.items() if name not in _NEVER_HIDDEN]
        in_flight = sum(flow.in_flight for flow in flows)
        return 1 - sum(flow.waited for flow in flows) / in_flight if in_flight else None

    def metrics(self) -> Metrics:
        """Return all of it as plain values."""
        return {
            "events_per_second": self.events_per_second,
            "events": self.events,
            "seconds": self.seconds,
            "sent_per_event": sum(self.sent_per_event.values()),
            "sent_per_event_by_operation": self.sent_per_event,
            "hidden_share": self.hidden_share,
            "flows": _plain_flows(self.flows),
        }


@dataclass(frozen=True)
class EpochMeasurement:
    """Some epochs, over all ranks.

    Attributes:
        seconds_per_epoch: Of the slowest rank, mean of the epochs after the warm-up.
        epochs: All epochs, warm-up included.
        flows: Exchanges of all epochs by operation; the all-reduce of gradients is not among them.
        rows_sent: Rows of replicas that went in all epochs.
        rows_possible: Rows that would have gone without a cache.
    """

    seconds_per_epoch: float
    epochs: int
    flows: dict[str, Flow]
    rows_sent: int
    rows_possible: int

    @property
    def bytes_per_epoch(self) -> dict[str, float]:
        """Bytes sent per epoch, by operation."""
        return {name: flow.sent / self.epochs for name, flow in self.flows.items()}

    @property
    def rows_share(self) -> float | None:
        """Share of the rows that went; None where nothing has to."""
        return self.rows_sent / self.rows_possible if self.rows_possible else None

    def metrics(self) -> Metrics:
        """Return all of it as plain values."""
        return {
            "seconds_per_epoch": self.seconds_per_epoch,
            "bytes_per_epoch": sum(self.bytes_per_epoch.values()),
            "bytes_per_epoch_by_operation": self.bytes_per_epoch,
            "rows_sent": self.rows_sent,
            "rows_possible": self.rows_possible,
            "rows_share": self.rows_share,
            "flows": _plain_flows(self.flows),
        }


class Meter(pl.Callback, ABC):
    """Measures training under a `PlanRunner`."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """Return what was measured as plain values, once training has ended."""


class WarmMeter(Meter):
    """Measures training steps, from the end of the last one of the warm-up.

    Args:
        warmup: Steps before, at least 1: loops are compiled and buffers grow.
        last: The step that ends what is measured, counted from 1.
    """

    def __init__(self, warmup: int, last: int) -> None:
        self._warmup, self._last = warmup, last
        self._step = 0
        self._begin = 0.0
        self._measurement: Measurement | EpochMeasurement | None = None

    def metrics(self) -> Metrics:
        """Return what was measured as plain values, once training has ended."""
        assert self._measurement is not None
        return self._measurement.metrics()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        """Count a step."""
        assert isinstance(trainer.strategy, PlanRunner)
        strategy = trainer.strategy
        self._step += 1
        if self._warmup < self._step <= self._last:
            self._count(batch)
        if self._step == self._warmup:
            wait_for_device(strategy.root_device)
            strategy.barrier()
            self._start(strategy)
            self._begin = perf_counter()
        elif self._step == self._last:
            wait_for_device(strategy.root_device)
            self._measurement = self._measured(strategy, perf_counter() - self._begin)

    def _count(self, batch: object) -> None:
        """Count what is in a batch that is measured."""

    def _start(self, strategy: PlanRunner) -> None:
        """Forget what was exchanged before, where it is not to count."""

    @abstractmethod
    def _measured(self, strategy: PlanRunner, seconds: float) -> Measurement | EpochMeasurement:
        """Return what all ranks have measured, where this one took ``seconds``."""


class StepMeter(WarmMeter):
    """Measures training steps.

    Args:
        warmup: Steps before.
        steps: Steps to measure.
    """

    def __init__(self, warmup: int, steps: int) -> None:
        super().__init__(warmup, warmup + steps)
        self._events = 0

    def _count(self, batch: object) -> None:
        assert isinstance(batch, EventBatch)
        self._events += len(batch)

    def _start(self, strategy: PlanRunner) -> None:
        strategy.exchange.traffic.take()

    def _measured(self, strategy: PlanRunner, seconds: float) -> Measurement:
        (events,) = reduced(strategy, [self._events], "sum")
        (slowest,) = reduced(strategy, [seconds], "max")
        flows = summed_flows(strategy, strategy.exchange.traffic.take())
        return Measurement(int(events), slowest, flows)


class EpochMeter(WarmMeter):
    """Measures training under a new `CDFGNNStrategy`, whose epochs are one step each; the exchanges of all count."""

    def _measured(self, strategy: PlanRunner, seconds: float) -> EpochMeasurement:
        state = strategy.replica_state
        rows = [] if state is None or state.replicas is None else state.replicas.take_rows().values()
        counts = [sum(count.sent for count in rows), sum(count.possible for count in rows)]
        (slowest,) = reduced(strategy, [seconds], "max")
        sent, possible = reduced(strategy, counts, "sum")
        flows = summed_flows(strategy, strategy.exchange.traffic.take())
        per_epoch = slowest / (self._last - self._warmup)
        return EpochMeasurement(per_epoch, self._last, flows, int(sent), int(possible))


def reduced(strategy: PlanRunner, values: Sequence[float], operation: str) -> list[float]:
    """Return the sum or the maximum of each value over the ranks."""
    metrics = torch.tensor(values, dtype=torch.float64, device=strategy.root_device)
    return strategy.reduce(metrics, reduce_op=operation).tolist()


def summed_flows(strategy: PlanRunner, flows: Mapping[str, Flow]) -> dict[str, Flow]:
    """Return the exchanges of all ranks, added up by operation."""
    # Not the same on all ranks: one that has had no batch has not exchanged what goes with it.
    names = sorted({name for rank in range(strategy.world_size) for name in strategy.broadcast(sorted(flows), rank)})
    values = reduced(strategy, [value for name in names for value in _counts(flows.get(name, Flow()))], "sum")
    width = len(_SUMMED)
    return {name: _flow(*values[place * width :][:width]) for place, name in enumerate(names)}


def _plain_flows(flows: Mapping[str, Flow]) -> dict[str, dict[str, float]]:
    return {name: dict(zip(_SUMMED, _counts(flow), strict=True)) for name, flow in flows.items()}


def _counts(flow: Flow) -> tuple[float, ...]:
    return flow.sent, flow.received, flow.calls, flow.waited, flow.in_flight


def _flow(sent: float, received: float, calls: float, waited: float, in_flight: float) -> Flow:
    return Flow(sent=int(sent), received=int(received), calls=int(calls), waited=waited, in_flight=in_flight)
