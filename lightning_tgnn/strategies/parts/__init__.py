"""The parts of plans: stores, orders of stages, and updates of weights."""

from lightning_tgnn.algorithms.traffic.gradient_compression import BFloat16, Int8, PowerSGD
from lightning_tgnn.strategies.parts.group_pipeline import GroupPipeline
from lightning_tgnn.strategies.parts.orders import InOrder, TargetsFirst, UpdatedByOwners, WholeStep
from lightning_tgnn.strategies.parts.passes import ReadOnce
from lightning_tgnn.strategies.parts.pipelined_order import Pipelined
from lightning_tgnn.strategies.parts.ring import RingUpdates
from lightning_tgnn.strategies.parts.snapshot_memory import SnapshotMemory
from lightning_tgnn.strategies.parts.stores import HostMemory, Replicated, Served, Sharded
from lightning_tgnn.strategies.parts.updates import MeanGradients, StaleGradients
from lightning_tgnn.strategies.parts.vertex_cut import VertexCut
from lightning_tgnn.strategies.parts.vertex_shares import VertexShares

__all__ = [
    "BFloat16",
    "GroupPipeline",
    "HostMemory",
    "InOrder",
    "Int8",
    "MeanGradients",
    "Pipelined",
    "PowerSGD",
    "ReadOnce",
    "Replicated",
    "RingUpdates",
    "Served",
    "Sharded",
    "SnapshotMemory",
    "StaleGradients",
    "TargetsFirst",
    "UpdatedByOwners",
    "VertexCut",
    "VertexShares",
    "WholeStep",
]
