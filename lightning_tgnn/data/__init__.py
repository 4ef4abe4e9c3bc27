"""Event streams, sampling, batches and DataModules.

The DataModules need Lightning; the others do not, so that commands that only look at data start without it.
"""

from typing import TYPE_CHECKING

from lightning_tgnn.algorithms.streams.counter_random import random_below
from lightning_tgnn.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_tgnn.data.batches.loader import EventLoader
    from lightning_tgnn.data.datamodules import FullGraphDataModule, SnapshotDataModule, TemporalDataModule
    from lightning_tgnn.data.graphs.graph import Graph
    from lightning_tgnn.data.graphs.sources.folder import open_graph, save_graph
    from lightning_tgnn.data.graphs.sources.synthetic import generate_graph
    from lightning_tgnn.data.readers import read_events
    from lightning_tgnn.data.snapshots.sequence import SnapshotSequence
    from lightning_tgnn.data.sources.synthetic import generate_stream
    from lightning_tgnn.data.streams.event_store import EventStore
    from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency

_HOMES = {
    "datamodules": ("FullGraphDataModule", "SnapshotDataModule", "TemporalDataModule"),
    "streams.event_store": ("EventStore",),
    "graphs.graph": ("Graph",),
    "snapshots.sequence": ("SnapshotSequence",),
    "graphs.sources.folder": ("open_graph", "save_graph"),
    "batches.loader": ("EventLoader",),
    "readers": ("read_events",),
    "sources.synthetic": ("generate_stream",),
    "graphs.sources.synthetic": ("generate_graph",),
    "streams.temporal_adjacency": ("TemporalAdjacency",),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "EventLoader",
    "EventStore",
    "FullGraphDataModule",
    "Graph",
    "SnapshotDataModule",
    "SnapshotSequence",
    "TemporalAdjacency",
    "TemporalDataModule",
    "generate_graph",
    "generate_stream",
    "open_graph",
    "random_below",
    "read_events",
    "save_graph",
]
