"""Event streams, sampling, batches and DataModules."""

from lightning_tgnn.data.datamodule import TemporalDataModule
from lightning_tgnn.data.event_store import EventStore
from lightning_tgnn.data.loader import EventLoader
from lightning_tgnn.data.readers import read_events
from lightning_tgnn.data.synthetic import generate_stream
from lightning_tgnn.data.temporal_adjacency import TemporalAdjacency

__all__ = ["EventLoader", "EventStore", "TemporalAdjacency", "TemporalDataModule", "generate_stream", "read_events"]
