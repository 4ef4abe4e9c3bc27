"""GIN on a subgraph (Xu and others, ICLR 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.graphs.layer_stack import PlainStack, links
from lightning_tgnn.models.graphs.sparse_product import sparse_product
from lightning_tgnn.types import Places, ReplicaSum, RowFunction, SparseRows


class GINLayer(nn.Module):
    """``MLP((1 + eps) h_i + sum(h_j))`` over the neighbours j, with a trained eps; loops do not count.

    The MLP has one hidden layer of the result's width. Its first product is taken before the sum where its rows are
    narrower, as both are linear.

    Args:
        in_dim: Width of what comes in.
        out_dim: Width of the result.
        key: Names the layer's sum over replicas.
    """

    def __init__(self, in_dim: int, out_dim: int, key: str) -> None:
        super().__init__()
        self.key = key
        self.eps = nn.Parameter(torch.zeros(()))
        self.inner = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.outer = nn.Linear(out_dim, out_dim)

    def forward(self, values: Tensor, edges: SparseRows, replicas: ReplicaSum, then: RowFunction) -> Tensor:
        """Return rows [n, …] of ``then``, which takes float32 [n, out_dim].

        Args:
            values: float32 [m, in_dim].
            edges: From m vertices to the first n.
            replicas: Adds up over replicas.
            then: Called with some vertices' results.
        """
        is_first = values.shape[1] <= self.inner.out_features
        rows = values if is_first else self.inner(values)

        def finish(total: Tensor, places: Places) -> Tensor:
            total = total + (1 + self.eps) * rows[: len(edges.starts) - 1][places]
            hidden = self.inner(total) if is_first else total
            return then(self.outer((hidden + self.bias).relu()), places)

        return replicas(sparse_product(edges, links(edges), rows), self.key, then=finish)


class GIN(PlainStack):
    """GIN layers; the paper normalises over a batch, ``layer_norm`` each vertex. Arguments as of `PlainStack`."""

    layer = GINLayer
