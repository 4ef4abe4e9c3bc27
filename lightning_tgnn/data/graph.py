"""Static graphs with features, labels and splits: what is checked, and what options add."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, check_choice, refusal
from lightning_tgnn.types import GraphInfo

NORMALIZATIONS = ("symmetric", "row", "none")
SPLITS = ("train", "val", "test")
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Graph:
    """A directed graph; messages go from source to destination.

    Attributes:
        src: int64 [E].
        dst: int64 [E].
        features: float32 [N, F], in memory or memory-mapped.
        labels: int64 [N], 0 .. C - 1; -1 for none.
        train: bool [N].
        val: bool [N].
        test: bool [N].
    """

    src: Tensor
    dst: Tensor
    features: Tensor
    labels: Tensor
    train: Tensor
    val: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        count = len(self.features)
        if self.src.shape != self.dst.shape or self.src.dim() != 1:
            cure = "give both ends of every edge"
            raise DataError(refusal("edges", "as many sources as destinations", len(self.dst), cure))
        if not len(self.src):
            raise DataError(refusal("edges", "at least one", 0, "give a graph with edges"))
        for name in ("src", "dst"):
            ends = getattr(self, name)
            if int(ends.min()) < 0 or int(ends.max()) >= count:
                wrong = int(ends.min()) if int(ends.min()) < 0 else int(ends.max())
                cure = "number the vertices from 0, and give features of all of them"
                raise DataError(refusal(name, f"vertices 0 .. {count - 1}, the rows of the features", wrong, cure))
        if self.features.dim() != 2:
            raise DataError(refusal("features", "a matrix [N, F]", list(self.features.shape), "give a row per vertex"))
        for start in range(0, count, _CHUNK):
            bad = ~torch.isfinite(self.features[start : start + _CHUNK]).all(1)
            if bad.any():
                vertex = start + int(bad.nonzero()[0])
                cure = "clean the features first"
                raise DataError(refusal("features", "finite", f"NaN or infinity at vertex {vertex}", cure))
        self._check_labels()

    def _check_labels(self) -> None:
        count = len(self.features)
        for name in ("labels", *SPLITS):
            if getattr(self, name).shape != (count,):
                received = list(getattr(self, name).shape)
                raise DataError(refusal(name, f"one for each of {count} vertices", received, "give a vector [N]"))
        if int(self.labels.min()) < -1:
            cure = "number the classes from 0; -1 stands for none"
            raise DataError(refusal("labels", "classes from 0, or -1", int(self.labels.min()), cure))
        for name in SPLITS:
            split = getattr(self, name)
            if not split.any():
                raise DataError(refusal(f"{name} mask", "at least one vertex", 0, "choose some"))
            if (self.labels[split] < 0).any():
                vertex = int((split & (self.labels < 0)).nonzero()[0])
                cure = "leave it out of the mask, or give its label"
                raise DataError(refusal(f"{name} mask", "vertices with a label", f"vertex {vertex}", cure))
        for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
            both = int((getattr(self, one) & getattr(self, other)).sum())
            if both:
                cure = "give each vertex to one of them"
                raise DataError(refusal(f"{one} and {other} mask", "without a vertex in both", both, cure))

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.features)

    def with_options(self, *, undirected: bool, self_loops: bool) -> Graph:
        """Return the graph with its edges in both directions, each once, and with one loop at every vertex."""
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
            return (1 / into[self.dst]).float()
        out = torch.bincount(self.src, minlength=self.num_nodes).double()
        return (into[self.dst] * out[self.src]).rsqrt().float()

    def info(self) -> GraphInfo:
        """Return what a model has to know."""
        digest = hashlib.blake2b(digest_size=16)
        for column in (self.src, self.dst, self.labels, self.train, self.val, self.test):
            values = np.ascontiguousarray(column.numpy())
            digest.update(f"{values.dtype} {values.shape}".encode())
            digest.update(values.data)
        return GraphInfo(
            num_nodes=self.num_nodes,
            num_edges=len(self.src),
            feature_dim=self.features.shape[1],
            num_classes=int(self.labels.max()) + 1,
            fingerprint=digest.hexdigest(),
        )


def with_both_directions(src: Tensor, dst: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the edges and their reverse, each once, int64 [E'] each."""
    edge = torch.unique(torch.cat([src * num_nodes + dst, dst * num_nodes + src]))
    return edge // num_nodes, edge % num_nodes


def with_loops(src: Tensor, dst: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the edges between different vertices and one loop at every vertex, int64 [E'] each."""
    nodes, other = torch.arange(num_nodes), src != dst
    return torch.cat([src[other], nodes]), torch.cat([dst[other], nodes])
