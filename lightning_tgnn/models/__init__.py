"""Single-device modules and their layers."""

from lightning_tgnn.models.event_classifier import EventClassifier
from lightning_tgnn.models.gat import GAT
from lightning_tgnn.models.gcn import GCN
from lightning_tgnn.models.link_predictor import LinkPredictor
from lightning_tgnn.models.memory_model import MemoryModel
from lightning_tgnn.models.memory_tgnn import MemoryTGNN
from lightning_tgnn.models.neighborhood import NeighborEdges, neighbor_edges
from lightning_tgnn.models.zoo import MODEL_NAMES, Mails, ModelConfig, build_model, build_with_layer
from lightning_tgnn.types import UpdatedRows

__all__ = [
    "GAT",
    "GCN",
    "MODEL_NAMES",
    "EventClassifier",
    "LinkPredictor",
    "Mails",
    "MemoryModel",
    "MemoryTGNN",
    "ModelConfig",
    "NeighborEdges",
    "UpdatedRows",
    "build_model",
    "build_with_layer",
    "neighbor_edges",
]
