"""Static graphs with features, labels and splits, and what options add."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import check_choice
from lightning_tgnn.data.arrays import digest_of_some
from lightning_tgnn.data.graphs.checks import (
    check_edge_weights,
    check_edges,
    check_features,
    check_labels,
    check_masks,
    check_tensors,
    pieces,
)
from lightning_tgnn.data.graphs.edge_options import edges_with, mean_weights
from lightning_tgnn.types import GraphInfo

NORMALIZATIONS = ("symmetric", "row", "none")
SPLITS = ("train", "val", "test")
ALL = "all"


@dataclass(frozen=True, repr=False)
class Graph:
    """A directed graph; messages go from source to destination. Columns are in memory or memory-mapped, and only read.

    Attributes:
        src: int32 or int64 [E].
        dst: int32 or int64 [E].
        features: float32 [N, F].
        labels: int64 [N], 0 .. C - 1, or -1 for none; or [N, C] of 0 and 1 for vertices of several classes, a row of -1
            for none.
        train: bool [N].
        val: bool [N].
        test: bool [N].
        edge_weights: float32 [E], above 0; None if edges count alike.
        folder: Where these columns are files, or None; `lightning_tgnn.data.open_graph` sets it.

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
    edge_weights: Tensor | None = None
    folder: Path | None = field(default=None, init=False)  # not handed on to a graph of other columns

    def __repr__(self) -> str:
        return f"Graph({self.num_nodes:,} vertices, {len(self.src):,} edges, {self.features.shape[1]} features)"

    def __post_init__(self) -> None:
        left_out = {"folder", *(["edge_weights"] if self.edge_weights is None else [])}
        check_tensors({name: column for name, column in vars(self).items() if name not in left_out})
        check_features(self.features)
        check_edges(self.src, self.dst, self.num_nodes)
        check_labels(self.labels, self.num_nodes)
        one_each = self.labels if self.labels.ndim == 1 else self.labels[:, 0]
        check_masks({name: getattr(self, name) for name in SPLITS}, one_each)
        if self.edge_weights is not None:
            check_edge_weights(self.edge_weights, len(self.src))

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.features)

    def with_options(self, *, undirected: bool, self_loops: bool) -> Graph:
        """Return the graph with its edges in both directions, each once, and with one loop at every vertex.

        Without an option the result is this graph. With an option it has edges of its own. They are kept and mapped in
        the folder that the graph was opened from, if there is one, and otherwise in memory; see
        `lightning_tgnn.data.graphs.edge_options.edges_with`. Of edges that become one the mean weight counts, and a
        loop that is added has weight 1.
        """
        if not undirected and not self_loops:
            return self
        ends = self.src, self.dst, self.num_nodes
        src, dst = edges_with(*ends, undirected=undirected, self_loops=self_loops, folder=self.folder)
        weights = self.edge_weights
        if weights is not None:
            weights = mean_weights((self.src, self.dst), weights, (src, dst), self.num_nodes, undirected=undirected)
        return replace(self, src=src, dst=dst, edge_weights=weights)

    def weights(self, normalization: str, edges: Tensor | None = None) -> Tensor:
        """Return the weights of edges, float32 [E], or [s] of those asked for.

        Args:
            normalization: ``"symmetric"`` gives ``w / sqrt(in-degree of v * out-degree of u)``, ``"row"``
                ``w / in-degree of v``, ``"none"`` w, where w is the edge's own weight, 1 unless there are weights, and
                degrees are sums of weights.
            edges: int64 [s], which edges; all if None.
        """
        check_choice("normalization", normalization, NORMALIZATIONS)
        given = self.edge_weights
        if given is None:
            weights = torch.ones(len(self.src) if edges is None else len(edges), dtype=torch.float32)
        else:
            weights = given.clone() if edges is None else given[edges]
        if normalization == "none":
            return weights
        exact = None if given is None else given.double()  # float32 would lose count at a hub
        into = torch.bincount(self.dst, exact, minlength=self.num_nodes)
        out = torch.bincount(self.src, exact, minlength=self.num_nodes) if normalization == "symmetric" else None
        for piece in pieces(len(weights)):
            some = piece if edges is None else edges[piece]
            end_degrees = into[self.dst[some].long()].double()
            weights[piece] *= 1 / end_degrees if out is None else (end_degrees * out[self.src[some].long()]).rsqrt()
        return weights

    def info(self) -> GraphInfo:
        """Return what a model has to know."""
        digest = hashlib.blake2b(digest_size=16)
        weighted = () if self.edge_weights is None else ("edge_weights",)
        for name in ("src", "dst", "labels", *SPLITS, *weighted):
            column = getattr(self, name)
            # int32 and int64 ends are the same graph
            dtype = np.dtype(bool if name in SPLITS else np.float32 if name in weighted else np.int64)
            digest.update(f"{dtype} {tuple(column.shape)}".encode())
            for piece in pieces(len(column)):
                digest.update(np.ascontiguousarray(column[piece].numpy(), dtype).data)
        several, training_labels = self.labels.ndim == 2, self.labels[self.train]
        classes = self.labels.shape[1] if several else int(self.labels.max()) + 1
        counts = training_labels.sum(0) if several else training_labels.bincount(minlength=classes)
        return GraphInfo(
            num_nodes=self.num_nodes,
            num_edges=len(self.src),
            feature_dim=self.features.shape[1],
            num_classes=classes,
            fingerprint=digest.hexdigest(),
            features=digest_of_some(self.features),
            class_counts=tuple(counts.tolist()),
            multi_label=several,
            weighted=self.edge_weights is not None,
        )
