"""Distributed training of graph neural networks on graphs that change with time, for PyTorch Lightning."""

from lightning_tgnn.callbacks import (
    AdaptiveMicroBatch,
    CacheThreshold,
    EdgeBankBaseline,
    EventProgressBar,
    ExchangeMonitor,
    SystemMonitor,
)
from lightning_tgnn.data import EventStore, FullGraphDataModule, TemporalDataModule
from lightning_tgnn.serving import Predictor
from lightning_tgnn.strategies import CDFGNNStrategy, DepCacheStrategy, DepCommStrategy, SvenStrategy
from lightning_tgnn.tasks import DynamicNodeClassification, EdgeClassification, LinkPrediction, NodeClassification

__version__ = "0.1.0"

__all__ = [
    "AdaptiveMicroBatch",
    "CDFGNNStrategy",
    "CacheThreshold",
    "DepCacheStrategy",
    "DepCommStrategy",
    "DynamicNodeClassification",
    "EdgeBankBaseline",
    "EdgeClassification",
    "EventProgressBar",
    "EventStore",
    "ExchangeMonitor",
    "FullGraphDataModule",
    "LinkPrediction",
    "NodeClassification",
    "Predictor",
    "SvenStrategy",
    "SystemMonitor",
    "TemporalDataModule",
    "__version__",
]
