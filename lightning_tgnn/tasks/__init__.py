"""LightningModules."""

from lightning_tgnn.tasks.layer_link_prediction import LayerLinkPrediction
from lightning_tgnn.tasks.link_prediction import LinkPrediction
from lightning_tgnn.tasks.memory_task import MemoryTask
from lightning_tgnn.tasks.node_classification import NodeClassification

__all__ = ["LayerLinkPrediction", "LinkPrediction", "MemoryTask", "NodeClassification"]
