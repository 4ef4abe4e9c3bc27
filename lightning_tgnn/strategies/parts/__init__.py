"""What plans are made of: stores, orders of stages, and updates of weights."""

from lightning_tgnn.strategies.parts.orders import InOrder, Pipelined, TargetsFirst, UpdatedByOwners, WholeStep
from lightning_tgnn.strategies.parts.passes import ReadOnce
from lightning_tgnn.strategies.parts.ring import RingUpdates
from lightning_tgnn.strategies.parts.stores import HostMemory, HostShards, Replicated, Served, Sharded
from lightning_tgnn.strategies.parts.updates import MeanGradients
from lightning_tgnn.strategies.parts.vertex_cut import VertexCut

__all__ = [
    "HostMemory",
    "HostShards",
    "InOrder",
    "MeanGradients",
    "Pipelined",
    "ReadOnce",
    "Replicated",
    "RingUpdates",
    "Served",
    "Sharded",
    "TargetsFirst",
    "UpdatedByOwners",
    "VertexCut",
    "WholeStep",
]
