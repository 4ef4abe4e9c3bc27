"""GCN on a part of a graph (Kipf and Welling, ICLR 2017)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from lightning_tgnn.models.graphs.replica_dropout import ReplicaDropout
from lightning_tgnn.models.graphs.sparse_product import sparse_product
from lightning_tgnn.types import ReplicaSum, Subgraph


class GCN(nn.Module):
    """Layers of ``A (H W) + b``; between them ReLU, LayerNorm where asked for, and dropout.

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
        for parameter in self.weights.parameters():
            nn.init.xavier_uniform_(parameter)

    def forward(self, part: Subgraph, replicas: ReplicaSum) -> Tensor:
        """Return logits, float32 [n, C], the same at every replica of a vertex."""
        hidden = part.features
        for layer, weight in enumerate(self.weights):
            rows = weight(self.dropouts[layer](hidden, part))
            hidden = replicas(sparse_product(part.edges, part.edges.weights, rows), f"layer {layer}")
            hidden = hidden + self.biases[layer]
            if layer < len(self.norms):
                hidden = self.norms[layer](hidden).relu()
        return hidden
