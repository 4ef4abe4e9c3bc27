"""Layers on a subgraph, one after the other; the base of models that consist of such layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from lightning_tgnn.models.graphs.replica_dropout import DroppedRows, ReplicaDropout
from lightning_tgnn.models.graphs.sparse_product import whole
from lightning_tgnn.types import ReplicaSum, RowFunction, SparseRows, Subgraph


class LayerStack(nn.Module):
    """Layers; between them an activation, LayerNorm where asked for, and dropout.

    If a subgraph has a halo, the first layer exchanges nothing.

    Args:
        layers: Each is called with values [m, width], edges from m vertices to the first n, a `ReplicaSum`, and what to
            do with its own result, a `RowFunction`, of which it returns the rows, [n, next width].
        hidden_dim: Width between layers.
        dropout: Rate, before every layer.
        activation: Between layers.
        layer_norm: Normalise each vertex after every layer but the last.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        hidden_dim: int,
        dropout: float,
        activation: Callable[[Tensor], Tensor],
        *,
        layer_norm: bool,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_dim) if layer_norm else nn.Identity() for _ in layers[1:])
        self.dropouts = nn.ModuleList(ReplicaDropout(dropout, layer) for layer in range(len(layers)))
        self._activation = activation

    def forward(self, subgraph: Subgraph, replicas: ReplicaSum) -> Tensor:
        """Return logits, float32 [n, C], the same at every replica of a vertex."""
        part = subgraph if subgraph.halo is None else subgraph.halo
        dropout = cast(ReplicaDropout, self.dropouts[0])
        hidden = dropout(part.features, dropout.mask(part.nodes, part.features.shape[1], subgraph.seed))
        first = replicas if subgraph.halo is None else whole
        hidden = self.layers[0](hidden, part.edges, first, self._then(0, subgraph))
        for number, layer in enumerate(self.layers[1:], start=1):
            hidden = layer(hidden, subgraph.edges, replicas, self._then(number, subgraph))
        return hidden

    def _then(self, number: int, subgraph: Subgraph) -> RowFunction:
        """Return what turns rows of a layer into input of the next one."""
        if number == len(self.norms):
            return lambda rows, places: rows
        dropped = DroppedRows(cast(ReplicaDropout, self.dropouts[number + 1]), subgraph)
        return lambda rows, places: dropped(self._activation(self.norms[number](rows)), places)


class PlainStack(LayerStack):
    """`LayerStack` of layers of one class, with ReLU between them.

    Args:
        in_dim: F.
        hidden_dim: Width of the layers in between.
        out_dim: C.
        num_layers: At least 1.
        dropout: Rate, before every layer.
        layer_norm: Normalise each vertex after every layer but the last.

    Attributes:
        layer: The class, called with the widths before and after a layer and the name of its sum over replicas.
    """

    layer: ClassVar[type[nn.Module]]

    def __init__(
        self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int, dropout: float, *, layer_norm: bool
    ) -> None:
        widths = [in_dim, *[hidden_dim] * (num_layers - 1), out_dim]
        layers = [type(self).layer(*both, f"layer {number}") for number, both in enumerate(pairwise(widths))]
        super().__init__(layers, hidden_dim, dropout, torch.relu, layer_norm=layer_norm)


def links(edges: SparseRows) -> Tensor:
    """Return 1 for every edge between two vertices and 0 for a loop, float32 [e]."""
    return (edges.columns != edges.rows).to(torch.float32)
