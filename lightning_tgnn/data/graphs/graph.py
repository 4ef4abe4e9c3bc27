"""Static graphs with features, labels and splits, and what options add."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import check_choice
from lightning_tgnn.data.graphs.checks import (
    check_edges,
    check_features,
    check_labels,
    check_masks,
    check_tensors,
    pieces,
)
from lightning_tgnn.types import GraphInfo

NORMALIZATIONS = ("symmetric", "row", "none")
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, repr=False)
class Graph:
    """A directed graph; messages go from source to destination. Columns are in memory or memory-mapped, and only read.

    Attributes:
        src: int32 or int64 [E].
        dst: int32 or int64 [E].
        features: float32 [N, F].
        labels: int64 [N], 0 .. C - 1; -1 for none.
        train: bool [N].
        val: bool [N].
        test: bool [N].

    Raises:
        DataError: A column is of another shape or type, or holds something that must not be trained on.
    """

    src: Tensor
    dst: Tensor
    features: Tensor
    labels: Tensor
    train: Tensor
    val: Tensor
    test: Tensor

    def __repr__(self) -> str:
        return f"Graph({self.num_nodes:,} vertices, {len(self.src):,} edges, {self.features.shape[1]} features)"

    def __post_init__(self) -> None:
        check_tensors(vars(self))
        check_features(self.features)
        check_edges(self.src, self.dst, self.num_nodes)
        check_labels(self.labels, self.num_nodes)
        check_masks({name: getattr(self, name) for name in SPLITS}, self.labels)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.features)

    def with_options(self, *, undirected: bool, self_loops: bool) -> Graph:
        """Return the graph with its edges in both directions, each once, and with one loop at every vertex.

        Without an option it is this graph, whose columns may be mapped; with one it has edges of its own, in memory.
        """
        if not undirected and not self_loops:
            return self
        src, dst = self.src, self.dst
        if undirected:
            src, dst = with_both_directions(src, dst, self.num_nodes)
        if self_loops:
            src, dst = with_loops(src, dst, self.num_nodes)
        kept = {name: getattr(self, name) for name in ("features", "labels", *SPLITS)}
        return Graph(src, dst, **kept)

    def weights(self, normalization: str) -> Tensor:
        """Return the weight of every edge, float32 [E].

        Args:
            normalization: ``"symmetric"`` gives ``1 / sqrt(in-degree of v * out-degree of u)``, ``"row"``
                ``1 / in-degree of v``, ``"none"`` 1.
        """
        check_choice("normalization", normalization, NORMALIZATIONS)
        into = torch.bincount(self.dst, minlength=self.num_nodes).double()
        if normalization == "none":
            return torch.ones(len(self.src))
        if normalization == "row":
            return (1 / into.index_select(0, self.dst)).float()
        out = torch.bincount(self.src, minlength=self.num_nodes).double()
        return (into.index_select(0, self.dst) * out.index_select(0, self.src)).rsqrt().float()

    def info(self) -> GraphInfo:
        """Return what a model has to know."""
        digest = hashlib.blake2b(digest_size=16)
        for name in ("src", "dst", "labels", *SPLITS):
            column = getattr(self, name)
            dtype = np.dtype(bool if name in SPLITS else np.int64)  # int32 and int64 ends are the same graph
            digest.update(f"{dtype} {tuple(column.shape)}".encode())
            for piece in pieces(len(column)):
                digest.update(np.ascontiguousarray(column[piece].numpy(), dtype).data)
        return GraphInfo(
            num_nodes=self.num_nodes,
            num_edges=len(self.src),
            feature_dim=self.features.shape[1],
            num_classes=int(self.labels.max()) + 1,
            fingerprint=digest.hexdigest(),
        )


def with_both_directions(src: Tensor, dst: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the edges and their reverse, each once, int32 or int64 [E'] each as they came."""
    wide = src.long(), dst.long()  # the number of a pair does not fit 32 bits
    edge = torch.unique(torch.cat([wide[0] * num_nodes + wide[1], wide[1] * num_nodes + wide[0]]))
    return (edge // num_nodes).to(src.dtype), (edge % num_nodes).to(dst.dtype)


def with_loops(src: Tensor, dst: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the edges between different vertices and one loop at every vertex, int32 or int64 [E'] each."""
    nodes, other = torch.arange(num_nodes, dtype=src.dtype), src != dst
    return torch.cat([src[other], nodes]), torch.cat([dst[other], nodes])
