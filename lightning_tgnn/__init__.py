"""Distributed training of graph neural networks on graphs that change with time, for PyTorch Lightning."""

from lightning_tgnn.callbacks import AdaptiveMicroBatch, ExchangeMonitor
from lightning_tgnn.data import EventStore, TemporalDataModule
from lightning_tgnn.strategies import DepCacheStrategy, DepCommStrategy, SvenStrategy
from lightning_tgnn.tasks import LinkPrediction

__version__ = "0.1.0"

__all__ = [
    "AdaptiveMicroBatch",
    "DepCacheStrategy",
    "DepCommStrategy",
    "EventStore",
    "ExchangeMonitor",
    "LinkPrediction",
    "SvenStrategy",
    "TemporalDataModule",
    "__version__",
]
