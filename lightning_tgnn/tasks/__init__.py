"""LightningModules."""

from lightning_tgnn.tasks.event_classification import DynamicNodeClassification, EdgeClassification
from lightning_tgnn.tasks.layer_link_prediction import LayerLinkPrediction
from lightning_tgnn.tasks.link_prediction import LinkPrediction
from lightning_tgnn.tasks.memory_task import MemoryTask
from lightning_tgnn.tasks.node_affinity import NodeAffinity
from lightning_tgnn.tasks.node_classification import NodeClassification
from lightning_tgnn.tasks.snapshot_labels import (
    SnapshotEdgeClassification,
    SnapshotNodeClassification,
    SnapshotNodeRegression,
)
from lightning_tgnn.tasks.snapshot_link_prediction import SnapshotLinkPrediction
from lightning_tgnn.tasks.snapshot_module import SnapshotModule
from lightning_tgnn.tasks.task import Task
from lightning_tgnn.tasks.training_options import TrainingOptions

TASKS_OF_EVENTS: dict[str, type[MemoryTask]] = {
    kind.__name__: kind
    for kind in (DynamicNodeClassification, EdgeClassification, LayerLinkPrediction, LinkPrediction, NodeAffinity)
}
"""Tasks that a file may name."""

TASKS_OF_SNAPSHOTS: dict[str, type[SnapshotModule]] = {
    kind.__name__: kind
    for kind in (
        SnapshotEdgeClassification,
        SnapshotLinkPrediction,
        SnapshotNodeClassification,
        SnapshotNodeRegression,
    )
}
"""The same for snapshots."""

__all__ = [
    "TASKS_OF_EVENTS",
    "TASKS_OF_SNAPSHOTS",
    "DynamicNodeClassification",
    "EdgeClassification",
    "LayerLinkPrediction",
    "LinkPrediction",
    "MemoryTask",
    "NodeAffinity",
    "NodeClassification",
    "SnapshotEdgeClassification",
    "SnapshotLinkPrediction",
    "SnapshotModule",
    "SnapshotNodeClassification",
    "SnapshotNodeRegression",
    "Task",
    "TrainingOptions",
]
