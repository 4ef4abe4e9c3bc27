"""The neighbourhood of a batch as edges, for layers of `dgl.nn` and `torch_geometric.nn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.types import RootBatch, TensorFields


@dataclass(frozen=True, repr=False)
class NeighborEdges(TensorFields):
    """Edges from past neighbours to the roots; a root that occurs at two times is two vertices.

    The vertices are ordered as in a DGL block: the R roots, which receive, then the U distinct nodes, which send.

    Attributes:
        rows: int64 [R + U], place in ``EventBatch.nodes`` of every vertex: ``states[rows]`` are their inputs.
        edge_index: int64 [2, A], sender and receiver of every edge, as PyG has it.
        age: float32 [A], time from the neighbour's event to the root's time.
        features: float32 [A, d_edge], features of the neighbour's event.
        num_roots: R; the first R vertices are the roots.
    """

    rows: Tensor
    edge_index: Tensor
    age: Tensor
    features: Tensor
    num_roots: int

    def block(self) -> Any:
        """Return the edges as a `dgl.DGLBlock` with ``edata["age"]`` and ``edata["feat"]``.

        Raises:
            InvalidArgumentError: DGL is not installed.
        """
        try:
            import dgl
        except ImportError as error:
            cure = "install dgl 1.1.3, which needs Python < 3.12, or take edge_index"
            raise InvalidArgumentError(refusal("block", "called where dgl is installed", "no dgl", cure)) from error
        senders, receivers = self.edge_index
        block = dgl.create_block((senders, receivers), num_src_nodes=len(self.rows), num_dst_nodes=self.num_roots)
        block.edata["age"] = self.age
        block.edata["feat"] = self.features
        return block


def neighbor_edges(batch: RootBatch) -> NeighborEdges:
    """Return the sampled neighbours of a batch as edges to its roots, root by root."""
    roots = len(batch.root_index)
    receivers, places = batch.neighbor_mask.nonzero(as_tuple=True)
    senders = batch.neighbor_index[receivers, places] + roots
    rows = torch.cat([batch.root_index, torch.arange(len(batch.nodes), device=batch.nodes.device)])
    age = (batch.root_times[receivers] - batch.neighbor_time[receivers, places]).float()
    has_features = batch.edge_features.shape[-1] > 0
    features = (
        batch.edge_features[batch.neighbor_edge[receivers, places]] if has_features else age.new_empty(len(age), 0)
    )
    return NeighborEdges(rows, torch.stack([senders, receivers]), age, features, roots)
