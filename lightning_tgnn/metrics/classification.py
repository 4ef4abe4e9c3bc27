"""Metrics of labels that some events have."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from lightning_tgnn.metrics.functional import binary_auroc, check_scores


class LabelAUROC(Metric):
    """Area under the ROC curve of binary labels, over all events of a split; events without a label do not count.

    >>> metric = LabelAUROC()
    >>> metric.update(torch.tensor([3.0, 1.0, 9.0, 2.0]), torch.tensor([1, 0, -1, 0]))
    >>> metric.compute()
    tensor(1.)
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False

    scores: list[Tensor]
    labels: list[Tensor]

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            scores: Floating [B], probabilities or logits.
            labels: [B], 0 or 1, negative without a label.

        Raises:
            InvalidArgumentError: A score is NaN.
        """
        check_scores("scores", scores)
        # One dtype, that of the empty state of a rank without events: a gather hangs or fails on unequal ones.
        self.scores.append(scores.detach()[labels >= 0].float())
        self.labels.append(labels[labels >= 0].float())

    def compute(self) -> Tensor:
        """Return the area under the curve, float32 []; NaN where there are not both labels."""
        if not len(self.scores):
            return torch.tensor(torch.nan, device=self.device)
        return binary_auroc(dim_zero_cat(self.scores), dim_zero_cat(self.labels).long())
