"""Distributed training of graph neural networks on graphs that change with time, for PyTorch Lightning."""

from typing import TYPE_CHECKING

from lightning_tgnn.compat.registration import register_strategies
from lightning_tgnn.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_tgnn.callbacks import (
        AdaptiveMicroBatch,
        Baselines,
        CacheThreshold,
        EventProgressBar,
        ExchangeMonitor,
        ParallelismMonitor,
        SnapshotMonitor,
        StaticMemory,
        StaticPretraining,
        SystemMonitor,
        TimelineMonitor,
    )
    from lightning_tgnn.data import EventStore, FullGraphDataModule, SnapshotDataModule, TemporalDataModule
    from lightning_tgnn.serving import Predictor
    from lightning_tgnn.strategies import (
        AutoStateStrategy,
        BLADStrategy,
        CDFGNNStrategy,
        DepCacheStrategy,
        DepCommStrategy,
        DistTGLStrategy,
        PipeTGLStrategy,
        PlannedStrategy,
        SnapshotPartitionStrategy,
        SvenStrategy,
        VertexPartitionStrategy,
    )
    from lightning_tgnn.tasks import (
        DynamicNodeClassification,
        EdgeClassification,
        LinkPrediction,
        NodeAffinity,
        NodeClassification,
        SnapshotEdgeClassification,
        SnapshotLinkPrediction,
        SnapshotNodeClassification,
        SnapshotNodeRegression,
    )

__version__ = "0.1.0"

_HOMES = {
    "callbacks": (
        "AdaptiveMicroBatch",
        "CacheThreshold",
        "Baselines",
        "EventProgressBar",
        "ExchangeMonitor",
        "ParallelismMonitor",
        "SnapshotMonitor",
        "StaticMemory",
        "StaticPretraining",
        "SystemMonitor",
        "TimelineMonitor",
    ),
    "data": ("EventStore", "FullGraphDataModule", "SnapshotDataModule", "TemporalDataModule"),
    "serving": ("Predictor",),
    "strategies": (
        "AutoStateStrategy",
        "BLADStrategy",
        "CDFGNNStrategy",
        "DepCacheStrategy",
        "DepCommStrategy",
        "DistTGLStrategy",
        "PipeTGLStrategy",
        "PlannedStrategy",
        "SnapshotPartitionStrategy",
        "SvenStrategy",
        "VertexPartitionStrategy",
    ),
    "tasks": (
        "DynamicNodeClassification",
        "EdgeClassification",
        "LinkPrediction",
        "NodeAffinity",
        "NodeClassification",
        "SnapshotEdgeClassification",
        "SnapshotLinkPrediction",
        "SnapshotNodeClassification",
        "SnapshotNodeRegression",
    ),
}
_FOLDERS = ("algorithms", "callbacks", "comm", "data", "metrics", "models", "serving", "state", "strategies", "tasks")
__getattr__, __dir__ = lazy_names(__name__, _HOMES, (*_FOLDERS, "types", "checks"))

__all__ = [
    "AdaptiveMicroBatch",
    "AutoStateStrategy",
    "BLADStrategy",
    "Baselines",
    "CDFGNNStrategy",
    "CacheThreshold",
    "DepCacheStrategy",
    "DepCommStrategy",
    "DistTGLStrategy",
    "DynamicNodeClassification",
    "EdgeClassification",
    "EventProgressBar",
    "EventStore",
    "ExchangeMonitor",
    "FullGraphDataModule",
    "LinkPrediction",
    "NodeAffinity",
    "NodeClassification",
    "ParallelismMonitor",
    "PipeTGLStrategy",
    "PlannedStrategy",
    "Predictor",
    "SnapshotDataModule",
    "SnapshotEdgeClassification",
    "SnapshotLinkPrediction",
    "SnapshotMonitor",
    "SnapshotNodeClassification",
    "SnapshotNodeRegression",
    "SnapshotPartitionStrategy",
    "StaticMemory",
    "StaticPretraining",
    "SvenStrategy",
    "SystemMonitor",
    "TemporalDataModule",
    "TimelineMonitor",
    "VertexPartitionStrategy",
    "__version__",
]

register_strategies()
