"""Snapshots with all their vertices and edges, each made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import first_positions
from lightning_tgnn.data.snapshots.adjacency import Adjacency
from lightning_tgnn.data.snapshots.sequence import Edges, SnapshotSequence
from lightning_tgnn.files.memory import check_fits
from lightning_tgnn.types import Snapshot, Standardization

PRESENT = ("seen", "active", "all")
_ENTRY, _VERTEX = 28, 24  # bytes of an entry of a `SparseRows`, and of a row of it with its number
DEGREES = ("degree", "one_hot_degree")


@dataclass(frozen=True)
class SnapshotForm:
    """What is made of a sequence.

    Attributes:
        adjacency: Matrices of the edges.
        present: Which vertices a snapshot has: ``"seen"`` those with an edge in it or before, ``"active"`` those with
            an edge in it, ``"all"`` all N.
        num_layers: Layers of the model, which all read the same edges.
        degrees: What features are made of the edges into and out of a vertex in the snapshot: ``"degree"`` is
            ``log(1 + in-degree)`` and ``log(1 + out-degree)``; ``"one_hot_degree"`` marks both degrees (Pareja et al.,
            "EvolveGCN: Evolving graph convolutional networks for dynamic graphs", AAAI 2020). None takes the
            sequence's features.
        standardization: What is done to the features of the sequence; None leaves them as they are.
    """

    adjacency: Adjacency
    present: str
    num_layers: int
    degrees: str | None = None
    standardization: Standardization | None = None


class WholeSnapshots(Sequence[Snapshot]):
    """The snapshots of a sequence, made when they are asked for and then kept; any thread may ask.

    Args:
        sequence: What was read.
        form: What is made of it.

    Attributes:
        nodes: All vertices, int64 [N], the rows of every group: one tensor, by which they are known to be all.
    """

    def __init__(self, sequence: SnapshotSequence, form: SnapshotForm) -> None:
        self.sequence, self.form = sequence, form
        self.nodes = torch.arange(sequence.num_nodes)
        self._made: dict[int, Snapshot] = {}
        self._links: dict[int, Tensor] = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: it makes its snapshots itself when it is asked for them."""
        return {**vars(self), "_made": {}, "_links": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    def __len__(self) -> int:
        return len(self.sequence)

    @overload
    def __getitem__(self, index: int) -> Snapshot: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Snapshot]: ...

    def __getitem__(self, index: int | slice) -> Snapshot | Sequence[Snapshot]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        with self._lock, torch.inference_mode(False):  # an evaluation may be the first to ask, and training the next
            if number not in self._made:
                self._made[number] = self.make(number)
            return self._made[number]

    @cached_property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Vertices and entries of the matrices of every snapshot, int64 [T] each."""
        vertices = [len(snapshot.vertices) for snapshot in self]
        edges = [sum(len(matrix.columns) for matrix in snapshot.layers[0]) for snapshot in self]
        return np.array(vertices), np.array(edges)

    def vertices_of(self, number: int) -> Tensor:
        """Return the vertices that a snapshot has, int64 [n], ascending."""
        if self.form.present == "all":
            return self.nodes
        if self.form.present == "seen":
            return (self.sequence.first_seen <= number).nonzero().squeeze(1)
        edges = self.sequence.edges(number)
        return torch.cat([edges.src, edges.dst]).unique()

    def links_of(self, number: int) -> Tensor:
        """Return the places of a snapshot's new edges without those parallel to an earlier one, int64 [q], ascending.

        They are counted from the snapshot's first edge. Which edges are new says `SnapshotSequence.first_new`.
        """
        if number not in self._links:
            edges, first = self.sequence.edges(number), self.sequence.first_new(number)
            ends = edges.src[first:] * self.sequence.num_nodes + edges.dst[first:]
            self._links[number] = (first_positions(ends) + first).int()
        return self._links[number].long()

    def check_memory(self) -> None:
        """Refuse snapshots that memory does not hold all at once, before they are made.

        Only the one with the most edges is made, from which the entries of the others follow roughly.

        Raises:
            DataError: The snapshots take more memory than is free.
        """
        edges = self.sequence.ends - self.sequence.begins
        entries = sum(len(matrix.columns) for matrix in self[int(edges.argmax())].layers[0])
        own = torch.ones(len(self), dtype=torch.bool)
        own[1:] = (self.sequence.begins.diff() != 0) | (self.sequence.ends.diff() != 0)
        total = int(edges[own].sum() * entries / max(int(edges.max()), 1))
        if self.form.present == "seen":
            vertices = int(torch.bincount(self.sequence.first_seen, minlength=len(self))[: len(self)].cumsum(0).sum())
        else:
            vertices = int((2 * edges).clamp(max=self.sequence.num_nodes).sum())
        width = self.feature_dim if self.form.degrees is not None or self.form.present == "seen" else 0
        needed = total * _ENTRY + vertices * (_VERTEX + 4 * width)
        what = f"{len(self):,} snapshots with about {total:,} entries of their matrices"
        check_fits("source", what, needed, cure="give folder=..., from which they are mapped, or fewer snapshots")

    def make(self, number: int) -> Snapshot:
        """Return a snapshot that is not kept."""
        return self.made_after(self._made.get(number - 1), number)

    def made_after(self, before: Snapshot | None, number: int) -> Snapshot:
        """Return a snapshot that shares the matrices of the one before it if the edges are the same.

        Args:
            before: Number ``number - 1``; None where it is not at hand.
            number: Of the snapshot.
        """
        vertices, edges = self.vertices_of(number), self.sequence.edges(number)
        if before is not None and self._same_edges(number) and torch.equal(before.vertices, vertices):
            matrices = before.layers[0]  # as of a graph that does not change
        else:
            matrices = self.form.adjacency.matrices(_between(edges, vertices, self.sequence.num_nodes), len(vertices))
        features = self._features(number, vertices, edges)
        return Snapshot(number, vertices, features, (matrices,) * self.form.num_layers)

    def _same_edges(self, number: int) -> bool:
        bounds = self.sequence.begins, self.sequence.ends
        return all(bool(bound[number] == bound[number - 1]) for bound in bounds)

    def _features(self, number: int, vertices: Tensor, edges: Edges) -> Tensor:
        if self.form.degrees is not None:
            degrees = torch.stack(_degrees(edges, self.sequence.num_nodes), 1)[vertices]
            if self.form.degrees == "degree":
                return degrees.float().log1p()
            widths = self._degree_widths
            marked = torch.zeros(len(vertices), sum(widths))
            return marked.scatter_(1, degrees + torch.tensor([0, widths[0]]), 1.0)
        features = self.sequence.features_of(number)
        assert features is not None
        features = features if len(vertices) == len(features) else features[vertices]
        return features if self.form.standardization is None else self.form.standardization(features)

    @property
    def feature_dim(self) -> int:
        """F."""
        if self.form.degrees is not None:
            return 2 if self.form.degrees == "degree" else sum(self._degree_widths)
        features = self.sequence.features_of(0)
        assert features is not None
        return features.shape[1]

    @cached_property
    def _degree_widths(self) -> list[int]:
        """How many values in-degree and out-degree can have."""
        highest = torch.zeros(2, dtype=torch.int64)
        for number in range(len(self)):
            degrees = _degrees(self.sequence.edges(number), self.sequence.num_nodes)
            highest = torch.maximum(highest, torch.stack([counts.max() for counts in degrees]))
        return (highest + 1).tolist()


def _degrees(edges: Edges, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return how many edges go into and out of every vertex, int64 [N] each."""
    return torch.bincount(edges.dst, minlength=num_nodes), torch.bincount(edges.src, minlength=num_nodes)


def _between(edges: Edges, vertices: Tensor, num_nodes: int) -> Edges:
    """Return edges between places of ``vertices``."""
    if len(vertices) == num_nodes:
        return edges
    place = torch.full((num_nodes,), -1)
    place[vertices] = torch.arange(len(vertices))
    return edges._replace(src=place[edges.src], dst=place[edges.dst])
