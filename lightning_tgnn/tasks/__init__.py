"""LightningModules."""

from lightning_tgnn.tasks.link_prediction import LinkPrediction
from lightning_tgnn.tasks.memory_task import MemoryTask

__all__ = ["LinkPrediction", "MemoryTask"]
