"""Snapshots from a list of graphs of DGL or PyG, one for each; vertices keep their numbers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.arrays import as_ends, as_numbers, as_whole
from lightning_tgnn.data.dgl_graphs import edges_of_dgl
from lightning_tgnn.data.snapshots.sequence import SnapshotSequence

_Column = TypeVar("_Column")
_WEIGHTS = ("edge_weight", "weight", "w")
_RELATIONS = ("edge_type", "etype")
_TIMES = ("time", "t", "timestamp")


class GraphColumns:
    """What a graph holds, by the names that its library has for it.

    Args:
        src: int64 [e].
        dst: int64 [e].
        num_nodes: Vertices.
        edges: Columns of its edges.
        vertices: Columns of its vertices.
        time: When it is taken, or None.
    """

    def __init__(
        self,
        src: Tensor,
        dst: Tensor,
        num_nodes: int,
        edges: Mapping[str, object],
        vertices: Mapping[str, object],
        time: float | None,
    ) -> None:
        self.src, self.dst, self.num_nodes, self.time = src.long().cpu(), dst.long().cpu(), num_nodes, time
        self.weights = _numbers(_first(edges, _WEIGHTS))
        self.relations = _whole(_first(edges, _RELATIONS))
        self.edge_labels = _labels(_first(edges, ("label", "edge_label")))
        self.features = _matrix(_first(vertices, ("x", "feat")))
        self.labels = _labels(_first(vertices, ("y", "label")))


def is_graph_list(source: object) -> bool:
    """Whether ``source`` is a list or tuple of graphs of DGL or PyG."""
    if not isinstance(source, (list, tuple)) or not source:
        return False
    return all(_is_dgl(graph) or _is_pyg(graph) for graph in source)


def from_graphs(graphs: Sequence[object]) -> SnapshotSequence:
    """Return the snapshots that graphs are, in the order of the list.

    Of a PyG ``Data`` are read ``edge_index``, ``edge_weight``, ``edge_type``, ``edge_label``, ``x``, ``y`` and ``time``
    or ``t``. An ``edge_attr`` of one column of floating-point numbers is read as weights where there are no others, and
    a ``label`` is one of edges or of vertices by its length, beside ``y`` of edges. Of a `dgl.DGLGraph` are read its
    edges, ``edata`` ``weight`` or ``w``, ``etype`` and ``label``, ``ndata`` ``feat`` and ``label``.

    Raises:
        DataError: A graph has what others lack, or something of another shape, or that must not be trained on.
    """
    weighs, label_of = _attributes_weigh(graphs), _label_of(graphs)
    return joined([_columns(graph, number, label_of, weighs=weighs) for number, graph in enumerate(graphs)])


def joined(held: Sequence[GraphColumns]) -> SnapshotSequence:
    """Return the snapshots of which each has its own edges."""
    ends = torch.tensor(list(accumulate(len(graph.src) for graph in held)))
    num_nodes = max(graph.num_nodes for graph in held)
    labels = _all_or_none("labels of vertices", [graph.labels for graph in held])
    if labels is not None:
        short = [number for number, column in enumerate(labels) if column.shape != (num_nodes,)]
        if short:
            received, cure = list(labels[short[0]].shape), "give a label for every vertex of the sequence, -1 for none"
            raise DataError(f"labels of vertices of snapshot {short[0]}", f"[{num_nodes}]", received, cure)
    times = _all_or_none("times", [graph.time for graph in held])
    return SnapshotSequence(
        torch.cat([ends.new_zeros(1), ends[:-1]]),
        ends,
        torch.cat([graph.src for graph in held]),
        torch.cat([graph.dst for graph in held]),
        num_nodes,
        weights=_side_by_side("weights", held, lambda graph: graph.weights),
        relations=_side_by_side("relations", held, lambda graph: graph.relations),
        edge_labels=_side_by_side("labels of edges", held, lambda graph: graph.edge_labels),
        features=_all_or_none("features", [graph.features for graph in held]),
        vertex_labels=None if labels is None else torch.stack(labels),
        times=None if times is None else torch.tensor(times, dtype=torch.float64),
    )


def _attributes_weigh(graphs: Sequence[Any]) -> bool:
    """Whether the ``edge_attr`` of PyG's graphs is a weight of every edge in all of them, and there is no other."""
    held = [graph.to_dict() for graph in graphs if _is_pyg(graph)]
    if all(columns.get("edge_attr") is None for columns in held):
        return False
    for columns in held:
        values = columns.get("edge_attr")
        is_column = isinstance(values, Tensor) and values.is_floating_point() and values.shape[1:] in ((), (1,))
        fits = is_column and values.shape[:1] == np.shape(columns.get("edge_index"))[-1:]
        if not fits or _first(columns, _WEIGHTS) is not None:
            cure = "give one column of floating-point numbers in each, and no other weights"
            warnings.warn(f"source: nothing reads the edge_attr of its snapshots; {cure}", stacklevel=3)
            return False
    return True


