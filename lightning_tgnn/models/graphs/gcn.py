"""GCN on a subgraph (Kipf and Welling, ICLR 2017)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from lightning_tgnn.models.graphs.kept_sum import KeptSum, whole
from lightning_tgnn.models.graphs.replica_dropout import ReplicaDropout
from lightning_tgnn.models.graphs.sparse_product import sparse_product
from lightning_tgnn.types import ReplicaSum, Subgraph


class GCN(nn.Module):
    """Layers of ``A H W + b``; between them ReLU, LayerNorm where asked for, and dropout.

    Each layer sums the narrower of ``H`` and ``H W`` over neighbours. Without dropout the first layer's ``A H`` does
    not depend on weights: training computes it once for a subgraph and keeps it, float32 [n, F]. So the first layer
    exchanges nothing more, forward or backward, and evaluation uses the kept product, too. If a subgraph has a halo,
    the first layer needs no exchange at all, even with dropout.

    Args:
        in_dim: F.
        hidden_dim: Width of the layers in between.
        out_dim: C.
        num_layers: At least 1.
        dropout: Rate, before every layer.
        layer_norm: Normalise each vertex after every layer but the last.
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, *, layer_norm: bool
    ) -> None:
        super().__init__()
        widths = [in_dim, *[hidden_dim] * (num_layers - 1), out_dim]
        self.weights = nn.ModuleList(nn.Linear(above, below, bias=False) for above, below in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:])
        self.norms = nn.ModuleList(nn.LayerNorm(width) if layer_norm else nn.Identity() for width in widths[1:-1])
        self.dropouts = nn.ModuleList(ReplicaDropout(dropout, layer) for layer in range(num_layers))
        self._first_sum = KeptSum("sums of the features")
        for parameter in self.weights.parameters():
            nn.init.xavier_uniform_(parameter)

    def forward(self, subgraph: Subgraph, replicas: ReplicaSum) -> Tensor:
        """Return logits, float32 [n, C], the same at every replica of a vertex."""
        hidden = subgraph.features
        for layer, bias in enumerate(self.biases):
            hidden = self._summed(layer, hidden, subgraph, replicas) + bias
            if layer < len(self.norms):
                hidden = self.norms[layer](hidden).relu()
        return hidden

    def _summed(self, layer: int, hidden: Tensor, subgraph: Subgraph, replicas: ReplicaSum) -> Tensor:
        """Return ``A H W`` of a layer."""
        weight, dropout, edges = self.weights[layer], self.dropouts[layer], subgraph.edges
        if layer == 0 and not dropout.rate:
            # One evaluation alone would not pay for them.
            sums = self._first_sum.of(subgraph, replicas) if self.training else self._first_sum.kept(subgraph)
            if sums is not None:
                return weight(sums)
        nodes = None
        if layer == 0 and subgraph.halo is not None:
            nodes, hidden, edges, replicas = subgraph.halo.nodes, subgraph.halo.features, subgraph.halo.edges, whole
        rows = dropout(hidden, subgraph, nodes)
        if rows.shape[1] < len(self.biases[layer]):
            return weight(replicas(sparse_product(edges, edges.weights, rows), f"layer {layer}"))
        return replicas(sparse_product(edges, edges.weights, weight(rows)), f"layer {layer}")
