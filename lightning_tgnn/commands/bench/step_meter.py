"""What training steps cost: time, and what the ranks exchange."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import lightning.pytorch as pl

from lightning_tgnn.comm import Flow
from lightning_tgnn.commands.bench.over_ranks import finish, plain_flows, reduced, summed_flows
from lightning_tgnn.strategies.runner import PlanRunner

# Control flow of an exchange: everybody has to wait for it before anything can be hidden.
_NEVER_HIDDEN = {"counts", "request"}


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
            "flows": plain_flows(self.flows),
        }


class StepMeter(pl.Callback):
    """Measures training steps under a `PlanRunner`, from the end of the last one of the warm-up.

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
        finish(strategy.root_device)
        strategy.barrier()
        strategy.exchange.traffic.take()
        self._begin = perf_counter()

    def _stop(self, trainer: pl.Trainer) -> None:
        strategy = _strategy(trainer)
        finish(strategy.root_device)
        seconds = perf_counter() - self._begin
        (events,) = reduced(strategy, [self._events], "sum")
        (slowest,) = reduced(strategy, [seconds], "max")
        flows = summed_flows(strategy, strategy.exchange.traffic.take())
        self.measurement = Measurement(int(events), slowest, flows)


def _strategy(trainer: pl.Trainer) -> PlanRunner:
    assert isinstance(trainer.strategy, PlanRunner)
    return trainer.strategy
