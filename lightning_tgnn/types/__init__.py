"""Data classes and protocols that cross folders."""

from lightning_tgnn.types.graphs import GraphInfo, GraphPart, ReplicaLinks, ReplicaSum, SparseRows
from lightning_tgnn.types.node_state import (
    CommitHandle,
    FetchHandle,
    NodeStateTask,
    StageOrder,
    StateRows,
    StateSpec,
    StateStore,
    StateUpdate,
)
from lightning_tgnn.types.queries import QueryBatch, RootBatch
from lightning_tgnn.types.temporal import EventBatch, SampledRoots, StreamInfo
from lightning_tgnn.types.tensor_fields import TensorFields

__all__ = [
    "CommitHandle",
    "EventBatch",
    "FetchHandle",
    "GraphInfo",
    "GraphPart",
    "NodeStateTask",
    "QueryBatch",
    "ReplicaLinks",
    "ReplicaSum",
    "RootBatch",
    "SampledRoots",
    "SparseRows",
    "StageOrder",
    "StateRows",
    "StateSpec",
    "StateStore",
    "StateUpdate",
    "StreamInfo",
    "TensorFields",
]
