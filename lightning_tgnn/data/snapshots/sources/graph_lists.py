"""Snapshots from a list of graphs of DGL or PyG, one for each; vertices keep their numbers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, refusal
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
        self.edge_labels = _labels(_first(edges, ("edge_label", "label")))
        self.features = _matrix(_first(vertices, ("x", "feat")))
        self.labels = _labels(_first(vertices, ("y", "label")))


def is_graph_list(source: object) -> bool:
    """Whether ``source`` is a list or tuple of graphs of DGL or PyG."""
    if not isinstance(source, (list, tuple)) or not source:
        return False
    return all(_is_dgl(graph) or _is_pyg(graph) for graph in source)


def from_graphs(graphs: Sequence[object]) -> SnapshotSequence:
    """Return the snapshots that graphs are, in the order of the list.

    Of a PyG ``Data`` are read ``edge_index``, ``edge_weight`` or an ``edge_attr`` of one column, ``edge_type``,
    ``edge_label``, ``x``, ``y`` and ``time`` or ``t``; a ``label`` is one of edges or of vertices by its length. Of a
    `dgl.DGLGraph` are read its edges, ``edata`` ``weight`` or ``w``, ``etype`` and ``label``, ``ndata`` ``feat`` and
    ``label``.

    Raises:
        DataError: A graph has what others lack, or something of another shape, or that must not be trained on.
    """
    return joined([_columns(graph, number) for number, graph in enumerate(graphs)])


def joined(held: Sequence[GraphColumns]) -> SnapshotSequence:
    """Return the snapshots of which each has its own edges."""
    ends = torch.tensor(list(accumulate(len(graph.src) for graph in held)))
    num_nodes = max(graph.num_nodes for graph in held)
    labels = _of_all("labels of vertices", [graph.labels for graph in held])
    if labels is not None:
        short = [number for number, column in enumerate(labels) if column.shape != (num_nodes,)]
        if short:
            received, cure = list(labels[short[0]].shape), "give a label for every vertex of the sequence, -1 for none"
            name = f"labels of vertices of snapshot {short[0]}"
            raise DataError(refusal(name, f"[{num_nodes}]", received, cure))
    times = _of_all("times", [graph.time for graph in held])
    return SnapshotSequence(
        torch.cat([ends.new_zeros(1), ends[:-1]]),
        ends,
        torch.cat([graph.src for graph in held]),
        torch.cat([graph.dst for graph in held]),
        num_nodes,
        weights=_side_by_side("weights", held, lambda graph: graph.weights),
        relations=_side_by_side("relations", held, lambda graph: graph.relations),
        edge_labels=_side_by_side("labels of edges", held, lambda graph: graph.edge_labels),
        features=_of_all("features", [graph.features for graph in held]),
        vertex_labels=None if labels is None else torch.stack(labels),
        times=None if times is None else torch.tensor(times, dtype=torch.float64),
    )


def _columns(graph: object, number: int) -> GraphColumns:
    if _is_dgl(graph):
        src, dst = edges_of_dgl(graph, where=f" in snapshot {number}")  # type: ignore[arg-type]
        return GraphColumns(src, dst, graph.num_nodes(), graph.edata, graph.ndata, None)  # type: ignore[attr-defined]
    columns = {name: value for name, value in graph.to_dict().items() if value is not None}  # type: ignore[attr-defined]
    if "edge_index" not in columns:
        received = f"{sorted(columns)} in snapshot {number}"
        cure = "give every snapshot an edge_index, of shape [2, 0] where it is empty"
        raise DataError(refusal("source", "graphs with an edge_index", received, cure))
    src, dst = as_ends(f"edge_index of snapshot {number}", columns["edge_index"])
    time = _first(columns, _TIMES)
    when = None if time is None else as_numbers(f"time of snapshot {number}", time)
    if when is not None and when.numel() != 1:
        cure = "give the time of the snapshot, or all events as one stream with num_snapshots or window"
        raise DataError(refusal(f"time of snapshot {number}", "one number", list(when.shape), cure))
    at = None if when is None else float(when)
    given = {name: values for name, values in columns.items() if isinstance(values, (Tensor, np.ndarray, list, tuple))}
    num_nodes = int(graph.num_nodes or 0)  # type: ignore[attr-defined]
    vertices, edges = dict(given), dict(given)
    if _holds_weights(given):
        edges["edge_weight"] = given["edge_attr"]
    elif "edge_attr" in given and number == 0:
        cure = "give one column, and no other weights"
        warnings.warn(f"source: nothing reads the edge_attr of its snapshots; {cure}", stacklevel=2)
    if "label" in given:  # of vertices or of edges
        if len(given["label"]) == num_nodes == len(src):
            requirement, cure = "told apart from one of edges, of which there are as many", "name it y, or edge_label"
            raise DataError(refusal(f"label of snapshot {number}", requirement, f"{num_nodes} values", cure))
        del (edges if len(given["label"]) == num_nodes else vertices)["label"]
    return GraphColumns(src, dst, num_nodes, edges, vertices, at)


def _holds_weights(columns: Mapping[str, object]) -> bool:
    """Whether the ``edge_attr`` of a PyG ``Data`` are the weights of its edges: one column, and no other weights."""
    shape = np.shape(columns.get("edge_attr", 0))  # type: ignore[call-overload]
    return _first(columns, _WEIGHTS) is None and (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1))


def _is_dgl(graph: object) -> bool:
    kind = getattr(sys.modules.get("dgl"), "DGLGraph", None)
    return kind is not None and isinstance(graph, kind)


def _is_pyg(graph: object) -> bool:
    kind = getattr(sys.modules.get("torch_geometric.data"), "Data", None)
    return kind is not None and isinstance(graph, kind)


def _side_by_side(
    name: str, held: Sequence[GraphColumns], column: Callable[[GraphColumns], Tensor | None]
) -> Tensor | None:
    columns = _of_all(name, [column(graph) for graph in held])
    if columns is None:
        return None
    for number, (graph, values) in enumerate(zip(held, columns, strict=True)):
        if values.shape != graph.src.shape:
            received, cure = list(values.shape), "give a value for every edge"
            raise DataError(refusal(f"{name} of snapshot {number}", f"[{len(graph.src)}]", received, cure))
    return torch.cat(list(columns))


def _of_all(name: str, columns: Sequence[_Column | None]) -> tuple[_Column, ...] | None:
    """Return what all snapshots have, or None if none has it."""
    found = tuple(column for column in columns if column is not None)
    if found and len(found) < len(columns):
        missing = next(number for number, column in enumerate(columns) if column is None)
        cure = "give it to every snapshot or to none"
        raise DataError(refusal(name, "given for all snapshots", f"none for snapshot {missing}", cure))
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
