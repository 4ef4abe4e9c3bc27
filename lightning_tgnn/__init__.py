"""Distributed training of graph neural networks on graphs that change with time, for PyTorch Lightning."""

from typing import TYPE_CHECKING

from lightning_tgnn.lazy import lazy_names
from lightning_tgnn.registration import register_strategies

if TYPE_CHECKING:
    from lightning_tgnn.callbacks import (
        AdaptiveMicroBatch,
        CacheThreshold,
        EdgeBankBaseline,
        EventProgressBar,
        ExchangeMonitor,
        ParallelismMonitor,
        StaticMemory,
        StaticPretraining,
        SystemMonitor,
        TimelineMonitor,
    )
    from lightning_tgnn.data import EventStore, FullGraphDataModule, TemporalDataModule
    from lightning_tgnn.serving import Predictor
    from lightning_tgnn.strategies import (
        CDFGNNStrategy,
        DepCacheStrategy,
        DepCommStrategy,
        DistTGLStrategy,
        PipeTGLStrategy,
        PlannedStrategy,
        SvenStrategy,
    )
    from lightning_tgnn.tasks import DynamicNodeClassification, EdgeClassification, LinkPrediction, NodeClassification

__version__ = "0.1.0"

_HOMES = {
    "callbacks": (
        "AdaptiveMicroBatch",
        "CacheThreshold",
        "EdgeBankBaseline",
        "EventProgressBar",
        "ExchangeMonitor",
        "ParallelismMonitor",
        "StaticMemory",
        "StaticPretraining",
        "SystemMonitor",
        "TimelineMonitor",
    ),
    "data": ("EventStore", "FullGraphDataModule", "TemporalDataModule"),
    "serving": ("Predictor",),
    "strategies": (
        "CDFGNNStrategy",
        "DepCacheStrategy",
        "DepCommStrategy",
        "DistTGLStrategy",
        "PipeTGLStrategy",
        "PlannedStrategy",
        "SvenStrategy",
    ),
    "tasks": ("DynamicNodeClassification", "EdgeClassification", "LinkPrediction", "NodeClassification"),
}
_FOLDERS = ("algorithms", "callbacks", "comm", "data", "metrics", "models", "serving", "state", "strategies", "tasks")
__getattr__, __dir__ = lazy_names(__name__, _HOMES, (*_FOLDERS, "types", "checks"))

__all__ = [
    "AdaptiveMicroBatch",
    "CDFGNNStrategy",
    "CacheThreshold",
    "DepCacheStrategy",
    "DepCommStrategy",
    "DistTGLStrategy",
    "DynamicNodeClassification",
    "EdgeBankBaseline",
    "EdgeClassification",
    "EventProgressBar",
    "EventStore",
    "ExchangeMonitor",
    "FullGraphDataModule",
    "LinkPrediction",
    "NodeClassification",
    "ParallelismMonitor",
    "PipeTGLStrategy",
    "PlannedStrategy",
    "Predictor",
    "StaticMemory",
    "StaticPretraining",
    "SvenStrategy",
    "SystemMonitor",
    "TemporalDataModule",
    "TimelineMonitor",
    "__version__",
]

register_strategies()
