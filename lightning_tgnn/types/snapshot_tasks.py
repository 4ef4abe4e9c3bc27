"""What loaders, models and tasks on snapshots are to what trains them.

Letters are as in `lightning_tgnn.types.snapshots`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from lightning_tgnn.types.data_modules import KnownData
from lightning_tgnn.types.schedule import ScheduledLoader
from lightning_tgnn.types.snapshots import KeptSizes, Snapshot, SnapshotBatch, SnapshotGroup
from lightning_tgnn.types.stages import Stages

Carried = tuple[Tensor, ...]
"""What a model carries from snapshot to snapshot: hidden state of rows [m, d] of every layer, or evolved weights."""


class PredictedLoads(Protocol):
    """Says how long snapshots take."""

    def forward(self, vertices: np.ndarray, edges: np.ndarray, targets: np.ndarray | None = None) -> np.ndarray:
        """Return seconds [l] of the forward pass of snapshots.

        Args:
            vertices: Of each, [l].
            edges: Likewise.
            targets: What is scored behind each as the last snapshot of a group, with the head and the loss; None for
                snapshots that are not the last.
        """
        ...

    def backward(self, vertices: np.ndarray, edges: np.ndarray, targets: np.ndarray | None = None) -> np.ndarray:
        """Return seconds [l] of the backward pass; see `forward`."""
        ...


class SnapshotLoader(ScheduledLoader):
    """A loader of groups of snapshots that a schedule deals out to ranks.

    Attributes:
        loads: How long snapshots take, asked at the start of each pass; None if unknown.
        kept: The memory that snapshots keep for the backward pass; None if unknown.
    """

    loads: PredictedLoads | None
    kept: KeptSizes | None

    @property
    @abstractmethod
    def is_training(self) -> bool:
        """Whether its groups are trained."""

    @abstractmethod
    def largest_group(self) -> SnapshotBatch:
        """Return the group that has most vertices, whole, or a batch of it: it is measured before any is trained."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Vertices and edges of every snapshot, int64 [T] each."""

    @property
    @abstractmethod
    def groups(self) -> Sequence[int]:
        """Numbers of the last snapshots of its groups, ascending."""

    @property
    @abstractmethod
    def in_batches(self) -> bool:
        """Whether groups come in batches of their vertices, also where one happens to have all of them."""

    @property
    @abstractmethod
    def scored(self) -> np.ndarray:
        """How many targets a batch of the group has that each snapshot ends, the mean over its batches, float64 [T]."""

    @property
    @abstractmethod
    def group_size(self) -> int:
        """Snapshots of a group; fewer at the start of the sequence."""


class EdgeSequence(Protocol):
    """The edges of all snapshots."""

    @property
    def num_nodes(self) -> int:
        """N."""
        ...

    @property
    def src(self) -> Tensor:
        """int64 [E]."""
        ...

    @property
    def dst(self) -> Tensor:
        """int64 [E]."""
        ...


class SnapshotData(KnownData):
    """A DataModule of snapshots."""

    @property
    def sequence(self) -> EdgeSequence:
        """What they are made of."""
        raise NotImplementedError


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

    def keeps(self, layer: int) -> bool:
        """Return whether products of a layer's edges and features are kept, so that they cost nothing the next time."""
        ...

    def everyone(self, rows: Tensor) -> Tensor:
        """Return the rows [n', d] of all ranks that share a snapshot, given those that this one has of it, [n, d]."""
        ...

    def aggregate(self, snapshot: Snapshot, layer: int, rows: Tensor, relation: int = 0) -> Tensor:
        """Return the product of a layer's edges with ``rows`` [n_(k-1), d]: float32 [n_k, d]."""
        ...

    def timed(self, kind: str, layer: int) -> AbstractContextManager[object]:
        """Return a context that says that an operator of a kind, ``"graph"``, ``"nn"`` or ``"rnn"``, is running."""
        ...


class SnapshotModel(Protocol):
    """A model of graph convolutions and recurrent cells that steps from snapshot to snapshot.

    Attributes:
        embedding_dim: d.
    """

    embedding_dim: int

    def start(self, rows: int) -> Carried:
        """Return what is carried into the first snapshot of a group with so many rows."""
        ...

    def step(
        self, snapshot: Snapshot, carried: Carried, operators: Operators, *, last: bool
    ) -> tuple[Carried, Tensor | None]:
        """Return what is carried on, and the embeddings [m, d] of all rows of the group if it is its last snapshot.

        They are as many as `start` was called with, the rows of this rank where vertices are cut over ranks.
        Rows whose vertex is not there keep their state.
        """
        ...


@runtime_checkable
class ReadsEdges(Protocol):
    """A module that reads the edges of a snapshot by itself, not by `Operators.aggregate`.

    Attributes:
        reads_edges: Whether it does.
    """

    reads_edges: bool


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
        """Return the mean loss over a group's targets; 0, with a gradient of 0, if there are none.

        It is asked for made-up groups as well, to tell what it keeps for the backward pass, and so changes nothing.
        """
        ...