def _label_of(graphs: Sequence[Any]) -> Collection[str]:
    """Return what the ``label`` of PyG's graphs is of: edges or vertices by its length, both where both or none fit."""
    held = [graph for graph in graphs if _is_pyg(graph) and graph.to_dict().get("label") is not None]
    if any(graph.to_dict().get("y") is not None for graph in held):
        return ("edges",)
    lengths = [np.shape(graph.label)[:1] for graph in held]
    per_edge = all(length == (graph.num_edges,) for length, graph in zip(lengths, held, strict=True))
    per_vertex = all(length == (graph.num_nodes,) for length, graph in zip(lengths, held, strict=True))
    if per_edge == per_vertex:
        return ("edges", "vertices")
    return ("edges",) if per_edge else ("vertices",)


def _columns(graph: object, number: int, label_of: Collection[str], *, weighs: bool) -> GraphColumns:
    if _is_dgl(graph):
        src, dst = edges_of_dgl(graph, where=f" in snapshot {number}")  # type: ignore[arg-type]
        return GraphColumns(src, dst, graph.num_nodes(), graph.edata, graph.ndata, None)  # type: ignore[attr-defined]
    columns = {name: value for name, value in graph.to_dict().items() if value is not None}  # type: ignore[attr-defined]
    if "edge_index" not in columns:
        received = f"{sorted(columns)} in snapshot {number}"
        cure = "give every snapshot an edge_index, of shape [2, 0] where it is empty"
        raise DataError("source", "graphs with an edge_index", received, cure)
    src, dst = as_ends(f"edge_index of snapshot {number}", columns["edge_index"])
    time = _first(columns, _TIMES)
    when = None if time is None else as_numbers(f"time of snapshot {number}", time)
    if when is not None and when.numel() != 1:
        cure = "give the time of the snapshot, or all events as one stream with num_snapshots or window"
        raise DataError(f"time of snapshot {number}", "one number", list(when.shape), cure)
    at = None if when is None else float(when)
    given = {name: values for name, values in columns.items() if isinstance(values, (Tensor, np.ndarray, list, tuple))}
    vertices, edges = dict(given), dict(given)
    if weighs:
        edges["edge_weight"] = given["edge_attr"]
    if "edge_label" in given or "edges" not in label_of:
        edges.pop("label", None)
    if "vertices" not in label_of:
        vertices.pop("label", None)
    return GraphColumns(src, dst, int(graph.num_nodes or 0), edges, vertices, at)  # type: ignore[attr-defined]


def _is_dgl(graph: object) -> bool:
    kind = getattr(sys.modules.get("dgl"), "DGLGraph", None)
    return kind is not None and isinstance(graph, kind)


def _is_pyg(graph: object) -> bool:
    kind = getattr(sys.modules.get("torch_geometric.data"), "Data", None)
    return kind is not None and isinstance(graph, kind)


def _side_by_side(
    name: str, held: Sequence[GraphColumns], column: Callable[[GraphColumns], Tensor | None]
) -> Tensor | None:
    columns = _all_or_none(name, [column(graph) for graph in held])
    if columns is None:
        return None
    for number, (graph, values) in enumerate(zip(held, columns, strict=True)):
        if values.shape != graph.src.shape:
            received, cure = list(values.shape), "give a value for every edge"
            raise DataError(f"{name} of snapshot {number}", f"[{len(graph.src)}]", received, cure)
    return torch.cat(list(columns))


def _all_or_none(name: str, columns: Sequence[_Column | None]) -> tuple[_Column, ...] | None:
    """Return what all snapshots have, or None if none has it."""
    found = tuple(column for column in columns if column is not None)
    if found and len(found) < len(columns):
        missing = next(number for number, column in enumerate(columns) if column is None)
        cure = "give it to every snapshot or to none"
        raise DataError(name, "given for all snapshots", f"none for snapshot {missing}", cure)
    return found or None


def _first(columns: Mapping[str, _Column], names: Sequence[str]) -> _Column | None:
    return next((columns[name] for name in names if name in columns), None)


def _numbers(given: object) -> Tensor | None:
    if given is None:
        return None
    column = as_numbers("weights of edges", given).float()
    return column.squeeze(1) if column.dim() == 2 and column.shape[1] == 1 else column


def _whole(given: object) -> Tensor | None:
    return None if given is None else as_whole("types of edges", given)


def _matrix(given: object) -> Tensor | None:
    if given is None:
        return None
    column = as_numbers("features of vertices", given).float()
    return column.unsqueeze(1) if column.dim() == 1 else column


def _labels(given: object) -> Tensor | None:
    if given is None:
        return None
    column = as_numbers("labels", given)
    column = column.squeeze(1) if column.dim() == 2 and column.shape[1] == 1 else column
    return column.float() if column.is_floating_point() else column.long()
