"""A source of events, read and split once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_tgnn.checks import check_choice, plain
from lightning_tgnn.data.pipeline import Pipeline, lasting_name
from lightning_tgnn.data.sources.open_events import (
    EventSource,
    ReadOptions,
    fixed_protocol,
    open_events,
    opened,
    place_of,
    prepare_events,
)
from lightning_tgnn.data.standardize import AUTO, check_standardize
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.fixed_protocol import PROTOCOLS
from lightning_tgnn.data.streams.split_stream import SplitStream
from lightning_tgnn.data.streams.splits import Split
from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency
from lightning_tgnn.types import NodeLabels, StreamData, StreamInfo


class SplitSource(Pipeline, StreamData):
    """A source of events that is read when their content is asked for, and split by time.

    Args:
        source: See `lightning_tgnn.TemporalDataModule`, and so the rest.
        read: How it is read.
        val_ratio: Share of the validation split.
        test_ratio: Share of the test split.
        split_by: What these shares count.
        held_out_nodes: Share of the nodes of validation and test whose events leave the training split.
        seed: Of held-out nodes.
        standardize_features: Whether features are standardized.
        protocol: Fixes splits, held-out nodes and evaluation negatives.
    """

    def __init__(
        self,
        source: EventSource,
        read: ReadOptions,
        *,
        val_ratio: float,
        test_ratio: float,
        split_by: str,
        held_out_nodes: float,
        seed: int,
        standardize_features: bool | str = AUTO,
        protocol: str | None = None,
    ) -> None:
        super().__init__()
        self.standardize_features = check_standardize(standardize_features)
        self.source = source
        self.seed = plain(seed)
        shares = {"val_ratio": val_ratio, "test_ratio": test_ratio}
        self.protocol = None if protocol is None else check_choice("protocol", protocol, PROTOCOLS)
        self._split_options: dict[str, Any] = plain(
            {**shares, "split_by": split_by, "held_out_nodes": held_out_nodes, "protocol": self.protocol}
        )
        self._read_options = read
        self._stream: SplitStream | None = None
        # Whether the adjacency of a store may be kept in its folder.
        self.writes = True

    def prepare_data(self) -> None:
        """Download and convert a named stream; Lightning calls it on one process of a machine."""
        prepare_events(self._located, self._read_options.root)

    def setup(self, stage: str | None = None) -> None:
        """Read the source, split it and build the adjacency; once."""
        if self._stream is None:
            self._read_stream()

    def _read_stream(self) -> None:
        source, split = self._opened(), self._split_options
        with self._reading():
            store = open_events(source, self._read_options)
        self._stream = SplitStream.of(
            store,
            fixed_protocol(source, store, self.protocol, self.seed),
            writes=self.writes,
            val_ratio=split["val_ratio"],
            test_ratio=split["test_ratio"],
            by=split["split_by"],
            held_out=split["held_out_nodes"],
            seed=self.seed,
            standardize=self.standardize_features,
        )

    @property
    def stream(self) -> SplitStream:
        """The stream in its splits; reads it if need be."""
        if self._stream is None:
            self.setup(None)  # of a subclass, which may ask for the stage
        if self._stream is None:
            self._read_stream()  # of which a setup of the user's own does not think
        assert self._stream is not None
        return self._stream

    @property
    def store(self) -> EventStore:
        """The stream."""
        return self.stream.store

    @property
    def split(self) -> Split:
        """Training, validation and test events."""
        return self.stream.split

    @property
    def node_labels(self) -> NodeLabels | None:
        """Labels of nodes at times of their own; None where there are none."""
        return self.stream.node_labels

    @property
    def info(self) -> StreamInfo:
        """Widths, counts and time scale of the stream."""
        return self.stream.info

    @property
    def adjacency(self) -> TemporalAdjacency:
        """Past neighbours over all splits of the stream."""
        return self.stream.adjacency

    @property
    def place(self) -> Path | None:
        """The file or folder that is read; None where the source is an object or made up."""
        return place_of(self._located, self._read_options.root)

    @property
    def recipe(self) -> dict[str, Any]:
        """Arguments, plain values all, that read and split the same stream again; without a ``source`` of that kind."""
        read = self._read_options
        return {
            "source": self._located if isinstance(self._located, str) else None,
            **self._split_options,
            "seed": self.seed,
            "standardize_features": self.standardize_features,
            **{name: getattr(read, name) for name in ("format", "columns", "bipartite", "longest_id")},
            "synthetic": dict(read.synthetic),
            "root": str(read.root.resolve()),
        }

    def read(self) -> EventStore:
        """Return the events of the source, without what `setup` makes of them."""
        if self._stream is not None:
            return self._stream.store
        return open_events(self._opened(), self._read_options)

    def _opened(self) -> EventSource:
        self._make_ready()
        self._located = lasting_name(self._located)  # of a file that was made since
        return opened(self._located, self._read_options.root)
