"""Sets and logs what CDFGNN's cache does: threshold, rows sent, error, bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.types import STEP_OUTPUT
from typing_extensions import override

from lightning_tgnn.algorithms.traffic.cache_policy import ErrorController, ThresholdController
from lightning_tgnn.callbacks.measures.tensorboard_writers import write_figure
from lightning_tgnn.callbacks.monitor import check_only_one
from lightning_tgnn.comm import Flow
from lightning_tgnn.strategies.runner import PlanRunner

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_COUNTS = ("sent", "possible", "plain_bytes", "held", "size")


class CacheThreshold(Callback):
    """Sets the controller of ``CDFGNNStrategy(threshold="adaptive")`` or ``"paper"``, and logs what the cache does.

    All ranks choose the same thresholds, from what all of them have measured. Rank 0 logs for all ranks together, in
    every epoch: ``cache/threshold``, the mean over the sums; for every layer and direction
    ``cache/<layer>/<direction>_sent``, the share of the rows that were sent, ``…_error``, the greatest error of the
    quantiser, and ``…_held``, the root of the mean square of the changes that were held back, relative to the rows;
    ``cache/sent``, the share of all rows; ``cache/bytes`` sent in training, ``cache/bytes_outer``, the bytes
    sent to other hosts, and ``cache/bytes_saved``, the bytes saved against float32 rows without a cache. At the end
    TensorBoard gets ``cache/epochs``, a picture of threshold and share.

    Args:
        threshold: The first threshold, in [0, 1); None is 0.05, and 0.006 with ``"paper"``.
        error: With ``"adaptive"``, the greatest error of the changes held back; see `ErrorController`.
        share: With ``"adaptive"``, the share of the rows above which a threshold rises.
        rise: With ``"paper"``, by how much the accuracy has to lie above its moving mean to relax the threshold.
        fall: With ``"paper"``, by how much the accuracy has to lie below that mean to tighten it.
        least: The lowest threshold.
        greatest: The highest threshold.

    Attributes:
        history: Threshold and share of rows sent, by epoch.

    Raises:
        InvalidArgumentError: The threshold is not in [0, 1); in `setup`, a Trainer has several of these.
    """

    def __init__(
        self,
        *,
        threshold: float | None = None,
        error: float = 0.03,
        share: float = 0.1,
        rise: float = 0.02,
        fall: float = 0.001,
        least: float = 0.001,
        greatest: float = 0.3,
    ) -> None:
        common = {"least": least, "greatest": greatest} | ({} if threshold is None else {"threshold": threshold})
        # They refuse now what would not work in training.
        self._by_error = ErrorController(error=error, share=share, **common)
        self._by_accuracy = ThresholdController(rise=rise, fall=fall, **common)
        self.history: list[tuple[float, float]] = []
        self._before: dict[str, Flow] = {}

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        check_only_one(trainer, CacheThreshold, "threshold")

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        strategy = trainer.strategy
        if not isinstance(strategy, PlanRunner) or strategy.replica_state is None:
            rank_zero_info(f"CacheThreshold has nothing to do: {type(strategy).__name__} has no cache")
            return
        # A resumed run takes thresholds and mean from its checkpoint, later.
        strategy.replica_state.controller = replace(self._by_accuracy)
        strategy.replica_state.error_controller = self._by_error
        self._before, self.history = strategy.exchange.traffic.snapshot(), []

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        strategy = trainer.strategy
        state = strategy.replica_state if isinstance(strategy, PlanRunner) else None
        if not isinstance(strategy, PlanRunner) or state is None or state.replicas is None:
            return
        replicas = state.replicas
        since, self._before = strategy.exchange.traffic.since(self._before), strategy.exchange.traffic.snapshot()
        flows = [flow for name, flow in since.items() if "forward" in name or "backward" in name]
        sent = sum(flow.sent for flow in flows)
        away = state.hosts != state.hosts[strategy.global_rank]
        outer = sum(int(torch.tensor(flow.sent_to)[away].sum()) for flow in flows)
        rows = replicas.take_rows()
        names = sorted(rows)  # the same on all ranks, which exchange in the same order
        counts = [[getattr(rows[name], count) for count in _COUNTS] for name in names]
        device = strategy.root_device
        summed = torch.tensor([*counts, [sent, outer, 0, 0, 0]], dtype=torch.float64, device=device)
        summed = strategy.reduce(summed, reduce_op="sum")
        errors = torch.tensor([rows[name].error for name in names], dtype=torch.float64, device=device)
        errors = strategy.reduce(errors, reduce_op="max")
        thresholds = [replicas.thresholds.get(name, replicas.threshold) for name in names]
        metrics = {"cache/threshold": sum(thresholds) / len(thresholds) if names else replicas.threshold}
        for place, name in enumerate(names):
            went, possible, _, held, size = summed[place].tolist()
            metrics[f"cache/{name}_sent"] = went / max(possible, 1)
            metrics[f"cache/{name}_error"] = float(errors[place])
            metrics[f"cache/{name}_held"] = sqrt(held / size) if size else 0.0
        went, possible, plain, *_ = summed[:-1].sum(0).tolist()
        metrics["cache/sent"] = went / max(possible, 1)
        metrics["cache/bytes"], metrics["cache/bytes_outer"] = summed[-1, :2].tolist()
        metrics["cache/bytes_saved"] = plain - metrics["cache/bytes"]
        self.history.append((metrics["cache/threshold"], metrics["cache/sent"]))
        pl_module.log_dict(metrics, batch_size=1, rank_zero_only=True)

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.history or not trainer.is_global_zero:
            return
        write_figure(trainer, "cache/epochs", partial(epochs_figure, self.history))


def epochs_figure(history: list[tuple[float, float]]) -> Figure:
    """Return a matplotlib figure of the threshold and of the share of rows sent, epoch by epoch."""
    from matplotlib.figure import Figure  # not pyplot: nothing to open a window or to keep metrics alive

    thresholds, shares = zip(*history, strict=True)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="epoch", ylabel="share of rows sent", ylim=(0, 1.05))
    axes.plot(shares, color="tab:blue", label="rows sent")
    other = axes.twinx()
    other.plot(thresholds, color="tab:orange", label="threshold")
    other.set_ylabel("threshold")
    figure.legend(loc="outside upper center", ncols=2)
    return figure
