"""The normalised adjacency matrices of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.data.snapshots.sequence import Edges, SnapshotSequence
from lightning_tgnn.types import SparseRows


@dataclass(frozen=True)
class Adjacency:
    """How the edges of a snapshot become matrices, one for each relation.

    Attributes:
        undirected: Take every edge in both directions.
        self_loops: Add a loop of weight 1 at every vertex; where edges are of several kinds, the loops are one more.
        normalization: Of the sum of parallel edges ``a`` from u to v: ``"symmetric"`` divides it by the square roots of
            the sums of absolute weights into v and out of u (Kipf and Welling, "Semi-supervised classification with
            graph convolutional networks", ICLR 2017, Eq. 2), ``"row"`` by that into v, ``"none"`` leaves it.
        num_relations: Kinds of edges in the data.
    """

    undirected: bool
    self_loops: bool
    normalization: str
    num_relations: int = 1

    @property
    def num_matrices(self) -> int:
        """Matrices of a snapshot."""
        return self.num_relations + int(self.self_loops and self.num_relations > 1)

    def notice(self, sequence: SnapshotSequence) -> str | None:
        """Return what is to be reported where each edge of a sequence counts twice; None where it does not."""
        if not (self.undirected and sequence.holds_reverses):
            return None
        return "every edge is there in both directions and undirected=True counts it twice: set undirected=False"

    def matrices(self, edges: Edges, num_vertices: int) -> tuple[SparseRows, ...]:
        """Return the matrices of edges between vertices ``0 .. num_vertices - 1``."""
        weights = torch.ones(len(edges.src)) if edges.weights is None else edges.weights
        if edges.relations is None or self.num_relations == 1:
            return (self._matrix(edges.src, edges.dst, weights, num_vertices, loops=self.self_loops),)
        found = []
        for relation in range(self.num_relations):
            own = (edges.relations == relation).nonzero().squeeze(1)
            found.append(self._matrix(edges.src[own], edges.dst[own], weights[own], num_vertices, loops=False))
        if self.self_loops:
            nodes = torch.arange(num_vertices)
            found.append(SparseRows.of(nodes, nodes, torch.ones(num_vertices), num_vertices))
        return tuple(found)

    def _matrix(self, src: Tensor, dst: Tensor, weights: Tensor, num_vertices: int, *, loops: bool) -> SparseRows:
        src, dst, weights = src.long(), dst.long(), weights.double()
        if self.undirected:
            other = (src != dst).nonzero().squeeze(1)
            src, dst = torch.cat([src, dst[other]]), torch.cat([dst, src[other]])
            weights = torch.cat([weights, weights[other]])
        if loops:
            nodes = torch.arange(num_vertices)
            src, dst = torch.cat([src, nodes]), torch.cat([dst, nodes])
            weights = torch.cat([weights, torch.ones(num_vertices, dtype=torch.float64)])
        pair, place = torch.unique(dst * max(num_vertices, 1) + src, return_inverse=True)
        weights = torch.zeros(len(pair), dtype=torch.float64).index_add_(0, place, weights)
        src, dst = pair % max(num_vertices, 1), pair // max(num_vertices, 1)
        return SparseRows.of(src, dst, self._normalized(src, dst, weights, num_vertices).float(), num_vertices)

    def _normalized(self, src: Tensor, dst: Tensor, weights: Tensor, num_vertices: int) -> Tensor:
        """Return the normalised weights of edges of which none is parallel to another, float64 [e]."""
        if self.normalization == "none":
            return weights
        into = torch.zeros(num_vertices, dtype=torch.float64).index_add_(0, dst, weights.abs())
        if self.normalization == "row":
            return weights * _inverse(into)[dst]
        out = torch.zeros(num_vertices, dtype=torch.float64).index_add_(0, src, weights.abs())
        return weights * _inverse(into.sqrt())[dst] * _inverse(out.sqrt())[src]


def _inverse(values: Tensor) -> Tensor:
    """Return 1 / values, and 0 where the weights of a vertex are all 0."""
    return torch.where(values > 0, 1 / values, 0)
