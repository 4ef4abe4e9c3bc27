"""Static graphs cut over ranks; shapes and units are stated once, here.

Letters: ``N`` vertices and ``E`` edges of the graph, ``F`` features, ``C`` classes; ``n`` vertices and ``e`` edges of a
rank's subgraph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lightning_tgnn.types.tensor_fields import TensorFields


@dataclass(frozen=True)
class GraphInfo:
    """What a model has to know of a graph before it can be built.

    Attributes:
        num_nodes: Vertices are ``0 .. num_nodes - 1``.
        num_edges: Directed edges, including the edges that options of the DataModule add.
        feature_dim: F.
        num_classes: C.
        fingerprint: Digest of edges, labels and splits, to tell one graph from another.
        features: Digest of some rows of the features, evenly spread; None if unknown.
        class_counts: Training vertices of each class; None if unknown.
        multi_label: Whether a vertex may be of several classes.
        weighted: Whether edges have weights of their own.
    """

    num_nodes: int
    num_edges: int
    feature_dim: int
    num_classes: int
    fingerprint: str
    features: str | None = None
    class_counts: tuple[int, ...] | None = field(default=None, compare=False)
    multi_label: bool = False
    weighted: bool = False


@dataclass(frozen=True, repr=False)
class ReplicaLinks(TensorFields):
    """One hop of the way between the replicas of a subgraph's vertices: mirrors below, who gathers from them above.

    Both lists run over the other ranks in order, and for each over its vertices by ascending number, so that entry by
    entry a rank's mirrors are what the ranks above them expect.

    Attributes:
        mirrors: int64 [S], places of this subgraph's replicas that are gathered elsewhere, by that rank.
        of_mirrors: int64 [P], how many are gathered on each rank.
        mastered: int64 [T], places of this subgraph's replicas that gather others, once for each of these, by its rank.
        of_mastered: int64 [P], how many of them each rank has.
    """

    mirrors: Tensor
    of_mirrors: Tensor
    mastered: Tensor
    of_mastered: Tensor


@dataclass(frozen=True, repr=False)
class SparseRows(TensorFields):
    """A subgraph's edges as a matrix in compressed rows, and its transpose.

    A matrix of fewer rows than columns has the edges into the first vertices only.

    Attributes:
        starts: int64 [rows + 1], where the edges into each vertex begin.
        columns: int64 [e], the vertex that each edge comes from.
        weights: float32 [e].
        starts_back: Integers [columns + 1], where the edges out of each vertex begin.
        columns_back: Integers [e] of the same type, the vertex that each of these goes to.
        edges_back: Integers [e], which edge of ``columns`` each of these is.
    """

    starts: Tensor
    columns: Tensor
    weights: Tensor
    starts_back: Tensor
    columns_back: Tensor
    edges_back: Tensor

    @classmethod
    def of(
        cls, src: Tensor, dst: Tensor, weights: Tensor, num_nodes: int, num_sources: int | None = None
    ) -> SparseRows:
        """Return the matrix of some edges, given by their ends (int64 [e]) and weights (float32 [e]).

        Args:
            src: Columns.
            dst: Rows.
            weights: Of the edges.
            num_nodes: How many rows there are.
            num_sources: How many columns; as many if None.
        """
        num_sources = num_nodes if num_sources is None else num_sources
        forth = torch.argsort(dst * num_sources + src, stable=True)
        src, dst, weights = src[forth], dst[forth], weights[forth]
        back = torch.argsort(src, stable=True)
        return cls(_starts(dst, num_nodes), src, weights, _starts(src, num_sources), dst[back], back)

    @property
    def rows(self) -> Tensor:
        """The vertex that each edge goes to, int64 [e]."""
        lengths = self.starts.diff()
        return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)


def _starts(ends: Tensor, num_nodes: int) -> Tensor:
    counts = torch.bincount(ends, minlength=num_nodes)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


@dataclass(frozen=True, repr=False)
class Halo(TensorFields):
    """All edges into a subgraph's vertices, edges of other ranks too, and the vertices that they come from.

    Attributes:
        nodes: int64 [m], numbers in the graph: the subgraph's vertices, then the others, ascending.
        features: float32 [m, F].
        edges: From places of ``nodes`` to the subgraph's vertices, which have the first n places.
    """

    nodes: Tensor
    features: Tensor
    edges: SparseRows


@dataclass(frozen=True, repr=False)
class Subgraph(TensorFields):
    """The part of a graph that a rank has, with all that a step of full-batch training needs.

    Attributes:
        nodes: int64 [n], numbers of the vertices in the graph, ascending.
        features: float32 [n, F].
        edges: The subgraph's edges between places of ``nodes``.
        labels: int64 [n], or [n, C] of 0 and 1; -1 where there is none.
        scored: int64 [t], places of the vertices of the split whose master is here: each vertex of the graph is scored
            once.
        share: Factor of the sum of this subgraph's losses, so that the mean over ranks is the mean over the split's
            vertices.
        hops: The way from replicas to the master of each vertex, over the leader of a host if hosts have several ranks.
            Values are gathered from the first hop to the last, and scattered in the opposite order.
        seed: Of this epoch's dropout.
        halo: The edges and features with which a first layer needs no sum over replicas; None if not requested.
    """

    nodes: Tensor
    features: Tensor
    edges: SparseRows
    labels: Tensor
    scored: Tensor
    share: float
    hops: tuple[ReplicaLinks, ...]
    seed: int
    halo: Halo | None = None

    def __len__(self) -> int:
        return self.scored.numel()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Subgraph:
        """Return a copy whose tensors are on ``device``, or itself if they are there."""
        if self.nodes.device == torch.device(device):
            return self
        moved = super().to(device, non_blocking)
        hops = tuple(links.to(device, non_blocking) for links in self.hops)
        halo = moved.halo  # whose first rows the features are
        return replace(moved, hops=hops, features=moved.features if halo is None else halo.features[: len(self.nodes)])


Places = Tensor | slice
"""Some vertices of a subgraph, by place; `EVERY` of them as a slice, which copies nothing."""

EVERY = slice(None)

RowFunction = Callable[[Tensor, Places], Tensor]
"""Takes sums of some vertices, float32 [m, d], and the places of these, and returns a row for each."""


class ReplicaSum(Protocol):
    """Adds up the values of all replicas of each vertex; on one rank it returns its input.

    A layer calls it after it has aggregated over the subgraph's edges.
    """

    def __call__(
        self, values: Tensor, key: str, blocks: tuple[int, ...] = (), then: RowFunction | None = None
    ) -> Tensor:
        """Return the sums at every replica, or what ``then`` makes of them.

        Args:
            values: float32 [n, d], what this subgraph's edges contribute to each of its vertices.
            key: Names the call among the calls of a step; the same on all ranks.
            blocks: Widths of blocks of columns, d in all, whose values are of different size, so that each is to be
                quantised by itself; all together if empty.
            then: Computes a row of the result for each vertex from its sum. Vertices without replicas come first, while
                sums of the others are on their way. None returns the sums.
        """
        ...


@runtime_checkable
class ReplicaTask(Protocol):
    """A task that adds up over the replicas of vertices; a strategy that cuts the graph says how."""

    replicas: ReplicaSum


class SubgraphLoader(Protocol):
    """A loader of one rank's subgraph."""

    @property
    def subgraph(self) -> Subgraph:
        """This rank's subgraph."""
        ...


class CuttableLoader(ABC):
    """A loader of a graph that can be cut over ranks by its edges."""

    @property
    @abstractmethod
    def edges(self) -> tuple[Tensor, Tensor, int]:
        """Sources and destinations of all edges, int32 or int64 [E] each, and N."""

    @abstractmethod
    def shard(
        self, owner: Tensor, hosts: Tensor, rank: int, /, *, relay: bool = True, halo: bool = False
    ) -> SubgraphLoader:
        """Return a loader of a rank's subgraph.

        Args:
            owner: Integers [E], the rank of every edge.
            hosts: int64 [P], the host of every rank.
            rank: Whose subgraph.
            relay: Let the replicas of a host reach other hosts by one of them.
            halo: Give the subgraph a `Halo`.
        """
