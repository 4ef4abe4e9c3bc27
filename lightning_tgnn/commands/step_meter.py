"""What training steps cost: time, and what the ranks exchange."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import torch

from lightning_tgnn.comm import Flow
from lightning_tgnn.strategies.shared_state import SharedStateStrategy

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

    def figures(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "events_per_second": self.events_per_second,
            "events": self.events,
            "seconds": self.seconds,
            "sent_per_event": sum(self.sent_per_event.values()),
            "sent_per_event_by_operation": self.sent_per_event,
            "hidden_share": self.hidden_share,
            "flows": {name: {key: getattr(flow, key) for key in _SUMMED} for name, flow in self.flows.items()},
        }


class StepMeter(pl.Callback):
    """Measures training steps under a `SharedStateStrategy`, from the end of the last one of the warm-up.

    Args:
        warmup: Steps before, at least 1: loops are compiled and buffers grow.
        steps: Steps to measure.
    """

    def __init__(self, warmup: int, steps: int) -> None:
        self._warmup = warmup
        self._last = warmup + steps
        self._step = 0
        self._events = 0
        self._begin = 0.0
        self.measurement: Measurement | None = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step."""
        self._step += 1
        if self._step == self._warmup:
            self._start(trainer)
        elif self._warmup < self._step <= self._last:
            self._events += len(batch)
            if self._step == self._last:
                self._stop(trainer)

    def _start(self, trainer: pl.Trainer) -> None:
        strategy = _strategy(trainer)
        _finish(strategy.root_device)
        strategy.barrier()
        strategy.exchange.traffic.take()
        self._begin = perf_counter()

    def _stop(self, trainer: pl.Trainer) -> None:
        strategy = _strategy(trainer)
        _finish(strategy.root_device)
        seconds = perf_counter() - self._begin
        flows = strategy.exchange.traffic.take()
        names = sorted(flows)  # the same on all ranks, which exchange in the same order
        counted = [getattr(flows[name], key) for name in names for key in _SUMMED]
        events, *values = _reduced(strategy, [self._events, *counted], "sum")
        (slowest,) = _reduced(strategy, [seconds], "max")
        width = len(_SUMMED)
        summed = {name: _flow(*values[place * width :][:width]) for place, name in enumerate(names)}
        self.measurement = Measurement(int(events), slowest, summed)


def _strategy(trainer: pl.Trainer) -> SharedStateStrategy:
    assert isinstance(trainer.strategy, SharedStateStrategy)
    return trainer.strategy


def _finish(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reduced(strategy: SharedStateStrategy, values: list[float], operation: str) -> list[float]:
    """Return the sum or the maximum of each value over the ranks."""
    figures = torch.tensor(values, dtype=torch.float64, device=strategy.root_device)
    return strategy.reduce(figures, reduce_op=operation).tolist()


def _flow(sent: float, received: float, calls: float, waited: float, in_flight: float) -> Flow:
    return Flow(sent=int(sent), received=int(received), calls=int(calls), waited=waited, in_flight=in_flight)
