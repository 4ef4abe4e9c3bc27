"""What a partition of the nodes costs every rank (Sven, section 3.1.2)."""

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
