"""What a partition of the nodes costs every rank, and how many elements a batch moves (Sven, section 3.1.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import Demand


@dataclass(frozen=True)
class BalanceReport:
    """Traffic between ranks under a partition, in rows of node state.

    Attributes:
        matrix: int64 [M, M], C: rows that owner i (row) and requester j (column) exchange; the diagonal counts rows
            that stay on their rank.
        residual: int64 [M, M], J * C_max - C (Eq. 2) with C_max the largest entry off the diagonal: how far the traffic
            of each pair of ranks stays below the cost of the busiest pair. The diagonal is 0, because it is no traffic.
        cost: int64 [M], rows that each rank receives and sends, the off-diagonal column and row sums of ``matrix``.
        maximum: The largest cost.
        max_over_mean: The largest cost over the mean cost. It is 1 in perfect balance, and also without any traffic.
        saved: int64 [M], the printed Eq. 5: demand of each rank for its own nodes. That traffic is *saved*: minimising
            its maximum would minimise the wrong quantity. The field is here to compare with the paper's metrics.
    """

    matrix: Tensor
    residual: Tensor
    cost: Tensor
    maximum: int
    max_over_mean: float
    saved: Tensor


def balance_report(demand: Demand, owner: Tensor) -> BalanceReport:
    """Measure the partition ``owner`` on ``demand``.

    Args:
        demand: What every rank needs.
        owner: Integers [N], the owner of every node.
    """
    ranks = demand.num_ranks
    links = owner.to(torch.int64)[demand.node] * ranks + demand.rank
    matrix = demand.count.new_zeros(ranks * ranks).scatter_add_(0, links, demand.count).view(ranks, ranks)
    saved = matrix.diagonal().clone()
    remote = matrix - torch.diag(saved)
    cost = remote.sum(0) + remote.sum(1)
    total, maximum = int(cost.sum()), int(cost.max())
    residual = (remote.max() - remote).fill_diagonal_(0)
    return BalanceReport(matrix, residual, cost, maximum, maximum * ranks / total if total else 1.0, saved)


@dataclass(frozen=True)
class BatchShape:
    """The sizes on which the volumes depend.

    Attributes:
        ranks: M, at least 1.
        memory_dim: d_mem, elements of a node's memory.
        message_dim: d_msg, elements of a mail, 2 d_mem + d_edge (Eq. 14).
        sampled: N1, entries of the sampled vertex series (roots and neighbours), summed over ranks.
        sampled_redundancy: eta1, the share of these entries that repeats another on the same rank, in [0, 1].
        original: N2, entries of the original series (sources and destinations), summed over ranks.
        original_redundancy: eta2, the share of these entries that repeats another on the same rank, in [0, 1].
    """

    ranks: int
    memory_dim: int
    message_dim: int
    sampled: float
    sampled_redundancy: float
    original: float
    original_redundancy: float


def sven_volume(batch: BatchShape) -> float:
    """Return Sven's elements per batch (Eq. 9): distinct rows are fetched, and distinct updates sent back."""
    return _fetched(batch) + _sent_back(batch)


def depcomm_volume(batch: BatchShape) -> float:
    """Return DepComm's elements per batch (Eq. 8): the updated memory of *every* sampled entry, and Sven's updates.

    Owners update memory before they send it, so mails do not travel, but entries that repeat travel every time.
    """
    return batch.sampled * batch.memory_dim * _both_ends(batch) + _sent_back(batch)


def depcache_volume(batch: BatchShape) -> float:
    """Return DepCache's elements per batch as printed (Eq. 7): all ranks hold all rows, an all-gather spreads updates.

    A plain all-gather sends each update to the M - 1 ranks that did not make it, which is 2 (M - 1) counted at both
    ends. The printed factor, 2 (M - 1)^2 / M, is (M - 1) / M of that. It applies the share of rows on other ranks once
    more, although every rank has a copy of all rows. This favours DepCache, the competitor.
    """
    return _sent_back(batch) * (batch.ranks - 1)


def _fetched(batch: BatchShape) -> float:
    row = batch.message_dim + batch.memory_dim
    return batch.sampled * (1 - batch.sampled_redundancy) * row * _both_ends(batch)


def _sent_back(batch: BatchShape) -> float:
    return _updates(batch) * _both_ends(batch)


def _updates(batch: BatchShape) -> float:
    return batch.original * (1 - batch.original_redundancy) * (batch.message_dim + batch.memory_dim)


def _both_ends(batch: BatchShape) -> float:
    return 2 * (batch.ranks - 1) / batch.ranks
