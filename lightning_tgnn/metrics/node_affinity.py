"""NDCG of predicted vectors of nodes."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from lightning_tgnn.metrics.functional import check_floating, ndcg_at_k


class NodeAffinityMetric(Metric):
    """NDCG@10 as TGB has it: the mean over the times of labels, of the mean over the nodes at a time.

    Args:
        k: Classes that count, from the highest score on.
        **kwargs: Arguments of `torchmetrics.Metric`.

    >>> metric = NodeAffinityMetric()
    >>> metric.update(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([7.0]).double())
    >>> metric.compute()
    tensor(1.)
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False

    rows: list[Tensor]

    def __init__(self, k: int = 10, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.k = k
        # One vector of float32, as in the empty state of a rank without labels: a gather fails on unequal ones. A time
        # is a float64, whose bits stand as two of them.
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor, labels: Tensor, time: Tensor) -> None:
        """Add a batch.

        Args:
            scores: float32 [L, C].
            labels: float32 [L, C], not negative.
            time: float64 [L], of each label.
        """
        check_floating("scores", scores)
        values = ndcg_at_k(scores.detach(), labels, self.k)
        self.rows.append(torch.cat([time.unsqueeze(1).view(torch.float32), values.unsqueeze(1)], dim=1).flatten())

    def compute(self) -> Tensor:
        """Return the mean, float32 []; NaN without a label."""
        rows = (dim_zero_cat(self.rows) if len(self.rows) else torch.empty(0, device=self.device)).view(-1, 3)
        moments, moment = rows[:, :2].flatten().view(torch.float64).unique(return_inverse=True)
        sums = torch.zeros(len(moments), device=rows.device, dtype=torch.float64)
        sums.index_add_(0, moment, rows[:, 2].double())
        return (sums / moment.bincount(minlength=len(moments))).mean().float()
