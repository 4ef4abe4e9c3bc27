"""Lightning callbacks: tuners and monitors."""

from lightning_tgnn.callbacks.baselines import Baselines
from lightning_tgnn.callbacks.cache_threshold import CacheThreshold
from lightning_tgnn.callbacks.exchange_monitor import ExchangeMonitor
from lightning_tgnn.callbacks.parallelism_monitor import ParallelismMonitor
from lightning_tgnn.callbacks.progress_bar import EventProgressBar
from lightning_tgnn.callbacks.snapshot_monitor import SnapshotMonitor
from lightning_tgnn.callbacks.static_memory import StaticMemory, StaticPretraining
from lightning_tgnn.callbacks.system_monitor import SystemMonitor
from lightning_tgnn.callbacks.timeline_monitor import TimelineMonitor
from lightning_tgnn.strategies.adaptive_micro_batch import AdaptiveMicroBatch

__all__ = [
    "AdaptiveMicroBatch",
    "Baselines",
    "CacheThreshold",
    "EventProgressBar",
    "ExchangeMonitor",
    "ParallelismMonitor",
    "SnapshotMonitor",
    "StaticMemory",
    "StaticPretraining",
    "SystemMonitor",
    "TimelineMonitor",
]
