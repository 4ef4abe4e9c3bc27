"""Graphs that change in steps: snapshots, groups of them, and what is trained on a group.

Letters: ``T`` snapshots of a graph of ``N`` vertices; ``n`` vertices of one snapshot, ``F`` features; ``m`` rows of a
group, one for every vertex that it knows of; ``d`` width of an embedding; ``q`` targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.types.graphs import SparseRows
from lightning_tgnn.types.schedule import Pass, Turn
from lightning_tgnn.types.tensor_fields import TensorFields


@dataclass(frozen=True)
class SnapshotInfo:
    """What a model has to know of snapshots before it can be built.

    Attributes:
        num_nodes: N; vertices are ``0 .. N - 1`` in all snapshots.
        num_snapshots: T.
        feature_dim: F.
        num_relations: Kinds of edges; 1 where edges are of one kind.
        num_classes: Classes of the labels of vertices or edges, at least 2; 0 without labels, 1 if labels are real
            numbers.
        fingerprint: Digest of edges, features and labels, to tell one sequence from another.
        class_counts: Training labels of each class; None without classes, or if unknown.
    """

    num_nodes: int
    num_snapshots: int
    feature_dim: int
    num_relations: int
    num_classes: int
    fingerprint: str
    class_counts: tuple[int, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, repr=False)
class Snapshot(TensorFields):
    """One snapshot, as a group has it.

    Layer k reads the rows of the first ``n_(k-1)`` vertices and makes rows of the first ``n_k`` of them; all ``n`` in
    every layer where all vertices are trained at once, fewer and fewer where neighbourhoods are sampled.

    Attributes:
        number: t, counted from 0.
        vertices: int64 [n], for every vertex of the snapshot its row in the group.
        features: float32 [n, F].
        layers: For each layer and each relation the edges, a matrix [n_k, n_(k-1)] with normalised weights. Layers that
            read the same edges have the same object.
    """

    number: int
    vertices: Tensor
    features: Tensor
    layers: tuple[tuple[SparseRows, ...], ...]

    def rows_after(self, layer: int) -> int:
        """Return n_k, how many rows layer ``layer`` (from 0) makes."""
        return len(self.layers[layer][0].starts) - 1

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Snapshot:
        """Return a copy whose tensors are on ``device``, or itself if they are there."""
        if self.vertices.device == torch.device(device):
            return self
        moved: dict[int, SparseRows] = {}
        for edges in (edges for layer in self.layers for edges in layer):
            if id(edges) not in moved:
                moved[id(edges)] = edges.to(device, non_blocking)
        layers = tuple(tuple(moved[id(edges)] for edges in layer) for layer in self.layers)
        return replace(super().to(device, non_blocking), layers=layers)


@dataclass(frozen=True, repr=False)
class Targets(TensorFields):
    """The targets on which the embeddings after a group's last snapshot are trained or scored.

    Attributes:
        rows: int64 [q, c], rows of the group. For links of the next snapshot c = 2 + negatives: source, destination,
            and other destinations; for classes of edges c = 2; for classes or numbers of vertices c = 1.
        labels: [q], int64 classes or float32 numbers; None for links.
        kept: int64 [k, 2], source and destination of links that the next snapshot keeps from the one before, of sources
            that have a new link. They are no targets, but count as no wrong answers either. None if there are none, and
            in training.
    """

    rows: Tensor
    labels: Tensor | None = None
    kept: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, repr=False)
class SnapshotGroup(TensorFields):
    """A snapshot and the ones before it, of which a rank may have a part; the unit of training.

    Attributes:
        number: Number of its last snapshot.
        first: Number of its first snapshot.
        snapshots: The consecutive snapshots that this rank computes, oldest first.
        nodes: int64 [m], the vertex of every row of the group.
        targets: The targets of the embeddings after the last snapshot. Only a rank that ends the group reads them.
        share: Factor of the mean loss over the targets, so that the mean over all ranks is the mean over the groups of
            an update.
    """

    number: int
    first: int
    snapshots: tuple[Snapshot, ...]
    nodes: Tensor
    targets: Targets
    share: float = 1.0

    @property
    def is_first(self) -> bool:
        """Whether this rank begins the group."""
        return self.snapshots[0].number == self.first if self.snapshots else True

    @property
    def is_last(self) -> bool:
        """Whether this rank ends the group, with the head and the loss."""
        return bool(self.snapshots) and self.snapshots[-1].number == self.number

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SnapshotGroup:
        """Return a copy whose tensors are on ``device``."""
        snapshots = tuple(snapshot.to(device, non_blocking) for snapshot in self.snapshots)
        return replace(super().to(device, non_blocking), snapshots=snapshots)


@dataclass(frozen=True, repr=False)
class SnapshotBatch(TensorFields):
    """The groups, or parts of groups, that a rank computes for one update of the weights, in the order of its turn.

    Attributes:
        groups: The groups of this rank; there may be none.
    """

    groups: tuple[SnapshotGroup, ...]

    def __len__(self) -> int:
        return len(self.groups)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SnapshotBatch:
        """Return a copy whose tensors are on ``device``."""
        return SnapshotBatch(tuple(group.to(device, non_blocking) for group in self.groups))


@dataclass(frozen=True)
class GroupPart:
    """The part of a group that a rank computes.

    Attributes:
        group: Number of the group's last snapshot.
        first: Number of its first snapshot.
        snapshots: Numbers of the snapshots that the rank computes; there may be none.
    """

    group: int
    first: int
    snapshots: range

    @property
    def is_last(self) -> bool:
        """Whether the rank ends the group, with the head and the loss."""
        return bool(self.snapshots) and self.snapshots[-1] == self.group


@dataclass(frozen=True)
class KeptSizes:
    """The memory that snapshots keep for the backward pass: in bytes, or as shares of a process's memory for groups.

    The last snapshot of a group keeps what the head reads, and nothing that is carried on.

    Attributes:
        any: For each snapshot, however small.
        vertex: For each vertex of a snapshot.
        last_any: For the last snapshot of a group, however small.
        last_vertex: For each vertex of that snapshot.
        last_target: For each target that is scored after it.
        most_vertices: The most vertices of a snapshot in a batch, if groups are trained in batches of vertices.
    """

    any: float
    vertex: float
    last_any: float
    last_vertex: float
    last_target: float
    most_vertices: float = float("inf")

    def of(self, vertices: np.ndarray, targets: np.ndarray | None = None) -> np.ndarray:
        """Return the memory that snapshots keep, float64 [l].

        Args:
            vertices: Vertices of each snapshot, [l].
            targets: Targets that are scored after each, as the last snapshot of a group; None for other snapshots.
        """
        rows = np.minimum(vertices.astype(np.float64), self.most_vertices)
        if targets is None:
            return self.any + self.vertex * rows
        return self.last_any + self.last_vertex * rows + self.last_target * targets

    def times(self, factor: float) -> KeptSizes:
        """Return the sizes in another unit."""
        return replace(self, **{one.name: factor * getattr(self, one.name) for one in fields(self)[:-1]})


@dataclass(frozen=True)
class SnapshotTurn(Turn):
    """What a rank does for one update: parts of groups. ``events`` and ``of`` are places in the pass.

    Attributes:
        parts: In the order in which they are computed. The ranks of a pipeline have parts of the same groups.
        groups: How many groups the update has, over all ranks.
    """

    parts: tuple[GroupPart, ...] = ()
    groups: int = 0


@dataclass(frozen=True)
class SnapshotPass(Pass):
    """One pass over groups of snapshots. ``num_events`` counts groups, ``batch_size`` is groups per device and turn.

    Attributes:
        order: Numbers of the groups (of their last snapshots) in the order in which they are played.
        group_size: Snapshots of a group; those at the start of the sequence have fewer.
        forward: For each group, in that order, the predicted seconds [l_i] of its snapshots; None if unknown.
        backward: The same for the backward pass.
        kept: For each group, the memory that its snapshots keep for the backward pass, as shares [l_i] of a process's
            memory for groups; None if unknown.
    """

    order: tuple[int, ...] = ()
    group_size: int = 1
    forward: tuple[np.ndarray, ...] | None = None
    backward: tuple[np.ndarray, ...] | None = None
    kept: tuple[np.ndarray, ...] | None = None

    def snapshots_of(self, group: int) -> range:
        """Return the numbers of a group's snapshots."""
        return range(max(group + 1 - self.group_size, 0), group + 1)


def whole_groups(groups: Sequence[int], over: SnapshotPass) -> tuple[GroupPart, ...]:
    """Return groups that a rank computes alone."""
    spans = (over.snapshots_of(group) for group in groups)
    return tuple(GroupPart(span[-1], span[0], span) for span in spans)


def groups_in_turn(over: SnapshotPass, rank: int, ranks: int) -> Sequence[SnapshotTurn]:
    """Return turns in which ranks have whole groups, each the next one in order."""
    size = over.batch_size * ranks
    found = []
    for start in range(0, over.num_events, size):
        of = range(start, min(start + size, over.num_events))
        own = of[rank::ranks]
        parts = whole_groups([over.order[place] for place in own], over)
        found.append(SnapshotTurn(own, of, over.epoch, ranks, parts=parts, groups=len(of)))
    return found
