"""LightningModules."""

from lightning_tgnn.tasks.link_prediction import LinkPrediction
from lightning_tgnn.tasks.memory_task import MemoryTask
from lightning_tgnn.tasks.node_classification import NodeClassification

__all__ = ["LinkPrediction", "MemoryTask", "NodeClassification"]
