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
    check_edges,
    check_features,
    check_labels,
    check_masks,
    check_tensors,
    pieces,
)
from lightning_tgnn.data.graphs.edge_options import edges_with
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
        labels: int64 [N], 0 .. C - 1; -1 for none.
        train: bool [N].
        val: bool [N].
        test: bool [N].
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
    folder: Path | None = field(default=None, init=False)  # not handed on to a graph of other columns

    def __repr__(self) -> str:
        return f"Graph({self.num_nodes:,} vertices, {len(self.src):,} edges, {self.features.shape[1]} features)"

    def __post_init__(self) -> None:
        check_tensors({name: column for name, column in vars(self).items() if name != "folder"})
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

        Without an option the result is this graph. With an option it has edges of its own. They are kept and mapped in
        the folder that the graph was opened from, if there is one, and otherwise in memory; see
        `lightning_tgnn.data.graphs.edge_options.edges_with`.
        """
        if not undirected and not self_loops:
            return self
        ends = self.src, self.dst, self.num_nodes
        src, dst = edges_with(*ends, undirected=undirected, self_loops=self_loops, folder=self.folder)
        return replace(self, src=src, dst=dst)

    def weights(self, normalization: str, edges: Tensor | None = None) -> Tensor:
        """Return the weights of edges, float32 [E], or [s] of those asked for.

        Args:
            normalization: ``"symmetric"`` gives ``1 / sqrt(in-degree of v * out-degree of u)``, ``"row"``
                ``1 / in-degree of v``, ``"none"`` 1.
            edges: int64 [s], which edges; all if None.
        """
        check_choice("normalization", normalization, NORMALIZATIONS)
        count = len(self.src) if edges is None else len(edges)
        weights = torch.ones(count, dtype=torch.float32)
        if normalization == "none":
            return weights
        into = torch.bincount(self.dst, minlength=self.num_nodes)
        out = torch.bincount(self.src, minlength=self.num_nodes) if normalization == "symmetric" else None
        for piece in pieces(count):
            some = piece if edges is None else edges[piece]
            of_end = into[self.dst[some].long()].double()
            weights[piece] = 1 / of_end if out is None else (of_end * out[self.src[some].long()]).rsqrt()
        return weights

    def info(self) -> GraphInfo:
        """Return what a model has to know."""
        digest = hashlib.blake2b(digest_size=16)
        for name in ("src", "dst", "labels", *SPLITS):
            column = getattr(self, name)
            dtype = np.dtype(bool if name in SPLITS else np.int64)  # int32 and int64 ends are the same graph
            digest.update(f"{dtype} {tuple(column.shape)}".encode())
            for piece in pieces(len(column)):
                digest.update(np.ascontiguousarray(column[piece].numpy(), dtype).data)
        classes = int(self.labels.max()) + 1
        return GraphInfo(
            num_nodes=self.num_nodes,
            num_edges=len(self.src),
            feature_dim=self.features.shape[1],
            num_classes=classes,
            fingerprint=digest.hexdigest(),
            features=digest_of_some(self.features),
            class_counts=tuple(self.labels[self.train].bincount(minlength=classes).tolist()),
        )
