"""Ranking metrics: pure functions and the torchmetrics classes over them."""

from lightning_tgnn.metrics.classification import (
    ClassMetrics,
    LabelAccuracy,
    LabelAUROC,
    LabelAveragePrecision,
    LabelF1,
    LabelsF1,
)
from lightning_tgnn.metrics.functional import (
    binary_auroc,
    binary_average_precision,
    expected_reciprocal_rank,
    hits_at_k,
    reciprocal_rank,
)
from lightning_tgnn.metrics.link_metrics import LinkMetrics
from lightning_tgnn.metrics.ranking import (
    ExpectedMeanReciprocalRank,
    HitsAtK,
    LinkAUROC,
    LinkAveragePrecision,
    MeanReciprocalRank,
)

__all__ = [
    "ClassMetrics",
    "ExpectedMeanReciprocalRank",
    "HitsAtK",
    "LabelAUROC",
    "LabelAccuracy",
    "LabelAveragePrecision",
    "LabelF1",
    "LabelsF1",
    "LinkAUROC",
    "LinkAveragePrecision",
    "LinkMetrics",
    "MeanReciprocalRank",
    "binary_auroc",
    "binary_average_precision",
    "expected_reciprocal_rank",
    "hits_at_k",
    "reciprocal_rank",
]
