"""Logs what ranks exchange: bytes against formulas, balance, cache, and how much of the way is hidden."""

from __future__ import annotations

from functools import partial

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.callbacks.figures.exchange_figures import Counts, exchange_figures, residual_figure
from lightning_tgnn.callbacks.figures.tensorboard_writers import write_figure
from lightning_tgnn.callbacks.monitor import WindowedMonitor
from lightning_tgnn.comm import Flow, StepTraffic
from lightning_tgnn.types import EventBatch, NodeStateTask, has_stages
from lightning_tgnn.types.layout import STATE


class ExchangeMonitor(WindowedMonitor):
    """Logs what the ranks of a strategy that shares node state exchange in training steps.

    Means per step over a window, bytes and rows summed over ranks, logged by rank 0:

    - ``exchange/<operation>_bytes`` and ``exchange/total_bytes``: sent to other ranks; gradients of weights apart.
    - ``exchange/formula_sven_bytes``, ``…_depcomm_…``, ``…_depcache_…``: bytes sent for these batches by Sven's Eq. 7
      to 9, with their ``exchange/sampled_redundancy`` and ``exchange/original_redundancy``, eta1 and eta2.
    - ``exchange/cache_hit_rate``: share of the requested rows that the row cache had.
    - ``exchange/max_over_mean``: of the bytes that each rank sends and receives.
    - ``exchange/hidden_share``: share of the time in which rows travel and no rank waits for them.
    - ``sven/micro_batches``, ``sven/staleness``: what the strategy is set to.

    At the end of an epoch TensorBoard gets ``exchange/residual``, a heat map of ``J C_max - C`` (Sven, Eq. 2) of the
    bytes sent in that epoch.

    Args:
        every_n_steps: Batches of a window; a shorter one ends each epoch.

    Attributes:
        latest: The figures of the latest window, on every rank.

    Raises:
        InvalidArgumentError: The window has no batch; in `setup`, a Trainer has several of these.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        super().__init__(every_n_steps)
        self._window: StepTraffic | None = None

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        strategy, task = self.strategy_of(trainer), pl_module
        self._window = None
        if strategy is None:
            return
        assert has_stages(task)
        self._strategy, self._task = strategy, task
        self._window = StepTraffic(strategy.exchange.traffic)
        self._sent = torch.zeros(trainer.world_size, dtype=torch.float64)
        self._clear()

    def _clear(self) -> None:
        # Of the batches: roots, distinct nodes, sources and destinations, distinct ones; rows asked for, and found.
        self._seen = [0] * 6
        self._neighbors: Tensor | int = 0

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        if self._window is not None:
            self._rows_before = _rows_asked_for(self._task)
            self._window.begin()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        if self._window is None:
            return
        assert isinstance(batch, EventBatch)
        self._window.end()
        rows = [now - before for now, before in zip(_rows_asked_for(self._task), self._rows_before, strict=True)]
        # Later passes over a batch read and write nothing; the first has read for them.
        reads, writes = batch.shared.reads, batch.shared.writes
        read = [len(batch.root_index), len(batch.nodes)] if reads else [0, 0]
        read = [count + len(batch.shared.later) for count in read]
        seen = [*read, *([2 * len(batch), batch.num_written] if writes else [0, 0]), *rows]
        self._seen = [total + more for total, more in zip(self._seen, seen, strict=True)]
        # A tensor until the window closes: to make a number of it is to wait for the device.
        if reads:
            self._neighbors = self._neighbors + batch.neighbor_mask.sum()
        if self._window.steps == self.every_n_steps:
            self._close_window(trainer)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._window is None:
            return
        if self._window.steps:
            self._close_window(trainer)
        sent = _of_all_ranks(trainer, self._sent)
        self._sent.zero_()
        if trainer.is_global_zero and trainer.world_size > 1:
            write_figure(trainer, "exchange/residual", partial(residual_figure, sent))

    def _close_window(self, trainer: pl.Trainer) -> None:
        window, strategy = self._window, self._strategy
        assert window is not None
        roots, distinct, written, distinct_written, asked, found = self._seen
        # Where ranks take turns, one may have had no part in what others have done.
        operations = sorted(set().union(*strategy.of_all_ranks(list(window.flows))))
        flows = {operation: window.flows.get(operation, Flow()) for operation in operations}
        counts = Counts(roots + int(self._neighbors), distinct, written, distinct_written, asked, found, flows)
        packed = _of_all_ranks(trainer, counts.packed())
        self.latest = exchange_figures(
            packed, operations, window.steps, self._task.state_spec, sharing=strategy.ranks_per_copy
        )
        self.latest["sven/staleness"] = float(strategy.staleness)
        if (order := strategy.order) is not None:
            self.latest["sven/micro_batches"] = float(order.micro_batches)
        self.log_latest(trainer)
        for flow in window.flows.values():
            sharing = list(strategy.layout.group_of(STATE, trainer.global_rank))
            self._sent[sharing[: len(flow.sent_to)]] += torch.tensor(flow.sent_to, dtype=torch.float64)
        window.clear()
        self._clear()


def _rows_asked_for(task: NodeStateTask[object]) -> tuple[int, int]:
    """Return how many rows of other ranks the store has been asked for so far, and how many its cache had."""
    return task.state_store.asked, task.state_store.found


def _of_all_ranks(trainer: pl.Trainer, row: Tensor) -> Tensor:
    """Return [M, n], on the CPU, of every rank's row [n]."""
    strategy = trainer.strategy
    # As a sum, each rank's row in its place: the gather that Lightning offers is one that torch is giving up.
    table = row.new_zeros(trainer.world_size, len(row), device=strategy.root_device)
    table[trainer.global_rank] = row
    summed = strategy.reduce(table, reduce_op="sum")
    return summed.cpu()
