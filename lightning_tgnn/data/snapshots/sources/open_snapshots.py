"""Sequences of snapshots from whatever holds them, with what a caller gives beside it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_path, check_settings, with_home
from lightning_tgnn.data.graphs.graph import Graph
from lightning_tgnn.data.graphs.sources.folder import is_graph_folder
from lightning_tgnn.data.graphs.sources.graph_objects import GraphSource
from lightning_tgnn.data.graphs.sources.names import GRAPH_NAMES
from lightning_tgnn.data.graphs.sources.open_graph import open_source, prepare_graph
from lightning_tgnn.data.pipeline import lasting_name
from lightning_tgnn.data.snapshots.cuts import Cut
from lightning_tgnn.data.snapshots.sequence import SnapshotSequence, VertexFeatures
from lightning_tgnn.data.snapshots.sources.events import EdgeColumns, from_events
from lightning_tgnn.data.snapshots.sources.graph_lists import from_graphs, is_graph_list
from lightning_tgnn.data.snapshots.sources.signals import Signal, from_signal, is_signal
from lightning_tgnn.data.snapshots.sources.synthetic import generate_snapshots
from lightning_tgnn.data.sources.named_streams import STREAMS
from lightning_tgnn.data.sources.open_events import (
    EventSource,
    ReadOptions,
    open_events,
    opened,
    prepare_events,
)
from lightning_tgnn.data.streams.event_store import is_event_store
from lightning_tgnn.files.npy_file import map_npy, mapped_tensor

SYNTHETIC_SNAPSHOTS = "synthetic_snapshots"
TURNOVER = 0.1
"""Share of the edges of a static graph that change with each snapshot, where nobody says otherwise."""

Column: TypeAlias = "int | str | Tensor | None"
"""A column of numbers: the name or number of one of the source's, or the numbers themselves."""


@dataclass(frozen=True)
class SnapshotSource:
    """Where snapshots come from; see `lightning_tgnn.SnapshotDataModule`.

    Attributes:
        source: An event stream, graphs, a signal, a sequence, a static graph, or a name.
        read: How a stream is read.
        cut: How it is cut; None for what is in snapshots already.
        edge_counts: The trend by which edges of a static graph are deleted; None for any other source.
        turnover: Share of the edges that change with each snapshot of such a graph.
        seed: Of the deletion.
        weights: Of the edges.
        relations: Their kinds.
        labels: Of the edges or vertices.
        labels_of: ``"edges"`` or ``"vertices"``; None where labels are not used.
    """

    source: object
    read: ReadOptions
    cut: Cut | None
    edge_counts: Sequence[int] | None
    turnover: float
    seed: int
    weights: Column
    relations: Column
    labels: Column
    labels_of: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", lasting_name(with_home(self.source)))

    def prepare(self) -> None:
        """Download and convert what a name stands for, unless it is there."""
        if self.edge_counts is not None:
            prepare_graph(cast(GraphSource, self.source), self.read.root, self.read.synthetic)
        elif self.cut is not None:
            prepare_events(cast(EventSource, self.source), self.read.root)

    def open(self) -> SnapshotSequence:
        """Return the snapshots of a source that has been prepared.

        Raises:
            InvalidArgumentError: The source has a form that is not read, or an argument does not go with it.
            DataError: The source holds something that must not be trained on.
        """
        named = {"weights": self.weights, "relations": self.relations, "labels": self.labels}
        if self.labels is not None and self.labels_of is None:
            cure = "set target='edges' or target='vertices', or leave them out"
            raise InvalidArgumentError("labels", "left out where links are predicted", _shown(self.labels), cure)
        if self.cut is not None:
            names = {name: None if isinstance(value, Tensor) else value for name, value in named.items()}
            if self.labels_of != "edges":
                names["labels"] = None
                self._check_tensors({"labels": self.labels})
            store = open_events(opened(cast(EventSource, self.source), self.read.root), self.read)
            read = from_events(store, self.cut, EdgeColumns(**names))
        else:
            self._check_tensors(named)
            read = self._open_snapshots()
        field = "vertex_labels" if self.labels_of == "vertices" else "edge_labels"
        given = {"weights": _floats(self.weights), "relations": self.relations, field: _classes_or_numbers(self.labels)}
        columns = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        return replace(read, **columns) if columns else read  # type: ignore[arg-type]

    def _open_snapshots(self) -> SnapshotSequence:
        source = self.source
        if self.edge_counts is not None:
            graph = open_source(cast(GraphSource, source), self.read.root, self.read.synthetic)
            if graph.edge_weights is not None:
                cure = "snapshots take weights=..., one for each edge of each snapshot"
                warnings.warn(f"nothing reads the weights of the graph's edges; {cure}", stacklevel=2)
            return SnapshotSequence.by_deletion(
                graph.src,
                graph.dst,
                self.edge_counts,
                num_nodes=graph.num_nodes,
                turnover=self.turnover,
                seed=self.seed,
                features=graph.features,
                vertex_labels=graph.labels,
            )
        if isinstance(source, SnapshotSequence):
            return source
        if is_graph_list(source):
            return from_graphs(cast(Sequence[object], source))
        if is_signal(source):
            return from_signal(cast(Signal, source))
        check_settings("synthetic", self.read.synthetic, generate_snapshots)
        return generate_snapshots(**self.read.synthetic)

    def _check_tensors(self, columns: dict[str, Column]) -> None:
        for name, value in columns.items():
            if value is not None and not isinstance(value, Tensor):
                requirement = "a tensor, or left out, where no column of an event stream is meant"
                cure = "give the values themselves, or take what the source holds"
                raise InvalidArgumentError(name, requirement, value, cure)


