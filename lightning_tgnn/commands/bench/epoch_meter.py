"""What epochs of full-batch training cost: time, and what the ranks exchange."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import lightning.pytorch as pl

from lightning_tgnn.comm import Flow
from lightning_tgnn.commands.bench.over_ranks import finish, plain_flows, reduced, summed_flows
from lightning_tgnn.strategies.runner import PlanRunner


@dataclass(frozen=True)
class EpochMeasurement:
    """Some epochs, over all ranks.

    Attributes:
        seconds_per_epoch: Of the slowest rank, mean of the epochs after the warm-up.
        epochs: All of them, those of the warm-up too.
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

    def figures(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "seconds_per_epoch": self.seconds_per_epoch,
            "bytes_per_epoch": sum(self.bytes_per_epoch.values()),
            "bytes_per_epoch_by_operation": self.bytes_per_epoch,
            "rows_sent": self.rows_sent,
            "rows_possible": self.rows_possible,
            "rows_share": self.rows_share,
            "flows": plain_flows(self.flows),
        }


class EpochMeter(pl.Callback):
    """Measures training under a new `CDFGNNStrategy`, whose epochs are one step each.

    Args:
        warmup: Epochs before the time is taken, at least 1: loops are compiled and buffers grow.
        epochs: All epochs.
    """

    def __init__(self, warmup: int, epochs: int) -> None:
        self._warmup, self._epochs = warmup, epochs
        self._epoch = 0
        self._begin = 0.0
        self.measurement: EpochMeasurement | None = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count an epoch."""
        self._epoch += 1
        strategy: Any = trainer.strategy
        if self._epoch == self._warmup:
            finish(strategy.root_device)
            strategy.barrier()
            self._begin = perf_counter()
        elif self._epoch == self._epochs:
            self.measurement = self._measured(strategy)

    def _measured(self, strategy: PlanRunner) -> EpochMeasurement:
        finish(strategy.root_device)
        seconds = perf_counter() - self._begin
        state = strategy.replica_state
        rows = [] if state is None or state.replicas is None else state.replicas.take_rows().values()
        counts = [sum(count.sent for count in rows), sum(count.possible for count in rows)]
        (slowest,) = reduced(strategy, [seconds], "max")
        sent, possible = reduced(strategy, counts, "sum")
        flows = summed_flows(strategy, strategy.exchange.traffic.take())
        return EpochMeasurement(slowest / (self._epochs - self._warmup), self._epochs, flows, int(sent), int(possible))
