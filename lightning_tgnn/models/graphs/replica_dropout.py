"""Dropout that drops the same elements of a vertex on every rank that has a replica."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.types import Places, Subgraph

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

    def mask(self, nodes: Tensor, width: int, seed: int) -> Tensor | None:
        """Return which values are kept, bool [n, width]; None if all are.

        Args:
            nodes: int64 [n], the vertices, by their numbers in the graph.
            width: Values of a vertex.
            seed: Of the epoch.
        """
        if not self.training or not self.rate:
            return None
        # One stream of random bits for each vertex: 16 of them decide about a value.
        words = torch.arange(-(-width // 3), device=nodes.device)
        pieces = []
        for some in nodes.split(_VERTICES_AT_ONCE):
            bits = counter_hash(seed, self.layer, some.unsqueeze(1), words)
            fractions = torch.stack([bits >> shift & 0xFFFF for shift in (0, 16, 32)], dim=-1).flatten(1)
            pieces.append(fractions[:, :width] >= self._dropped)
        return torch.cat(pieces)

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return ``values``, float32 [n, d], with 0 where a mask has no True, and the others scaled up."""
        return values if mask is None else values * mask / (1 - self._dropped / 2**16)

    @property
    def _dropped(self) -> int:
        """The share of the values that are dropped, in 65,536ths."""
        return min(round(self.rate * 2**16), 2**16 - 1)


class DroppedRows:
    """Drops values of some vertices at a time.

    The first call decides for all vertices: a `ReplicaSum` waits for the sums of most of them only after that.

    Args:
        dropout: What drops.
        subgraph: Has the vertices and the seed.
    """

    def __init__(self, dropout: ReplicaDropout, subgraph: Subgraph) -> None:
        self._dropout, self._subgraph = dropout, subgraph
        self._mask: Tensor | None = None

    def __call__(self, values: Tensor, places: Places) -> Tensor:
        """Return rows [m, d] of vertices, given their places, with some values set to 0."""
        if self._mask is None:
            self._mask = self._dropout.mask(self._subgraph.nodes, values.shape[1], self._subgraph.seed)
        dropped: Tensor = self._dropout(values, None if self._mask is None else self._mask[places])
        return dropped
