"""GAT (Velickovic et al., ICLR 2018) and GATv2 (Brody et al., ICLR 2022) on a subgraph."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu
from typing_extensions import override

from lightning_tgnn.models.graphs.layer_stack import LayerStack
from lightning_tgnn.models.graphs.sparse_product import sparse_product
from lightning_tgnn.types import Places, ReplicaSum, RowFunction, SparseRows

# The softmax over the edges into a vertex runs over several ranks. Its numerator and denominator are sums, but the
# usual shift by the greatest logit would change from step to step under cached sums; so logits are bounded instead.
_GREATEST_LOGIT = 60.0


class GATLayer(nn.Module):
    """Attention over the edges into each vertex, head by head.

    If a head is wider than its input, neighbours are summed before they are multiplied by the weights, so that the
    narrower rows are sent. Logits are clamped to [-60, 60].

    Args:
        in_dim: Width of what comes in.
        head_dim: Width of a head.
        heads: Number of heads.
        key: Names the layer's sum over replicas.
    """

    def __init__(self, in_dim: int, head_dim: int, heads: int, key: str) -> None:
        super().__init__()
        self.heads, self.head_dim, self.key = heads, head_dim, key
        self.weight = nn.Linear(in_dim, heads * head_dim, bias=False)
        self.of_source = nn.Parameter(torch.empty(heads, head_dim))
        self.of_destination = nn.Parameter(torch.empty(heads, head_dim))
        self.bias = nn.Parameter(torch.zeros(heads * head_dim))
        for parameter in (self.weight.weight, self.of_source, self.of_destination):
            nn.init.xavier_uniform_(parameter)

    def forward(self, values: Tensor, edges: SparseRows, replicas: ReplicaSum, then: RowFunction) -> Tensor:
        """Return rows [n, …] of ``then``, which takes float32 [n, heads * head_dim].

        Args:
            values: float32 [m, in_dim].
            edges: From m vertices to the first n.
            replicas: Adds up over replicas.
            then: Called with some vertices' results.
        """
        if values.shape[1] >= self.head_dim:
            rows = self.weight(values).view(-1, self.heads, self.head_dim)
            source, destination = ((rows * of).sum(-1) for of in (self.of_source, self.of_destination))
        else:
            weights = self.weight.weight.view(self.heads, self.head_dim, -1)
            rows = values.unsqueeze(1).expand(-1, self.heads, -1)
            folded = (torch.einsum("hd,hdi->ih", of, weights) for of in (self.of_source, self.of_destination))
            source, destination = (values @ of for of in folded)
        logits = leaky_relu(source[edges.columns] + destination[edges.rows], 0.2)

        def finish(means: Tensor, places: Places) -> Tensor:
            attended = means if values.shape[1] >= self.head_dim else torch.einsum("nhi,hdi->nhd", means, weights)
            return then(attended.flatten(1) + self.bias, places)

        return self._attended(rows, logits, edges, replicas, finish)

    def _attended(
        self, rows: Tensor, logits: Tensor, edges: SparseRows, replicas: ReplicaSum, then: RowFunction
    ) -> Tensor:
        """Return rows [n, …] of ``then``, which takes means of neighbours' rows, float32 [n, heads, width].

        Args:
            rows: [n, heads, width].
            logits: The strength of attention on every edge is their exponential, [e, heads].
            edges: Of the subgraph.
            replicas: Adds up over replicas.
            then: Called with some vertices' means.
        """
        strength = logits.clamp(-_GREATEST_LOGIT, _GREATEST_LOGIT).exp()
        width, ones = rows.shape[2], torch.ones_like(rows[:, 0, :1])
        sums = []
        for head in range(self.heads):
            # The denominator is the sum of the strengths: one column more.
            columns = torch.cat([rows[:, head], ones], dim=1)
            sums.append(sparse_product(edges, strength[:, head].contiguous(), columns))
        # Heads differ by orders of magnitude, and a denominator must not be rounded to nothing.

        def finish(totals: Tensor, places: Places) -> Tensor:
            totals = totals.view(-1, self.heads, width + 1)
            # A vertex without an edge into it has nothing to attend to.
            below = totals[..., -1:]
            return then(totals[..., :-1] / torch.where(below > 0, below, torch.ones_like(below)), places)

        return replicas(torch.cat(sums, dim=1), self.key, (width, 1) * self.heads, finish)


class GATv2Layer(GATLayer):
    """Attention whose ranking of neighbours depends on the vertex that attends (Brody and others, ICLR 2022).

    Sources and destinations have weights of their own. Logits are clamped to [-60, 60].

    Args:
        in_dim: Width of what comes in.
        head_dim: Width of a head.
        heads: Number of heads.
        key: Names the layer's sum over replicas.
    """

    def __init__(self, in_dim: int, head_dim: int, heads: int, key: str) -> None:
        super().__init__(in_dim, head_dim, heads, key)
        del self.of_source, self.of_destination
        self.weight_destination = nn.Linear(in_dim, heads * head_dim, bias=False)
        self.attention = nn.Parameter(torch.empty(heads, head_dim))
        for parameter in (self.weight_destination.weight, self.attention):
            nn.init.xavier_uniform_(parameter)

    @override
    def forward(self, values: Tensor, edges: SparseRows, replicas: ReplicaSum, then: RowFunction) -> Tensor:
        """Return rows [n, …] of ``then``, which takes float32 [n, heads * head_dim].

        Args:
            values: float32 [m, in_dim].
            edges: From m vertices to the first n.
            replicas: Adds up over replicas.
            then: Called with some vertices' results.
        """
        rows, attending = (
            weight(of).view(-1, self.heads, self.head_dim)
            for weight, of in ((self.weight, values), (self.weight_destination, values[: len(edges.starts) - 1]))
        )
        logits = (leaky_relu(rows[edges.columns] + attending[edges.rows], 0.2) * self.attention).sum(-1)

        def finish(means: Tensor, places: Places) -> Tensor:
            return then(means.flatten(1) + self.bias, places)

        return self._attended(rows, logits, edges, replicas, finish)


class GAT(LayerStack):
    """GAT layers; between them ELU, LayerNorm where asked for, and dropout. The last one has a single head.

    Every sum depends on weights, so none can be kept. But if a subgraph has a halo, the first layer exchanges nothing.

    Args:
        in_dim: F.
        hidden_dim: Width of the layers in between, over all heads.
        out_dim: C.
        num_layers: At least 1.
        heads: Of every layer but the last; divides ``hidden_dim``.
        dropout: Rate, before every layer.
        layer_norm: Normalise each vertex after every layer but the last.
    """

    layer: ClassVar[type[GATLayer]] = GATLayer

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int,
        out_dim: int,
        num_layers: int,
        heads: int,
        dropout: float,
        *,
        layer_norm: bool,
    ) -> None:
        widths = [in_dim, *[hidden_dim] * (num_layers - 1)]
        layers = [
            self.layer(width, hidden_dim // heads, heads, f"layer {number}") for number, width in enumerate(widths[:-1])
        ]
        layers.append(self.layer(widths[-1], out_dim, 1, f"layer {num_layers - 1}"))
        super().__init__(layers, hidden_dim, dropout, elu, layer_norm=layer_norm)


class GATv2(GAT):
    """`GAT` with `GATv2Layer`; arguments as there."""

    layer = GATv2Layer