def checked_trend(edge_counts: object, turnover: float) -> Sequence[int] | None:
    """Return how many edges each snapshot of a static graph keeps, arrays as lists; None for any other source.

    Raises:
        InvalidArgumentError: ``turnover`` is set without ``edge_counts``.
    """
    if edge_counts is None and turnover != TURNOVER:
        cure = "give edge_counts, or leave it out: of a stream events come and go by themselves"
        raise InvalidArgumentError("turnover", "left out without edge_counts", turnover, cure)
    is_array = isinstance(edge_counts, np.ndarray | Tensor) and edge_counts.ndim == 1
    return cast(Sequence[int] | None, edge_counts.tolist() if is_array else edge_counts)  # type: ignore[attr-defined]


def cut_of(source: object, edge_counts: Sequence[int] | None, **settings: object) -> Cut | None:
    """Return how a source is cut into snapshots; None of what is in snapshots already.

    Args:
        source: See `lightning_tgnn.SnapshotDataModule`.
        edge_counts: Where they make snapshots of a static graph.
        **settings: Fields of `Cut`.

    Raises:
        InvalidArgumentError: A value cannot work, or is given where nothing is cut.
    """
    if isinstance(source, (list, tuple)) and not is_graph_list(source):
        received = sorted({type(entry).__name__ for entry in source}) or "an empty list"
        cure = "give a graph for each snapshot, all of one library"
        raise InvalidArgumentError("source", "a list of DGLGraphs or of PyG Data", received, cure)
    in_snapshots = (
        edge_counts is not None
        or isinstance(source, SnapshotSequence)
        or is_synthetic(source)
        or is_graph_list(source)
        or is_signal(source)
    )
    if not in_snapshots:
        if _is_static(source):
            cure = "say how many edges each snapshot keeps, for example edge_counts=[1000, 500, 1000]"
            raise InvalidArgumentError("edge_counts", "given for a static graph", None, cure)
        return Cut(**settings)  # type: ignore[arg-type]
    given = {name: value for name, value in settings.items() if value}
    if given:
        cure = "leave them out: only an event stream is cut"
        requirement = "left out where the source is in snapshots already"
        raise InvalidArgumentError(", ".join(given), requirement, tuple(given.values()), cure)
    return None


def _is_static(source: object) -> bool:
    """Whether a source can only be a static graph."""
    if not isinstance(source, (str, Path)):
        return isinstance(source, Graph)
    if str(source).lower() in {*GRAPH_NAMES} - {*STREAMS}:
        return True
    path = Path(with_home(source))
    return path.suffix.lower() == ".npz" or (is_graph_folder(path) and not is_event_store(path))


def is_synthetic(source: object) -> bool:
    """Whether ``source`` is the name of the generator."""
    return isinstance(source, (str, Path)) and str(source).lower() == SYNTHETIC_SNAPSHOTS


def given_features(features: object) -> VertexFeatures:
    """Return features that a caller gives: a matrix [N, F], one for each snapshot, or ``.npy`` files of such.

    Raises:
        DataError: ``features`` is neither a matrix, nor one for each snapshot, nor such files.
    """
    if isinstance(features, (list, tuple)):
        return tuple(_matrix(f"features of snapshot {number}", matrix) for number, matrix in enumerate(features))
    matrix = _matrix("features", features)
    return tuple(matrix.unbind(0)) if matrix.dim() == 3 else matrix


def _matrix(name: str, matrix: object) -> Tensor:
    if isinstance(matrix, (str, Path)):
        matrix = mapped_tensor(map_npy(check_path("features", matrix)))
    if isinstance(matrix, np.ndarray):
        matrix = torch.from_numpy(matrix)
    if not isinstance(matrix, Tensor):
        cure = "give a tensor [N, F], one for each snapshot, or .npy files"
        raise DataError(name, "a matrix of numbers", type(matrix).__name__, cure)
    return matrix if matrix.dtype == torch.float32 else matrix.float()


def _floats(column: Column) -> Column:
    return column.float() if isinstance(column, Tensor) else column


def _classes_or_numbers(column: Column) -> Column:
    if not isinstance(column, Tensor):
        return column
    return column.float() if column.is_floating_point() else column.long()


def _shown(value: Column) -> object:
    return list(value.shape) if isinstance(value, Tensor) else value
