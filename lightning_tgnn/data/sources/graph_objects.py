"""Event streams from the graph classes of PyG and DGL; nodes keep their numbers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.arrays import as_array, as_numbers
from lightning_tgnn.data.dgl_graphs import DGLEdges, edges_of_dgl
from lightning_tgnn.data.streams.columns import highest_count, node_column
from lightning_tgnn.data.streams.event_store import EventStore

_OF_PYG = {"src", "dst", "t", "msg", "y"}
_ROLES = ("time", "label", "edge_features")
_USUAL_TIMES = ("time", "timestamp", "timestamps", "ts", "t")


class TemporalData(Protocol):
    """A PyG ``TemporalData``."""

    def to_dict(self) -> dict[str, object]:
        """Return what it holds, by name."""
        ...


class DGLGraph(DGLEdges, Protocol):
    """A `dgl.DGLGraph`."""

    @property
    def ndata(self) -> Mapping[str, Tensor]:
        """Data of the nodes, by name."""
        ...

    @property
    def edata(self) -> Mapping[str, Tensor]:
        """Data of the edges, by name."""
        ...

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return how many nodes there are, or how many of a type."""
        ...


def from_temporal_data(data: TemporalData) -> EventStore:
    """Return the events of a PyG ``TemporalData``: ``src``, ``dst``, ``t``, and ``msg`` and ``y`` where it has them.

    Raises:
        DataError: ``src``, ``dst`` or ``t`` is missing, or the data holds something that must not be trained on.
    """
    held = {name: value for name, value in data.to_dict().items() if value is not None}
    missing = [name for name in ("src", "dst", "t") if name not in held]
    if missing:
        cure = f"give it {', '.join(missing)} as well"
        raise DataError("source", "a TemporalData with src, dst and t", sorted(held), cure)
    _notice_unread("TemporalData", held.keys() - _OF_PYG)
    src, dst = (node_column(name, held[name]) for name in ("src", "dst"))
    return EventStore.from_arrays(
        src,
        dst,
        as_array("t", held["t"]),
        _matrix({"msg": held["msg"]}) if "msg" in held else None,
        labels=as_array("y", held["y"]) if "y" in held else None,
        num_nodes=highest_count(src, dst),
    )


def from_dgl(graph: DGLGraph, columns: Mapping[str, Any] | None) -> EventStore:
    """Return the events of a `dgl.DGLGraph` with one type of edges, each with a time.

    Args:
        graph: Where its edges lead from one type of nodes to another, the latter are numbered after the former. Node
            features are ``ndata["feat"]``, if all nodes have them.
        columns: Names in ``edata`` of ``time``, ``label`` and ``edge_features`` (a list); what is not named is the
            usual name of a time, ``label`` and ``feat``.

    Raises:
        InvalidArgumentError: ``columns`` does not map these roles to names in ``edata``.
        DataError: The graph has several types of edges or no time, or holds something that must not be trained on.
    """
    src, dst = (ends.cpu().numpy() for ends in edges_of_dgl(graph, two_sides=True))
    names = _names_in(graph.edata, columns or {})
    src_type, _, dst_type = graph.canonical_etypes[0]
    num_nodes = graph.num_nodes()
    features = names["edge_features"]
    unread = graph.edata.keys() - {names["time"], names["label"], *features}
    node_fields = graph.ndata.keys() - ({"feat"} if len(graph.ntypes) == 1 else set())
    _notice_unread(
        "DGLGraph", {*(f"edata[{name!r}]" for name in unread), *(f"ndata[{name!r}]" for name in node_fields)}
    )
    return EventStore.from_arrays(
        src,
        dst if src_type == dst_type else dst + graph.num_nodes(src_type),
        _column("time", graph.edata[names["time"]]),
        _matrix({f"edata[{name!r}]": graph.edata[name] for name in features}) if features else None,
        _matrix({"ndata['feat']": graph.ndata["feat"]}) if len(graph.ntypes) == 1 and "feat" in graph.ndata else None,
        labels=graph.edata[names["label"]] if names["label"] else None,
        node_ids=np.arange(num_nodes),
    )


def _notice_unread(kind: str, names: Iterable[str]) -> None:
    """Warn of what an object holds and nothing reads; names that begin with an underscore are its library's own."""
    unread = sorted(name for name in names if not re.search(r"^_|\['_", name))
    if unread:
        warnings.warn(f"source, a {kind}: nothing reads {', '.join(unread)}", stacklevel=4)


def _names_in(held: Mapping[str, Tensor], columns: Mapping[str, Any]) -> dict[str, Any]:
    are_names = isinstance(columns, Mapping) and all(
        isinstance(value, list | tuple if role == "edge_features" else str) or (value is None and role != "time")
        for role, value in columns.items()
    )
    if not are_names or set(columns) - set(_ROLES):
        requirement = f"a mapping of {', '.join(_ROLES)} for a DGLGraph"
        cure = "give names of edata, for example columns={'time': 't', 'edge_features': ['a', 'b']}"
        raise InvalidArgumentError("columns", requirement, columns, cure)
    names = {"label": _first(held, "label"), "edge_features": [name for name in ("feat",) if name in held], **columns}
    names["edge_features"] = names["edge_features"] or []
    if "time" not in columns:
        usual = [name for name in _USUAL_TIMES if name in held]
        if len(usual) != 1:
            requirement = f"a DGLGraph with one of {', '.join(_USUAL_TIMES)} in its edata"
            cure = "give every edge its time, or say which it is, for example columns={'time': 'when'}"
            raise DataError("source", requirement, sorted(held), cure)
        names["time"] = usual[0]
    used = [names["time"], *([names["label"]] if names["label"] else []), *names["edge_features"]]
    for name in used:
        if name not in held:
            cure = f"it has {', '.join(sorted(held))}"
            raise DataError("columns", "a mapping to names in the graph's edata", name, cure)
    return names


def _first(held: Mapping[str, Tensor], name: str) -> str | None:
    return name if name in held else None


def _column(name: str, values: object) -> np.ndarray:
    """Return a column [rows], also where it is one of shape [rows, 1]."""
    column = as_array(name, values)
    return column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column


def _matrix(columns: Mapping[str, object]) -> np.ndarray:
    """Return columns side by side, [rows, width]."""
    held = [as_numbers(name, column) for name, column in columns.items()]
    for name, column in zip(columns, held, strict=True):
        if not column.dim():
            raise DataError(name, "of a row for each event", "a single number", "give a column")
    return torch.cat([column.reshape(len(column), -1).float() for column in held], dim=1).numpy()
