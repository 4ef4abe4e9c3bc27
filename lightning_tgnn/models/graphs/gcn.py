"""GCN on a subgraph (Kipf and Welling, ICLR 2017)."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from lightning_tgnn.models.graphs.replica_dropout import DroppedRows, ReplicaDropout
from lightning_tgnn.models.graphs.sparse_product import KeptSum, sparse_product, whole
from lightning_tgnn.types import EVERY, Places, ReplicaSum, RowFunction, SparseRows, Subgraph


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
        dropout_on_sums: The first layer drops elements of ``A H`` rather than of ``H``, so that the product is kept
            with dropout, too. It regularises otherwise: what is dropped is a vertex's sum, not a neighbour's feature.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int,
        out_dim: int,
        num_layers: int,
        dropout: float,
        *,
        layer_norm: bool,
        dropout_on_sums: bool = False,
    ) -> None:
        super().__init__()
        widths = [in_dim, *[hidden_dim] * (num_layers - 1), out_dim]
        self.weights = nn.ModuleList(nn.Linear(above, below, bias=False) for above, below in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:])
        self.norms = nn.ModuleList(nn.LayerNorm(width) if layer_norm else nn.Identity() for width in widths[1:-1])
        self.dropouts = nn.ModuleList(ReplicaDropout(dropout, layer) for layer in range(num_layers))
        self._first_sum, self._drops_sums = KeptSum("sums of the features"), dropout_on_sums
        for parameter in self.weights.parameters():
            nn.init.xavier_uniform_(parameter)

    def forward(self, subgraph: Subgraph, replicas: ReplicaSum) -> Tensor:
        """Return logits, float32 [n, C], the same at every replica of a vertex."""
        rows = self._first_rows(subgraph, replicas)
        for layer in range(1, len(self.biases)):
            rows = self._summed(layer, rows, subgraph.edges, subgraph, replicas)
        return rows

    def _first_rows(self, subgraph: Subgraph, replicas: ReplicaSum) -> Tensor:
        """Return what the second layer sums."""
        if self._drops_sums or not self.dropouts[0].rate:
            # One evaluation alone would not pay for them.
            sums = self._first_sum.of(subgraph, replicas) if self.training else self._first_sum.kept(subgraph)
            if sums is not None:
                kept = self._dropped(sums, subgraph.nodes, subgraph.seed) if self._drops_sums else sums
                return self._after(0, subgraph)(self.weights[0](kept), EVERY)
        part = subgraph if subgraph.halo is None else subgraph.halo
        hidden = part.features if self._drops_sums else self._dropped(part.features, part.nodes, subgraph.seed)
        rows = hidden if self._sums_first(0) else self.weights[0](hidden)
        return self._summed(0, rows, part.edges, subgraph, replicas if subgraph.halo is None else whole)

    def _dropped(self, features: Tensor, nodes: Tensor, seed: int) -> Tensor:
        """Return what the first layer takes of features or of their sums, [m, F]."""
        dropout = cast(ReplicaDropout, self.dropouts[0])
        return dropout(features, dropout.mask(nodes, features.shape[1], seed))

    def _summed(self, layer: int, rows: Tensor, edges: SparseRows, subgraph: Subgraph, replicas: ReplicaSum) -> Tensor:
        """Return what the next layer sums, or the logits, given what this layer sums."""
        after, sums_first = self._after(layer, subgraph), self._sums_first(layer)

        def then(sums: Tensor, places: Places) -> Tensor:
            return after(self.weights[layer](sums) if sums_first else sums, places)

        return replicas(sparse_product(edges, edges.weights, rows), f"layer {layer}", then=then)

    def _after(self, layer: int, subgraph: Subgraph) -> RowFunction:
        """Return what turns ``A H W`` of this layer into what the next layer sums, or into logits."""
        bias = self.biases[layer]
        if layer == len(self.norms):
            return lambda sums, places: sums + bias
        dropped = DroppedRows(cast(ReplicaDropout, self.dropouts[layer + 1]), subgraph)

        def after(sums: Tensor, places: Places) -> Tensor:
            hidden = dropped(self.norms[layer](sums + bias).relu(), places)
            return hidden if self._sums_first(layer + 1) else self.weights[layer + 1](hidden)

        return after

    def _sums_first(self, layer: int) -> bool:
        """Whether the rows before the product with the weights are the narrower ones."""
        weight = cast(nn.Linear, self.weights[layer])
        return weight.in_features < weight.out_features
