"""The figures that `ParallelismMonitor` computes from the ranks' measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import lightning.pytorch as pl
import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.information_loss import event_distances
from lightning_tgnn.algorithms.streams.node_ends import ends_by_node
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import StreamData, datamodule_of
from lightning_tgnn.types.layout import STATE

_TINY = 1e-30
_COUNTED = 1 << 20  # events


@dataclass(frozen=True)
class Factors:
    """How ranks are grouped.

    Attributes:
        copies: The ranks of every copy of node state, in their order.
        sharing: How many consecutive ones of these share a batch.
        place: Of this rank among those of its copy.
    """

    copies: tuple[tuple[int, ...], ...]
    sharing: int
    place: int

    @classmethod
    def of(cls, strategy: PlanRunner) -> Factors:
        """Return how the ranks of a strategy are grouped."""
        layout = strategy.layout
        ranks = layout.group_of(STATE, strategy.global_rank)
        return cls(layout.copies, strategy.ranks_per_batch, ranks.index(strategy.global_rank))


def information_loss(trainer: pl.Trainer, sharing: int) -> dict[str, float]:
    """Return the share of the updates of node memory that global batches lose, counted over the first 2^20 events.

    Args:
        trainer: Its DataModule knows the stream and the batch size; else there is nothing to say.
        sharing: How many ranks share a global batch.
    """
    data = datamodule_of(trainer)
    if not isinstance(data, StreamData):
        return {}
    events = data.split.train[:_COUNTED]
    ends = ends_by_node(data.store.src[events].numpy(), data.store.dst[events].numpy())
    return {"parallelism/information_loss": event_distances(*ends).loss(data.batch_size * sharing)}


def parallelism_figures(
    shares: Sequence[float], counted: Tensor | None, seconds: float, steps: int, factors: Factors
) -> dict[str, float]:
    """Return what is logged of time.

    Args:
        shares: Of each rank, the share of the time in which it has worked.
        counted: float64 [M, 6], by ranks what the memory process of a copy has counted (`ServedCounts`; zeros on ranks
            that are not the first of a copy), and for how many seconds the rank has waited for it; None without one.
        seconds: Of the window.
        steps: Of the window.
        factors: How ranks are grouped.
    """
    figures = {"parallelism/effective": float(sum(shares))}
    if counted is not None:
        read, written, waves, queued, busy, waited = counted.sum(0).tolist()
        figures["memory_process/rows_read_per_second"] = read / seconds
        figures["memory_process/rows_written_per_second"] = written / seconds
        figures["memory_process/queue_depth"] = queued / max(waves, 1)
        figures["memory_process/busy_share"] = busy / seconds / len(factors.copies)
        figures["memory_process/wait_milliseconds"] = 1e3 * waited / steps / len(counted)
    return figures


def spread_of_gradients(gradients: Tensor, factors: Factors) -> dict[str, float]:
    """Return the variance of the ranks' gradients, float32 [M, G], over the square of their mean, and its parts.

    An analysis of variance: between ranks that share a batch, between the groups of such ranks of a copy, and between
    copies. The parts add up to the whole.
    """
    order = torch.tensor([rank for ranks in factors.copies for rank in ranks])
    tree = gradients.double()[order].view(len(factors.copies), -1, factors.sharing, gradients.shape[1])
    of_batches = tree.mean(2, keepdim=True)
    of_copies = of_batches.mean(1, keepdim=True)
    mean = of_copies.mean(0, keepdim=True)
    square = float(mean.square().sum()) + _TINY

    def between(parts: Tensor, whole: Tensor) -> float:
        return float((parts - whole).square().sum(-1).mean()) / square

    parts = {
        "minibatch": between(tree, of_batches),
        "epoch": between(of_batches, of_copies),
        "memory": between(of_copies, mean),
    }
    figures = {f"parallelism/gradient_variance_{name}": value for name, value in parts.items()}
    return {"parallelism/gradient_variance": sum(parts.values()), **figures}
