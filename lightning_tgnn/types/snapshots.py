"""Graphs that change in steps: snapshots, groups of them, and what is trained on a group.

Letters: ``T`` snapshots of a graph of ``N`` vertices; ``n`` vertices of one snapshot, ``F`` features; ``m`` rows of a
group, one for every vertex that it knows of; ``d`` width of an embedding; ``q`` targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.types.graphs import SparseRows
from lightning_tgnn.types.schedule import Pass, Turn
from lightning_tgnn.types.stages import Stages
from lightning_tgnn.types.tensor_fields import TensorFields

Carried = tuple[Tensor, ...]
"""What a model carries from snapshot to snapshot: hidden state of rows [m, d] of every layer, or evolved weights."""


@dataclass(frozen=True)
class SnapshotInfo:
    """What a model has to know of snapshots before it can be built.

    Attributes:
        num_nodes: N; vertices are ``0 .. N - 1`` in all snapshots.
        num_snapshots: T.
        feature_dim: F.
        num_relations: Kinds of edges; 1 where edges are of one kind.
        num_classes: Of the labels of vertices or edges; 0 where there are none, 1 where they are real numbers.
        fingerprint: Digest of edges, features and labels, to tell one sequence from another.
    """

    num_nodes: int
    num_snapshots: int
    feature_dim: int
    num_relations: int
    num_classes: int
    fingerprint: str


@dataclass(frozen=True, repr=False)
class Snapshot(TensorFields):
    """One snapshot, as a group has it.

    Layer k reads the rows of the first ``n_(k-1)`` vertices and makes rows of the first ``n_k`` of them; all ``n`` in
    every layer where all vertices are trained at once, fewer and fewer where neighbourhoods are sampled.

    Attributes:
        number: t, from 0.
        vertices: int64 [n], the row of the group of every vertex that is there.
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
    """What the embeddings after a group's last snapshot are trained or scored on.

    Attributes:
        rows: int64 [q, c], rows of the group. For links of the next snapshot c = 2 + negatives: source, destination,
            and other destinations; for classes of edges c = 2; for classes or numbers of vertices c = 1.
        labels: [q], int64 classes or float32 numbers; None for links.
    """

    rows: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, repr=False)
class SnapshotGroup(TensorFields):
    """A snapshot and the ones before it, of which a rank may have a part; the unit of training.

    Attributes:
        number: Of its last snapshot.
        first: Number of its first snapshot.
        snapshots: The consecutive ones that this rank computes, oldest first.
        nodes: int64 [m], the vertex of every row of the group.
        targets: What is trained on the embeddings after the last snapshot.
        share: What the mean loss over the targets is multiplied by, so that the mean over all ranks is the mean over
            the groups of an update.
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
        """Whether this rank ends the group, with the loss."""
        return bool(self.snapshots) and self.snapshots[-1].number == self.number

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SnapshotGroup:
        """Return a copy whose tensors are on ``device``."""
        snapshots = tuple(snapshot.to(device, non_blocking) for snapshot in self.snapshots)
        return replace(super().to(device, non_blocking), snapshots=snapshots)


@dataclass(frozen=True, repr=False)
class SnapshotBatch(TensorFields):
    """The groups, or parts of groups, that a rank computes for one update of the weights, in the order of its turn.

    Attributes:
        groups: Of this rank; there may be none.
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
        snapshots: Numbers of those that the rank computes; they may be none.
    """

    group: int
    first: int
    snapshots: range


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
        forward: Of each group, in that order, the predicted seconds [l_i] of its snapshots; None where nobody knows.
        backward: The same of the backward pass.
    """

    order: tuple[int, ...] = ()
    group_size: int = 1
    forward: tuple[np.ndarray, ...] | None = None
    backward: tuple[np.ndarray, ...] | None = None

    def snapshots_of(self, group: int) -> range:
        """Return the numbers of a group's snapshots."""
        return range(max(group + 1 - self.group_size, 0), group + 1)


class PredictedLoads(Protocol):
    """Says how long snapshots take."""

    def forward(self, vertices: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Return seconds [l] of the forward pass of snapshots with so many vertices and edges, [l] each."""
        ...

    def backward(self, vertices: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Return seconds [l] of the backward pass."""
        ...


@runtime_checkable
class SnapshotLoader(Protocol):
    """A loader of groups of snapshots that a schedule deals out to ranks.

    Attributes:
        loads: How long snapshots take, asked at the start of each pass; None where nobody knows.
    """

    loads: PredictedLoads | None

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Vertices and edges of every snapshot, int64 [T] each."""
        ...


class Operators(Protocol):
    """Runs the two kinds of operators of a model's layers: products with the graph, and those with weights."""

    def weights_first(self, layer: int, in_dim: int, out_dim: int) -> bool:
        """Return whether a layer forms ``H (X W)`` and not ``(H X) W``, which is the same.

        Args:
            layer: From 0.
            in_dim: Width of X.
            out_dim: Width of X W.
        """
        ...

    def aggregate(self, snapshot: Snapshot, layer: int, rows: Tensor, relation: int = 0) -> Tensor:
        """Return the product of a layer's edges with ``rows`` [n_(k-1), d]: float32 [n_k, d]."""
        ...

    def timed(self, kind: str, layer: int) -> AbstractContextManager[object]:
        """Return a context that says that an operator of a kind, ``"graph"``, ``"nn"`` or ``"rnn"``, is running."""
        ...


class SnapshotModel(Protocol):
    """A model of graph convolutions and recurrent cells that steps from snapshot to snapshot."""

    def start(self, rows: int) -> Carried:
        """Return what is carried into the first snapshot of a group with so many rows."""
        ...

    def step(
        self, snapshot: Snapshot, carried: Carried, operators: Operators, *, last: bool
    ) -> tuple[Carried, Tensor | None]:
        """Return what is carried on, and the embeddings [m, d] of all rows of the group if it is its last snapshot.

        Rows whose vertex is not there keep their state.
        """
        ...


GroupOrder = Callable[["SnapshotTask", SnapshotBatch], Tensor]
"""Runs the parts of groups of a batch and returns the loss; what is trained has its gradient from it."""


@runtime_checkable
class SnapshotTask(Protocol):
    """What a strategy asks of a task on snapshots."""

    stages: Stages
    group_order: GroupOrder
    operators: Operators

    @property
    def default_group_order(self) -> GroupOrder:
        """All groups of a batch in one process, one after the other."""
        ...

    def start(self, group: SnapshotGroup) -> Carried:
        """Return what is carried into a group's first snapshot."""
        ...

    def step(self, snapshot: Snapshot, carried: Carried, *, last: bool) -> tuple[Carried, Tensor | None]:
        """Return what is carried on, and the embeddings if it is the last snapshot of its group."""
        ...

    def loss(self, embeddings: Tensor, group: SnapshotGroup) -> Tensor:
        """Return the mean loss over a group's targets; 0, with a gradient of 0, if there are none."""
        ...


def whole_groups(groups: Sequence[int], over: SnapshotPass) -> tuple[GroupPart, ...]:
    """Return groups that a rank computes alone."""
    spans = (over.snapshots_of(group) for group in groups)
    return tuple(GroupPart(span[-1], span[0], span) for span in spans)
