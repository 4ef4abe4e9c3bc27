"""Dropout that drops the same elements of a vertex on every rank that has a replica."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.types import Subgraph

_VERTICES_AT_ONCE = 1 << 16  # whose random bits are there at a time: they take ten times the memory of what they decide


class ReplicaDropout(nn.Module):
    """Dropout by vertex, not by place.

    Args:
        rate: Share of the values that are set to 0, in [0, 1).
        layer: Tells one use in a model from another.
    """

    def __init__(self, rate: float, layer: int) -> None:
        super().__init__()
        self.rate, self.layer = rate, layer

    def forward(self, values: Tensor, subgraph: Subgraph, nodes: Tensor | None = None) -> Tensor:
        """Return float32 [n, d] with some of ``values`` set to 0 and the others scaled up.

        Args:
            values: float32 [n, d].
            subgraph: Has the seed.
            nodes: int64 [n], the vertices; those of the subgraph if None.
        """
        if not self.training or not self.rate:
            return values
        # One stream of random bits for each vertex: 16 of them decide about a value.
        words = torch.arange(-(-values.shape[1] // 3), device=values.device)
        dropped = min(round(self.rate * 2**16), 2**16 - 1)
        pieces = []
        for some in (subgraph.nodes if nodes is None else nodes).split(_VERTICES_AT_ONCE):
            bits = counter_hash(subgraph.seed, self.layer, some.unsqueeze(1), words)
            fractions = torch.stack([bits >> shift & 0xFFFF for shift in (0, 16, 32)], dim=-1).flatten(1)
            pieces.append(fractions[:, : values.shape[1]] >= dropped)
        return values * torch.cat(pieces) / (1 - dropped / 2**16)
