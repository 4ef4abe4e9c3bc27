"""Metrics of rankings and labels: pure functions and the torchmetrics classes over them."""

from lightning_tgnn.metrics.classification import (
    ClassMetrics,
    F1ByClass,
    LabelAccuracy,
    LabelAUROC,
    LabelAveragePrecision,
    LabelF1,
    LabelScores,
    MajorityShare,
    MultiLabelAccuracy,
    MultiLabelF1,
    MultiLabelF1ByClass,
)
from lightning_tgnn.metrics.dyglib_metrics import DyGLibMetrics
from lightning_tgnn.metrics.functional import (
    binary_auroc,
    binary_average_precision,
    expected_reciprocal_rank,
    hits_at_k,
    ndcg_at_k,
    reciprocal_rank,
)
from lightning_tgnn.metrics.link_metrics import (
    ExpectedMeanReciprocalRank,
    HitsAtK,
    LinkAUROC,
    LinkAveragePrecision,
    LinkMetrics,
    MeanReciprocalRank,
)
from lightning_tgnn.metrics.node_affinity import NodeAffinityMetric

__all__ = [
    "ClassMetrics",
    "DyGLibMetrics",
    "ExpectedMeanReciprocalRank",
    "F1ByClass",
    "HitsAtK",
    "LabelAUROC",
    "LabelAccuracy",
    "LabelAveragePrecision",
    "LabelF1",
    "LabelScores",
    "LinkAUROC",
    "LinkAveragePrecision",
    "LinkMetrics",
    "MajorityShare",
    "MeanReciprocalRank",
    "MultiLabelAccuracy",
    "MultiLabelF1",
    "MultiLabelF1ByClass",
    "NodeAffinityMetric",
    "binary_auroc",
    "binary_average_precision",
    "expected_reciprocal_rank",
    "hits_at_k",
    "ndcg_at_k",
    "reciprocal_rank",
]
