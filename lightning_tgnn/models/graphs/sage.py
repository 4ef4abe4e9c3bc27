"""GraphSAGE with means of all neighbours on a subgraph (Hamilton and others, NeurIPS 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.models.graphs.layer_stack import PlainStack, links
from lightning_tgnn.models.graphs.sparse_product import sparse_product
from lightning_tgnn.types import Places, ReplicaSum, RowFunction, SparseRows


class SAGELayer(nn.Module):
    """``W h_i + V mean(h_j) + b`` over the neighbours j; a vertex is no neighbour of itself, whatever loops it has.

    The narrower of ``h`` and ``V h`` is summed over neighbours. A vertex without a neighbour has a mean of 0.

    Args:
        in_dim: Width of what comes in.
        out_dim: Width of the result.
        key: Names the layer's sum over replicas.
    """

    def __init__(self, in_dim: int, out_dim: int, key: str) -> None:
        super().__init__()
        self.key = key
        self.own = nn.Linear(in_dim, out_dim)
        self.neighbor = nn.Linear(in_dim, out_dim, bias=False)

    def forward(self, values: Tensor, edges: SparseRows, replicas: ReplicaSum, then: RowFunction) -> Tensor:
        """Return rows [n, …] of ``then``, which takes float32 [n, out_dim].

        Args:
            values: float32 [m, in_dim].
            edges: From m vertices to the first n.
            replicas: Adds up over replicas.
            then: Called with some vertices' results.
        """
        is_first = values.shape[1] <= self.own.out_features  # the sum, before the product
        rows = values if is_first else self.neighbor(values)
        # How many neighbours there are is one column more: a rank has some of them.
        columns = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)

        def finish(total: Tensor, places: Places) -> Tensor:
            mean = total[:, :-1] / total[:, -1:].clamp(min=1)
            own = self.own(values[: len(edges.starts) - 1][places])
            return then(own + (self.neighbor(mean) if is_first else mean), places)

        return replicas(sparse_product(edges, links(edges), columns), self.key, (rows.shape[1], 1), finish)


class GraphSAGE(PlainStack):
    """GraphSAGE layers with means over all neighbours; arguments as of `PlainStack`."""

    layer = SAGELayer
