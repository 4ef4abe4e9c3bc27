"""The metrics of a link predictor on one split of a stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchmetrics import MaxMetric

from lightning_tgnn.metrics.ranking import (
    ExpectedMeanReciprocalRank,
    HitsAtK,
    LinkAUROC,
    LinkAveragePrecision,
    MeanReciprocalRank,
)

CANDIDATES_OF_HITS = 20


class LinkMetrics(nn.Module):
    """AP and AUC against the first negative of each event, MRR and Hits@10 against all, AP over unseen nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.against_first = nn.ModuleDict({"ap": LinkAveragePrecision(), "auc": LinkAUROC()})
        self.against_all = nn.ModuleDict(
            {"mrr": MeanReciprocalRank(), "expected_mrr": ExpectedMeanReciprocalRank(), "hits@10": HitsAtK(10)}
        )
        self.inductive = LinkAveragePrecision()
        self.most_candidates = MaxMetric()

    @property
    def names(self) -> tuple[str, ...]:
        """What `compute` may return."""
        return *self.against_first, *self.against_all, "ap_inductive"

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
        self.inductive.update(positive[unseen], first[unseen])

    def rank(self, positive: Tensor, negatives: Tensor) -> None:
        """Add a batch to MRR and Hits@10 alone.

        Args:
            positive: float32 [B], scores of the true destinations.
            negatives: float32 [B, Q], scores of what they are ranked against.
        """
        for metric in self.against_all.values():
            metric.update(positive, negatives)  # type: ignore[operator]
        self.most_candidates.update(1 + negatives.shape[1])

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
        return {name: value for name, value in values.items() if name not in left_out}

    def reset(self) -> None:
        """Forget all batches."""
        for metric in (*self.against_first.values(), *self.against_all.values(), self.inductive, self.most_candidates):
            metric.reset()  # type: ignore[operator]
