"""What plans are made of: stores, orders of stages, and updates of weights."""

from lightning_tgnn.strategies.parts.node_state import Replicated, Sharded
from lightning_tgnn.strategies.parts.orders import InOrder, Pipelined, UpdatedByOwners, WholeStep
from lightning_tgnn.strategies.parts.updates import MeanGradients
from lightning_tgnn.strategies.parts.vertex_cut import VertexCut

__all__ = [
    "InOrder",
    "MeanGradients",
    "Pipelined",
    "Replicated",
    "Sharded",
    "UpdatedByOwners",
    "VertexCut",
    "WholeStep",
]
