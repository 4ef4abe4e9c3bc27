"""Data classes and protocols that cross folders."""

from lightning_tgnn.types.graphs import GraphInfo, ReplicaLinks, ReplicaSum, SparseRows, Subgraph
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.node_state import (
    CachingStore,
    CommitHandle,
    FetchHandle,
    NodeStateTask,
    PieceHandle,
    PiecewiseStore,
    StageOrder,
    StateRows,
    StateSpec,
    StateStore,
    StateUpdate,
    UpdatedRows,
)
from lightning_tgnn.types.plan import OrderPart, Plan, StorePart, UpdatesPart, WeightUpdates
from lightning_tgnn.types.queries import QueryBatch, RootBatch
from lightning_tgnn.types.schedule import Pass, PlannedPart, Schedule, ScheduledLoader, Turn
from lightning_tgnn.types.stages import StageListener, Stages
from lightning_tgnn.types.temporal import EventBatch, SampledRoots, SharedBatch, StreamInfo
from lightning_tgnn.types.tensor_fields import TensorFields

__all__ = [
    "CachingStore",
    "CommitHandle",
    "EventBatch",
    "FetchHandle",
    "GraphInfo",
    "NodeStateTask",
    "OrderPart",
    "Pass",
    "PieceHandle",
    "PiecewiseStore",
    "Plan",
    "PlannedPart",
    "QueryBatch",
    "RankLayout",
    "ReplicaLinks",
    "ReplicaSum",
    "RootBatch",
    "SampledRoots",
    "Schedule",
    "ScheduledLoader",
    "SharedBatch",
    "SparseRows",
    "StageListener",
    "StageOrder",
    "Stages",
    "StateRows",
    "StateSpec",
    "StateStore",
    "StateUpdate",
    "StorePart",
    "StreamInfo",
    "Subgraph",
    "TensorFields",
    "Turn",
    "UpdatedRows",
    "UpdatesPart",
    "WeightUpdates",
]
