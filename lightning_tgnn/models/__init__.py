"""Single-device modules and their layers."""

from lightning_tgnn.models.graphs.gat import GAT, GATv2
from lightning_tgnn.models.graphs.gcn import GCN
from lightning_tgnn.models.graphs.gin import GIN
from lightning_tgnn.models.graphs.sage import GraphSAGE
from lightning_tgnn.models.memory.heads import EventClassifier, LinkPredictor
from lightning_tgnn.models.memory.layer_embedding import NeighborEdges, neighbor_edges
from lightning_tgnn.models.memory.memory_model import MemoryModel
from lightning_tgnn.models.memory.memory_tgnn import MemoryTGNN
from lightning_tgnn.models.neighbors.graphmixer import GraphMixer
from lightning_tgnn.models.neighbors.tgat import TGAT
from lightning_tgnn.models.pairs.dygformer import DyGFormer
from lightning_tgnn.models.pairs.pair_model import PairModel
from lightning_tgnn.models.pairs.tncn import TNCN
from lightning_tgnn.models.pairs.tpnet import TPNet
from lightning_tgnn.models.recurrent.cells import RecurrentCell
from lightning_tgnn.models.recurrent.convolution import GraphConvolution, OwnConvolution
from lightning_tgnn.models.recurrent.evolvegcn import EvolveGCN
from lightning_tgnn.models.recurrent.operators import SnapshotOperators
from lightning_tgnn.models.recurrent.tgcn import TGCN
from lightning_tgnn.models.recurrent.wd_gcn import WDGCN
from lightning_tgnn.models.recurrent.zoo import RECURRENT_MODELS, RecurrentConfig, build_recurrent
from lightning_tgnn.models.stream_model import StreamModel
from lightning_tgnn.models.zoo import (
    MODEL_NAMES,
    NODE_MODEL_NAMES,
    Mails,
    ModelConfig,
    build_model,
    build_with_layer,
    default_width,
)
from lightning_tgnn.types import UpdatedRows

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "MODEL_NAMES",
    "NODE_MODEL_NAMES",
    "RECURRENT_MODELS",
    "TGAT",
    "TGCN",
    "TNCN",
    "WDGCN",
    "DyGFormer",
    "EventClassifier",
    "EvolveGCN",
    "GATv2",
    "GraphConvolution",
    "GraphMixer",
    "GraphSAGE",
    "LinkPredictor",
    "Mails",
    "MemoryModel",
    "MemoryTGNN",
    "ModelConfig",
    "NeighborEdges",
    "OwnConvolution",
    "PairModel",
    "RecurrentCell",
    "RecurrentConfig",
    "SnapshotOperators",
    "StreamModel",
    "TPNet",
    "UpdatedRows",
    "build_model",
    "build_recurrent",
    "build_with_layer",
    "default_width",
    "neighbor_edges",
]
