"""Metrics of a link predictor on one split of a stream, and the ranking metrics that they are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchmetrics import MaxMetric, Metric
from torchmetrics.utilities.data import dim_zero_cat

from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.metrics.functional import (
    binary_auroc,
    binary_average_precision,
    check_floating,
    check_scores,
    expected_reciprocal_rank,
    has_nan,
    hits_at_k,
    reciprocal_rank,
)
from lightning_tgnn.types import is_asynchronous

CANDIDATES_OF_HITS = 20


class LinkMetrics(nn.Module):
    """AP and AUC against the first negative of each event, MRR and Hits@10 against all, AP over unseen nodes.

    Args:
        prefix: Stands before the name of each metric: the name of a protocol and a slash.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self.prefix = prefix
        self.against_first = nn.ModuleDict({"ap": LinkAveragePrecision(), "auc": LinkAUROC()})
        self.against_all = nn.ModuleDict(
            {"mrr": MeanReciprocalRank(), "expected_mrr": ExpectedMeanReciprocalRank(), "hits@10": HitsAtK(10)}
        )
        self.inductive = _AveragePrecisionOfSome()
        self.most_candidates = MaxMetric(nan_strategy="disable")

    @property
    def names(self) -> tuple[str, ...]:
        """What `compute` may return."""
        return tuple(f"{self.prefix}{name}" for name in (*self.against_first, *self.against_all, "ap_inductive"))

    def update(self, positive: Tensor, negatives: Tensor, unseen: Tensor) -> None:
        """Add a batch.

        Args:
            positive: float32 [B], scores of the true destinations.
            negatives: float32 [B, Q], scores of the negatives.
            unseen: bool [B], events with a node that no training event has.
        """
        self.compare(positive, negatives[:, 0], unseen)
        self.rank(positive, negatives)

    def compare(self, positive: Tensor, first: Tensor, unseen: Tensor) -> None:
        """Add a batch to AP and AUC alone.

        Args:
            positive: float32 [B], scores of the true destinations.
            first: float32 [B], the scores of the first negatives.
            unseen: bool [B], events with a node that no training event has.
        """
        for metric in self.against_first.values():
            metric.update(positive, first)  # type: ignore[operator]
        self.inductive.update(positive, first, unseen)

    def rank(self, positive: Tensor, negatives: Tensor) -> None:
        """Add a batch to MRR and Hits@10 alone.

        Args:
            positive: float32 [B], scores of the true destinations.
            negatives: float32 [B, Q], scores of what they are ranked against.
        """
        for metric in self.against_all.values():
            metric.update(positive, negatives)  # type: ignore[operator]
        self.most_candidates.update(positive.new_full((), 1 + negatives.shape[1], dtype=torch.float32))

    def scores(self) -> tuple[Tensor, Tensor]:
        """Return the scores that this rank has added, of true destinations [n] and of their first negatives [n]."""
        kept = self.against_first["ap"]
        assert isinstance(kept, LinkAveragePrecision)
        none = torch.empty(0, device=kept.device)
        return torch.cat([*kept.positive, none]), torch.cat([*kept.negatives, none])

    def compute(self) -> dict[str, Tensor]:
        """Return the metrics by name.

        ``ap_inductive`` only where an event had an unseen node, ``hits@10`` only where one had 20 candidates: chance
        alone gets half of fewer.
        """
        metrics = {**self.against_first, **self.against_all, "ap_inductive": self.inductive}
        # All of them on every rank, whatever it has seen: they gather over the ranks.
        values = {name: metric.compute() for name, metric in metrics.items()}  # type: ignore[operator]
        left_out = {"ap_inductive"} if values["ap_inductive"].isnan() else set()
        if self.most_candidates.compute() < CANDIDATES_OF_HITS:
            left_out |= {"hits@10"}
        return {f"{self.prefix}{name}": value for name, value in values.items() if name not in left_out}

    def reset(self) -> None:
        """Forget all batches."""
        for metric in (*self.against_first.values(), *self.against_all.values(), self.inductive, self.most_candidates):
            metric.reset()  # type: ignore[operator]


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
            raise InvalidArgumentError("positive and negatives", "[B] and [B] or [B, 1]", received, cure)
        for name, scores in (("positive", positive), ("negatives", negatives)):
            if is_asynchronous(scores):  # `compute` looks at all of them
                check_floating(name, scores)
            else:
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


class _AveragePrecisionOfSome(LinkAveragePrecision):
    """Average precision over some of the events, selected in `compute`: in a batch a GPU would wait."""

    picked: list[Tensor]

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.add_state("picked", default=[], dist_reduce_fx="cat")

    def update(self, positive: Tensor, negatives: Tensor, picked: Tensor) -> None:  # type: ignore[override]
        """Add a batch, of which the events ``picked`` (bool [B]) count."""
        super().update(positive, negatives)
        self.picked.append(picked.float())  # as in the empty state of a rank without events

    def _scores_and_target(self) -> tuple[Tensor, Tensor]:
        scores, target = super()._scores_and_target()
        picked = dim_zero_cat(self.picked) if len(self.picked) else torch.empty(0, device=self.device)
        picked = picked.bool().repeat(2)
        return scores[picked], target[picked]


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
        """Return the mean over all events, float32 []; NaN without an event.

        Raises:
            InvalidArgumentError: A score was NaN.
        """
        if self.total.isnan():
            raise has_nan("positive and negatives", "NaN in a batch")
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
