"""Metrics of rankings and labels: pure functions and the torchmetrics classes over them."""

from lightning_tgnn.metrics.classification import (
    ClassMetrics,
    LabelAccuracy,
    LabelAUROC,
    LabelAveragePrecision,
    LabelF1,
    MultiLabelF1,
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
    "LinkAUROC",
    "LinkAveragePrecision",
    "LinkMetrics",
    "MeanReciprocalRank",
    "MultiLabelF1",
    "binary_auroc",
    "binary_average_precision",
    "expected_reciprocal_rank",
    "hits_at_k",
    "reciprocal_rank",
]
