"""Ranking metrics that gather over the batches of a split and over ranks.

Their value depends on the events alone: not on the batch size, the number of ranks, or whether scores are
probabilities or logits. Without an event there is nothing to rank: ``compute`` then returns NaN, and torchmetrics
warns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from lightning_tgnn.checks import InvalidArgumentError, check_int, refusal
from lightning_tgnn.metrics.functional import (
    binary_auroc,
    binary_average_precision,
    check_scores,
    expected_reciprocal_rank,
    hits_at_k,
    reciprocal_rank,
)


class _OverAllScores(Metric):
    """Keeps every score of a split: average precision and AUROC are no means over batches."""

    higher_is_better = True
    is_differentiable = False
    full_state_update = False

    positive: list[Tensor]
    negatives: list[Tensor]

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.add_state("positive", default=[], dist_reduce_fx="cat")
        self.add_state("negatives", default=[], dist_reduce_fx="cat")

    def update(self, positive: Tensor, negatives: Tensor) -> None:
        """Add a batch.

        Args:
            positive: Floating [B], scores of the true destinations.
            negatives: Floating [B] or [B, 1], scores of one negative per event.

        Raises:
            InvalidArgumentError: A shape does not fit, or a score is NaN.
        """
        if positive.ndim != 1 or negatives.shape not in (positive.shape, (len(positive), 1)):
            received = f"{list(positive.shape)} and {list(negatives.shape)}"
            cure = "give one negative per event, for example negatives[:, :1]"
            raise InvalidArgumentError(refusal("positive and negatives", "[B] and [B] or [B, 1]", received, cure))
        for name, scores in (("positive", positive), ("negatives", negatives)):
            check_scores(name, scores)
            # One dtype, as in the empty state of a rank without events: a gather hangs or fails on unequal ones.
            getattr(self, name).append(scores.detach().flatten().float())

    def _scores_and_target(self) -> tuple[Tensor, Tensor]:
        positive = dim_zero_cat(self.positive) if len(self.positive) else torch.empty(0, device=self.device)
        negatives = dim_zero_cat(self.negatives) if len(self.negatives) else torch.empty(0, device=self.device)
        target = torch.cat([torch.ones_like(positive), torch.zeros_like(negatives)])
        return torch.cat([positive, negatives]), target.long()


class LinkAveragePrecision(_OverAllScores):
    """Average precision of true against negative destinations, over all events of a split.

    >>> metric = LinkAveragePrecision()
    >>> metric.update(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0]))
    >>> metric.compute()
    tensor(0.8333)
    """

    def compute(self) -> Tensor:
        """Return the average precision, float32 []; NaN without an event."""
        return binary_average_precision(*self._scores_and_target())


class LinkAUROC(_OverAllScores):
    """Area under the ROC curve of true against negative destinations, over all events of a split.

    >>> metric = LinkAUROC()
    >>> metric.update(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0]))
    >>> metric.compute()
    tensor(0.7500)
    """

    def compute(self) -> Tensor:
        """Return the area under the curve, float32 []; NaN without an event."""
        return binary_auroc(*self._scores_and_target())


class _MeanOverEvents(Metric):
    """Mean of a value per event, kept as a sum and a count."""

    higher_is_better = True
    is_differentiable = False
    full_state_update = False

    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        # float64: a float32 sum over millions of events would depend on the batch size.
        self.add_state("total", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, positive: Tensor, negatives: Tensor) -> None:
        """Add a batch.

        Args:
            positive: Floating [B], scores of the true destinations.
            negatives: Floating [B, Q], scores of the negatives of each event.

        Raises:
            InvalidArgumentError: A shape does not fit, there is no negative, or a score is NaN.
        """
        values = self._per_event(positive, negatives)
        self.total += values.sum(dtype=torch.float64)
        self.count += values.numel()

    def compute(self) -> Tensor:
        """Return the mean over all events, float32 []; NaN without an event."""
        return (self.total / self.count).float()

    def _per_event(self, positive: Tensor, negatives: Tensor) -> Tensor:
        raise NotImplementedError


class MeanReciprocalRank(_MeanOverEvents):
    """Mean of one over the rank of the true destination among its negatives, where a tie adds half a rank.

    This is the figure of TGB's evaluator. Where many scores are equal it is below what a random order of the ties gets:
    see `ExpectedMeanReciprocalRank`.

    >>> metric = MeanReciprocalRank()
    >>> metric.update(torch.tensor([2.0, 1.0]), torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    >>> metric.compute()
    tensor(0.7500)
    """

    def _per_event(self, positive: Tensor, negatives: Tensor) -> Tensor:
        return reciprocal_rank(positive, negatives)


class ExpectedMeanReciprocalRank(_MeanOverEvents):
    """Mean reciprocal rank of the true destination among its negatives, averaged over all orders of the ties.

    >>> metric = ExpectedMeanReciprocalRank()
    >>> metric.update(torch.tensor([2.0, 1.0]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    >>> metric.compute()
    tensor(0.8750)
    """

    def _per_event(self, positive: Tensor, negatives: Tensor) -> Tensor:
        return expected_reciprocal_rank(positive, negatives)


class HitsAtK(_MeanOverEvents):
    """Share of the events whose true destination ranks among the first ``k``; a tie at ``k`` counts by its probability.

    Args:
        k: At least 1.
        **kwargs: Arguments of `torchmetrics.Metric`.

    Raises:
        InvalidArgumentError: ``k`` is not a positive integer.

    >>> metric = HitsAtK(k=1)
    >>> metric.update(torch.tensor([2.0, 1.0]), torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    def __init__(self, k: int = 10, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.k = check_int("k", k, minimum=1, cure="give the ranks that count as a hit, for example 10")

    def _per_event(self, positive: Tensor, negatives: Tensor) -> Tensor:
        return hits_at_k(positive, negatives, self.k)
