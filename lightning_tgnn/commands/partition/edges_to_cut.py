"""The edges that `partition` cuts: the edges of a static graph, or the distinct edges of a stream."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.past import tied_share
from lightning_tgnn.commands.shared.kinds import EVENTS, kind_of
from lightning_tgnn.data.graphs.edge_options import edges_with
from lightning_tgnn.data.graphs.pipeline import GraphPipeline
from lightning_tgnn.data.graphs.sources.open_graph import SYNTHETIC
from lightning_tgnn.data.sources.open_events import read_source
from lightning_tgnn.data.streams.split_stream import tie_notice


@dataclass(frozen=True)
class EdgesToCut:
    """Edges of a graph.

    Attributes:
        src: int32 or int64 [E].
        dst: int32 or int64 [E].
        num_nodes: N.
        source: Where they are from.
        fingerprint: Of the graph, or of the stream.
        trainable: Whether `FullGraphDataModule` takes the source.
    """

    src: Tensor
    dst: Tensor
    num_nodes: int
    source: str
    fingerprint: str
    trainable: bool

    @classmethod
    def of(cls, of_data: dict[str, Any]) -> EdgesToCut:
        """Return those of a source.

        Args:
            of_data: Arguments of `GraphPipeline`, whose source may be a file of events, too.

        Raises:
            DataError: The source holds something that must not be trained on.
            InvalidArgumentError: The source is unknown.
        """
        data, source = GraphPipeline(**of_data), str(of_data["source"])
        if source != SYNTHETIC and kind_of(source) == EVENTS:
            return cls._of_stream(data, source)
        graph = data.graph
        return cls(graph.src, graph.dst, graph.num_nodes, source, data.info.fingerprint, trainable=True)

    @classmethod
    def _of_stream(cls, data: GraphPipeline, source: str) -> EdgesToCut:
        store = read_source(source, root=str(data.root))
        tied = tied_share(store.time)
        for line in filter(None, (f"{store}, {tied:.1%} of the events tied", tie_notice(tied))):
            print(f"{source}: {line}", file=sys.stderr)
        edge = torch.unique(store.src * store.num_nodes + store.dst)
        src, dst = edge // store.num_nodes, edge % store.num_nodes
        ends = src, dst, store.num_nodes
        src, dst = edges_with(*ends, undirected=data.undirected, self_loops=data.self_loops)
        return cls(src, dst, store.num_nodes, source, store.fingerprint, trainable=False)
