"""LightningModules."""

from lightning_tgnn.tasks.dynamic_node_classification import DynamicNodeClassification
from lightning_tgnn.tasks.edge_classification import EdgeClassification
from lightning_tgnn.tasks.layer_link_prediction import LayerLinkPrediction
from lightning_tgnn.tasks.link_prediction import LinkPrediction
from lightning_tgnn.tasks.memory_task import MemoryTask
from lightning_tgnn.tasks.node_classification import NodeClassification

__all__ = [
    "DynamicNodeClassification",
    "EdgeClassification",
    "LayerLinkPrediction",
    "LinkPrediction",
    "MemoryTask",
    "NodeClassification",
]
