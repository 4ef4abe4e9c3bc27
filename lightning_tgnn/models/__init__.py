"""Single-device modules and their layers."""

from lightning_tgnn.models.graphs.gat import GAT
from lightning_tgnn.models.graphs.gcn import GCN
from lightning_tgnn.models.memory.heads import EventClassifier, LinkPredictor
from lightning_tgnn.models.memory.memory_model import MemoryModel
from lightning_tgnn.models.memory.memory_tgnn import MemoryTGNN
from lightning_tgnn.models.memory.neighborhood import NeighborEdges, neighbor_edges
from lightning_tgnn.models.memory.zoo import MODEL_NAMES, Mails, ModelConfig, build_model, build_with_layer
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
