"""Logs what ranks exchange: bytes against formulas, balance, cache, and how much of the way is hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.partitions.partition_cost import BatchShape, depcache_volume, depcomm_volume, sven_volume
from lightning_tgnn.callbacks.measures.tensorboard_writers import write_figure
from lightning_tgnn.callbacks.monitor import WindowedMonitor
from lightning_tgnn.comm import Flow, StepTraffic
from lightning_tgnn.types import EventBatch, NodeStateTask, StateSpec, has_stages
from lightning_tgnn.types.layout import STATE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        latest: The metrics of the latest window, on every rank.

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
        sent = _from_all_ranks(trainer, self._sent)
        self._sent.zero_()
        if trainer.is_global_zero and trainer.world_size > 1:
            write_figure(trainer, "exchange/residual", partial(residual_figure, sent))

    def _close_window(self, trainer: pl.Trainer) -> None:
        window, strategy = self._window, self._strategy
        assert window is not None
        roots, distinct, written, distinct_written, asked, found = self._seen
        # Where ranks take turns, one may have had no part in what others have done.
        operations = sorted(set().union(*strategy.from_all_ranks(list(window.flows))))
        flows = {operation: window.flows.get(operation, Flow()) for operation in operations}
        counts = Counts(roots + int(self._neighbors), distinct, written, distinct_written, asked, found, flows)
        packed = _from_all_ranks(trainer, counts.packed())
        self.latest = exchange_metrics(
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


def _from_all_ranks(trainer: pl.Trainer, row: Tensor) -> Tensor:
    """Return [M, n], on the CPU, of every rank's row [n]."""
    strategy = trainer.strategy
    # As a sum, each rank's row in its place: the gather that Lightning offers is one that torch is giving up.
    table = row.new_zeros(trainer.world_size, len(row), device=strategy.root_device)
    table[trainer.global_rank] = row
    summed = strategy.reduce(table, reduce_op="sum")
    return summed.cpu()


_OF_FLOW = ("sent", "received", "waited", "in_flight")
_OF_BATCHES = ("entries", "distinct", "written", "distinct_written", "asked", "found")
_WITH_ROWS = ("dispatch", "dispatch_ahead", "aggregation")
_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Counts:
    """What one rank has counted over some steps; `packed` makes one row of numbers of it, for a gather.

    Attributes:
        entries: Entries of the sampled series: roots and their neighbours.
        distinct: Distinct nodes among them.
        written: Entries of the original series: sources and destinations.
        distinct_written: Distinct nodes among them.
        asked: Rows of other ranks that were asked for.
        found: Those of them that the row cache had.
        flows: `lightning_tgnn.comm.Flow` per operation.
    """

    entries: float
    distinct: float
    written: float
    distinct_written: float
    asked: float
    found: float
    flows: Mapping[str, Flow]

    def packed(self) -> Tensor:
        """Return float64 [6 + 4 operations], operations in alphabetical order."""
        values = [getattr(self, name) for name in _OF_BATCHES]
        values += [getattr(self.flows[operation], name) for operation in sorted(self.flows) for name in _OF_FLOW]
        return torch.tensor(values, dtype=torch.float64)


def exchange_metrics(
    packed: Tensor, operations: Sequence[str], steps: int, spec: StateSpec, *, sharing: int | None = None
) -> dict[str, float]:
    """Return what is logged.

    The formulas count a row at its sender and at its receiver. Bytes *sent* are what is measured, so half of them is
    given, at 4 bytes an element. For a mailbox of several mails they suppose one, as printed.

    Args:
        packed: float64 [M, 6 + 4 operations], `Counts.packed` of every rank.
        operations: In any order.
        steps: Steps that the counts are of.
        spec: Widths of a row.
        sharing: How many ranks share a copy of node state; all if None.
    """
    ranks, width = len(packed), len(_OF_BATCHES)
    batch_counts = dict(zip(_OF_BATCHES, packed[:, :width].sum(0).tolist(), strict=True))
    flows = packed[:, width:].view(ranks, len(operations), len(_OF_FLOW))
    sent = dict(zip(sorted(operations), flows[..., 0].sum(0).tolist(), strict=True))
    load = flows[..., :2].sum((1, 2))
    rows = flows[:, [number for number, name in enumerate(sorted(operations)) if name in _WITH_ROWS]].sum((0, 1))
    waited, in_flight = rows[2:].tolist()

    metrics = {f"exchange/{operation}_bytes": count / steps for operation, count in sent.items()}
    metrics["exchange/total_bytes"] = sum(sent.values()) / steps
    metrics["exchange/max_over_mean"] = float(load.max() / load.mean()) if load.any() else 1.0
    if in_flight:
        metrics["exchange/hidden_share"] = 1 - waited / in_flight
    if batch_counts["asked"]:
        metrics["exchange/cache_hit_rate"] = batch_counts["found"] / batch_counts["asked"]
    return metrics | _formulas(batch_counts, sharing or ranks, steps, spec)


def _formulas(counts: Mapping[str, float], ranks: int, steps: int, spec: StateSpec) -> dict[str, float]:
    shape = BatchShape(
        ranks=ranks,
        memory_dim=spec.memory_dim,
        message_dim=spec.mail_dim,
        sampled=counts["entries"] / steps,
        sampled_redundancy=_repeated(counts["entries"], counts["distinct"]),
        original=counts["written"] / steps,
        original_redundancy=_repeated(counts["written"], counts["distinct_written"]),
    )
    volumes = {"sven": sven_volume(shape), "depcomm": depcomm_volume(shape), "depcache": depcache_volume(shape)}
    metrics = {f"exchange/formula_{name}_bytes": _ELEMENT_BYTES * volume / 2 for name, volume in volumes.items()}
    metrics["exchange/sampled_redundancy"] = shape.sampled_redundancy
    metrics["exchange/original_redundancy"] = shape.original_redundancy
    return metrics


def _repeated(entries: float, distinct: float) -> float:
    return 1 - distinct / entries if entries else 0.0


def residual_figure(sent: Tensor) -> Figure:
    """Return a matplotlib figure of ``J C_max - C``, by how much each pair of ranks stays under the busiest (Eq. 2).

    Args:
        sent: float64 [M, M], C, bytes from each rank (row) to each other (column).
    """
    from matplotlib.figure import Figure  # not pyplot: nothing to open a window or to keep metrics alive

    residual = (sent.max() - sent).fill_diagonal_(0) / 2**20
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="to rank", ylabel="from rank", title="MiB sent less than by the busiest pair")
    image = axes.imshow(residual.numpy(), cmap="viridis")
    axes.set_xticks(range(len(sent)))
    axes.set_yticks(range(len(sent)))
    figure.colorbar(image)
    return figure
