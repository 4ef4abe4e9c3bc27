"""Event streams, sampling, batches and DataModules.

The DataModules need Lightning; the others do not, so that commands that only look at data start without it.
"""

from typing import TYPE_CHECKING

from lightning_tgnn.algorithms.counter_random import random_below
from lightning_tgnn.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_tgnn.data.datamodule import TemporalDataModule
    from lightning_tgnn.data.event_store import EventStore
    from lightning_tgnn.data.graph import Graph
    from lightning_tgnn.data.graph_datamodule import FullGraphDataModule
    from lightning_tgnn.data.graph_folder import open_graph, save_graph
    from lightning_tgnn.data.loader import EventLoader
    from lightning_tgnn.data.readers import read_events
    from lightning_tgnn.data.synthetic import generate_stream
    from lightning_tgnn.data.synthetic_graph import generate_graph
    from lightning_tgnn.data.temporal_adjacency import TemporalAdjacency

_HOMES = {
    "datamodule": ("TemporalDataModule",),
    "event_store": ("EventStore",),
    "graph": ("Graph",),
    "graph_datamodule": ("FullGraphDataModule",),
    "graph_folder": ("open_graph", "save_graph"),
    "loader": ("EventLoader",),
    "readers": ("read_events",),
    "synthetic": ("generate_stream",),
    "synthetic_graph": ("generate_graph",),
    "temporal_adjacency": ("TemporalAdjacency",),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "EventLoader",
    "EventStore",
    "FullGraphDataModule",
    "Graph",
    "TemporalAdjacency",
    "TemporalDataModule",
    "generate_graph",
    "generate_stream",
    "open_graph",
    "random_below",
    "read_events",
    "save_graph",
]
