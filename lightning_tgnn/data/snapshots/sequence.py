"""A sequence of snapshots, checked as it is read: ranges of one list of edges, features and labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.checks import DataError, InvalidArgumentError, check_int, check_share
from lightning_tgnn.data.graphs.checks import check_ends, check_pairs, check_type
from lightning_tgnn.files.npy_file import pieces

_FEW_KINDS, _NUMBERS_PER_KIND = 64, 8


def check_ranges(begins: Tensor, ends: Tensor, num_edges: int) -> None:
    """Refuse ranges of edges that are none.

    Args:
        begins: Where the edges of each snapshot begin, int64 [T].
        ends: Where they end, int64 [T].
        num_edges: E.

    Raises:
        DataError: No range is given, their shapes differ, or a range is not within the edges.
    """
    if begins.dim() != 1 or begins.shape != ends.shape or not len(begins):
        received = f"{list(begins.shape)} and {list(ends.shape)}"
        raise DataError("begins and ends", "one for each snapshot, [T]", received, "give at least one snapshot")
    wrong = (begins < 0) | (ends < begins) | (ends > num_edges)
    if wrong.any():
        number = int(wrong.nonzero()[0])
        received = f"{int(begins[number])} .. {int(ends[number])} in snapshot {number}"
        raise DataError("begins and ends", f"ranges within the {num_edges:,} edges", received, "count the edges from 0")


def check_edge_columns(
    src: Tensor,
    dst: Tensor,
    num_nodes: int,
    weights: Tensor | None,
    relations: Tensor | None,
    labels: Tensor | None,
) -> None:
    """Refuse columns of edges that do not fit together; arguments as in `SnapshotSequence`.

    Raises:
        DataError: The columns do not fit together, or one holds something that must not be trained on.
    """
    check_pairs(src, dst)
    if len(src):
        check_ends("src", src, num_nodes)
        check_ends("dst", dst, num_nodes)
    named = {"weights": weights, "relations": relations, "labels of edges": labels}
    for name, column in named.items():
        if column is not None and column.shape != src.shape:
            raise DataError(name, f"one for each of the {len(src):,} edges", list(column.shape), "give a column [E]")
    if weights is not None:
        check_type("weights", weights, (torch.float32,), "convert them")
        _check_finite("weights", weights, "edge")
    if relations is not None:
        check_type("relations", relations, (torch.int64,), "number the kinds of edges from 0")
        if len(relations) and int(relations.min()) < 0:
            cure = "number the kinds of edges from 0"
            raise DataError("relations", "kinds of edges from 0", int(relations.min()), cure)
        _check_gaps(relations)
    if labels is not None:
        check_label_column("labels of edges", labels)


def _check_gaps(relations: Tensor) -> None:
    """Refuse kinds of edges of which most numbers have none: each number is a matrix of every snapshot."""
    highest = int(relations.max()) if len(relations) else 0
    if highest < _FEW_KINDS:
        return
    kinds = len(torch.cat([relations[piece].unique() for piece in pieces(len(relations))]).unique())
    if highest >= _NUMBERS_PER_KIND * kinds:
        received = f"{kinds} kinds up to {highest}"
        raise DataError("relations", "kinds of edges", received, "number the kinds of edges from 0 without gaps")


def check_label_column(name: str, labels: Tensor) -> None:
    """Refuse labels that are neither int64 classes from -1 nor finite float32 numbers.

    Raises:
        DataError: Labels have another type, a class is below -1, or a number is not finite.
    """
    check_type(name, labels, (torch.int64, torch.float32), "give classes (int64) or numbers (float32)")
    if labels.dtype == torch.float32:
        _check_finite(name, labels, "row")
    elif labels.numel() and int(labels.min()) < -1:
        cure = "number the classes from 0; -1 stands for none"
        raise DataError(name, "classes from 0, or -1", int(labels.min()), cure)


def check_snapshot_times(times: Tensor, num_snapshots: int) -> None:
    """Refuse times of snapshots that do not ascend.

    Raises:
        DataError: Times do not ascend, are not finite, or are not one for each snapshot.
    """
    if times.shape != (num_snapshots,):
        raise DataError("times", f"one for each of {num_snapshots} snapshots", list(times.shape), "give a vector [T]")
    _check_finite("times", times, "snapshot")
    early = (times[1:] <= times[:-1]).nonzero()
    if len(early):
        number = int(early[0]) + 1
        received = f"{float(times[number])} for snapshot {number} after {float(times[number - 1])}"
        raise DataError("times", "ascending", received, "sort the snapshots by time, one for each time")


def check_vertex_features(features: Tensor | Sequence[Tensor], num_snapshots: int, num_nodes: int) -> None:
    """Refuse features that are not float32 [N, F], the same F in every snapshot, or not finite.

    Raises:
        DataError: Features have another type or shape, or are not finite.
    """
    if isinstance(features, Tensor):
        _check_matrix("features", features, num_nodes)
        return
    if len(features) != num_snapshots:
        requirement = f"a matrix for each of {num_snapshots} snapshots"
        raise DataError("features", requirement, len(features), "give one [N, F] each, or one for all")
    for number, matrix in enumerate(features):
        _check_matrix(f"features of snapshot {number}", matrix, num_nodes, matrix_width(features[0]))


def check_vertex_labels(labels: Tensor, num_snapshots: int, num_nodes: int) -> None:
    """Refuse labels that are not [N] or [T, N], or no labels.

    Raises:
        DataError: Labels have another shape or type, a class is below -1, or a number is not finite.
    """
    if labels.shape not in ((num_nodes,), (num_snapshots, num_nodes)):
        requirement = f"[{num_nodes}], or [{num_snapshots}, {num_nodes}] where they change"
        raise DataError("labels of vertices", requirement, list(labels.shape), "give a label for every vertex")
    check_label_column("labels of vertices", labels)


def matrix_width(matrix: Tensor) -> int:
    """Return the width of a matrix; 0 of what is none."""
    return matrix.shape[1] if matrix.dim() == 2 else 0


def _check_matrix(name: str, matrix: Tensor, num_nodes: int, width: int | None = None) -> None:
    wide = matrix_width(matrix)
    if matrix.dim() != 2 or len(matrix) != num_nodes or not wide or width not in (None, wide):
        requirement = f"a matrix [{num_nodes}, {width or 'F'}]"
        raise DataError(name, requirement, list(matrix.shape), "give a row for every vertex of the sequence")
    check_type(name, matrix, (torch.float32,), "convert them")
    _check_finite(name, matrix, "vertex")


def _check_finite(name: str, column: Tensor, rows: str) -> None:
    for piece in pieces(len(column), column[:1].numel()):
        values = column[piece]
        bad = ~torch.isfinite(values.reshape(len(values), -1)).all(1)
        if bad.any():
            received = f"NaN or infinity at {rows} {piece.start + int(bad.nonzero()[0])}"
            raise DataError(name, "finite", received, "clean the data first")


VertexFeatures: TypeAlias = "Tensor | Sequence[Tensor]"
"""float32 [N, F] of all snapshots, or one such matrix for each of them."""


class Edges(NamedTuple):
    """The edges of a snapshot; parallel ones stand side by side.

    Attributes:
        src: int64 [e].
        dst: int64 [e].
        weights: float32 [e], or None where all are 1.
        relations: int64 [e], or None where all are of one kind.
        labels: [e], int64 classes or float32 numbers, or None.
    """

    src: Tensor
    dst: Tensor
    weights: Tensor | None
    relations: Tensor | None
    labels: Tensor | None


@dataclass(frozen=True, repr=False, eq=False)
class SnapshotSequence:
    """T snapshots of a graph of N vertices: snapshot t has the edges ``begins[t] .. ends[t] - 1`` of the columns.

    Snapshots that overlap share their edges. Columns are in memory or memory-mapped, and only read.

    Attributes:
        begins: int64 [T].
        ends: int64 [T].
        src: int64 [E].
        dst: int64 [E].
        num_nodes: N.
        weights: float32 [E]; None where all edges weigh 1.
        relations: int64 [E], the kind of each edge from 0; None where all are of one kind.
        edge_labels: [E], int64 classes or float32 numbers, or None.
        features: float32 [N, F], or one such matrix for each snapshot, or None.
        vertex_labels: [N] or [T, N], int64 classes (-1 for none) or float32 numbers, or None.
        times: float64 [T], ascending, when each snapshot is taken; None where that is not known. With times, edges that
            a snapshot shares with the one before are no new targets, see `first_new`.

    Raises:
        DataError: A column is of another shape or type, or holds something that must not be trained on.
    """

    begins: Tensor
    ends: Tensor
    src: Tensor
    dst: Tensor
    num_nodes: int
    weights: Tensor | None = None
    relations: Tensor | None = None
    edge_labels: Tensor | None = None
    features: VertexFeatures | None = None
    vertex_labels: Tensor | None = None
    times: Tensor | None = None

    def __post_init__(self) -> None:
        check_edge_columns(self.src, self.dst, self.num_nodes, self.weights, self.relations, self.edge_labels)
        check_ranges(self.begins, self.ends, len(self.src))
        if self.times is not None:
            check_snapshot_times(self.times, len(self))
        if self.features is not None:
            check_vertex_features(self.features, len(self), self.num_nodes)
        if self.vertex_labels is not None:
            check_vertex_labels(self.vertex_labels, len(self), self.num_nodes)

    @classmethod
    def by_deletion(
        cls,
        src: Tensor,
        dst: Tensor,
        edge_counts: Sequence[int],
        *,
        num_nodes: int,
        turnover: float = 0.1,
        seed: int = 0,
        features: VertexFeatures | None = None,
        vertex_labels: Tensor | None = None,
    ) -> SnapshotSequence:
        """Return snapshots of a static graph from each of which random edges are deleted.

        Edges stand in a random ring. A snapshot has the edges of an arc, and the next arc begins a little later.

        Args:
            src: int64 [E].
            dst: int64 [E].
            edge_counts: How many edges each snapshot keeps; each at most E.
            num_nodes: N.
            turnover: Share of a snapshot's edges that are deleted in the next, in [0, 1].
            seed: Of the order of the edges.
            features: See the class.
            vertex_labels: See the class.

        Raises:
            InvalidArgumentError: A number of edges cannot be kept.
            DataError: The edges, features or labels cannot be trained on, as for the class.
        """
        check_share("turnover", turnover, cure="give a share, for example 0.1")
        if not isinstance(edge_counts, Sequence) or isinstance(edge_counts, str) or not edge_counts:
            cure = "say how many edges each snapshot keeps, for example [1000, 500, 1000]"
            raise InvalidArgumentError("edge_counts", "a number for each snapshot", edge_counts, cure)
        for number, count in enumerate(edge_counts):
            cure = f"the graph has {len(src):,} edges"
            if check_int(f"edge_counts[{number}]", count, minimum=0, cure=cure) > len(src):
                raise InvalidArgumentError(f"edge_counts[{number}]", f"at most {len(src)}", count, cure)
        counts = torch.tensor(list(edge_counts), dtype=torch.int64)
        gone = (counts * turnover).round().long()
        begins = gone.cumsum(0) - gone
        ring = torch.randperm(len(src), generator=torch.Generator().manual_seed(seed))
        length = int((begins + counts).max()) if len(counts) else 0
        kept = ring[torch.arange(length) % max(len(src), 1)]
        edges = src[kept].long(), dst[kept].long()
        return cls(begins, begins + counts, *edges, num_nodes, features=features, vertex_labels=vertex_labels)

    def __len__(self) -> int:
        return len(self.begins)

    def __repr__(self) -> str:
        edges = self.ends - self.begins
        sizes = f"{int(edges.min()):,} to {int(edges.max()):,} edges"
        return f"SnapshotSequence({len(self)} snapshots of {self.num_nodes:,} vertices, {sizes})"

    def edges(self, snapshot: int) -> Edges:
        """Return the edges of a snapshot."""
        own = slice(int(self.begins[snapshot]), int(self.ends[snapshot]))
        columns = self.weights, self.relations, self.edge_labels
        return Edges(self.src[own], self.dst[own], *(None if column is None else column[own] for column in columns))

    def first_new(self, snapshot: int) -> int:
        """Return the place, among a snapshot's edges, of the first that the snapshot before does not have.

        Where snapshots have no times, as in a static graph, all edges of each are new, and so they are where a
        snapshot begins before the one before.
        """
        if self.times is None or snapshot == 0 or self.begins[snapshot] < self.begins[snapshot - 1]:
            return 0
        begin, end = int(self.begins[snapshot]), int(self.ends[snapshot])
        return min(max(int(self.ends[snapshot - 1]) - begin, 0), end - begin)

    def features_of(self, snapshot: int) -> Tensor | None:
        """Return the features of all vertices in a snapshot, float32 [N, F]; None where there are none."""
        return self.features if self.features is None or isinstance(self.features, Tensor) else self.features[snapshot]

    def labels_of(self, snapshot: int) -> Tensor:
        """Return the labels of all vertices in a snapshot, [N]."""
        assert self.vertex_labels is not None
        return self.vertex_labels if self.vertex_labels.dim() == 1 else self.vertex_labels[snapshot]

    @property
    def num_relations(self) -> int:
        """Kinds of edges."""
        return 1 if self.relations is None or not len(self.relations) else int(self.relations.max()) + 1

    @property
    def notice(self) -> str | None:
        """A notice about edges that are in no snapshot; None if every edge is in one."""
        change = torch.zeros(len(self.src) + 1, dtype=torch.int64)
        change.index_add_(0, self.begins, torch.ones_like(self.begins))
        change.index_add_(0, self.ends, -torch.ones_like(self.ends))
        lost = int((change.cumsum(0)[:-1] == 0).sum())
        return f"{lost:,} of {len(self.src):,} edges are in no snapshot" if lost else None

    @property
    def holds_reverses(self) -> bool:
        """Whether every edge is there as often in the other direction, and not all are loops, in three snapshots.

        These are the first, the middle and the last one that have edges.
        """
        filled = (self.ends > self.begins).nonzero().squeeze(1).tolist()
        looked_at = [self.edges(filled[place]) for place in {0, len(filled) // 2, len(filled) - 1}] if filled else []
        return bool(looked_at) and all(_are_both_ways(edges) for edges in looked_at)

    @cached_property
    def first_seen(self) -> Tensor:
        """The first snapshot in which each vertex has an edge, int64 [N]; T where it has none."""
        first = torch.full((self.num_nodes,), len(self))
        for snapshot in reversed(range(len(self))):
            edges = self.edges(snapshot)
            first[edges.src] = snapshot
            first[edges.dst] = snapshot
        return first

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all that it holds, to tell one sequence from another."""
        digest = hashlib.blake2b(str(self.num_nodes).encode(), digest_size=16)
        features = self.features if isinstance(self.features, Tensor | None) else None
        each = () if isinstance(self.features, Tensor | None) else self.features
        names = ("begins", "ends", "src", "dst", "weights", "relations", "edge_labels", "vertex_labels")
        columns = {name: getattr(self, name) for name in names} | {"features": features}
        columns |= {f"features of {number}": matrix for number, matrix in enumerate(each)}
        for name, column in columns.items():
            if column is not None:
                digest.update(f"{name} {column.dtype} {tuple(column.shape)}".encode())
                for piece in pieces(len(column), column[:1].numel()):
                    digest.update(np.ascontiguousarray(column[piece].numpy()).data)
        return digest.hexdigest()


def _are_both_ways(edges: Edges) -> bool:
    sums = [counter_hash(0, *ends).sum() for ends in ((edges.src, edges.dst), (edges.dst, edges.src))]
    return bool(sums[0] == sums[1]) and bool((edges.src != edges.dst).any())
