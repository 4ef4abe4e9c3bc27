"""Event streams from the graph classes of PyG and DGL; nodes keep their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError, refusal
from lightning_tgnn.data.streams.columns import highest_count
from lightning_tgnn.data.streams.event_store import EventStore

_ROLES = ("time", "label", "edge_features")
_USUAL_TIMES = ("time", "timestamp", "timestamps", "ts", "t")


class TemporalData(Protocol):
    """A PyG ``TemporalData``."""

    def to_dict(self) -> dict[str, object]:
        """Return what it holds, by name."""
        ...


class DGLGraph(Protocol):
    """A `dgl.DGLGraph`."""

    canonical_etypes: list[tuple[str, str, str]]
    ntypes: list[str]

    @property
    def ndata(self) -> Mapping[str, Tensor]:
        """Data of the nodes, by name."""
        ...

    @property
    def edata(self) -> Mapping[str, Tensor]:
        """Data of the edges, by name."""
        ...

    def edges(self, *, order: str = ...) -> tuple[Tensor, Tensor]:
        """Return sources and destinations, int64 [E] each."""
        ...

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return how many nodes there are, or how many of a type."""
        ...


def from_temporal_data(data: TemporalData) -> EventStore:
    """Return the events of a PyG ``TemporalData``: ``src``, ``dst``, ``t``, and ``msg`` and ``y`` where it has them.

    Raises:
        DataError: One of the first three is missing, or it holds something that must not be trained on.
    """
    held = {name: value for name, value in data.to_dict().items() if isinstance(value, Tensor)}
    missing = [name for name in ("src", "dst", "t") if name not in held]
    if missing:
        cure = f"give it {', '.join(missing)} as well"
        raise DataError(refusal("source", "a TemporalData with src, dst and t", sorted(held), cure))
    src, dst = _array(held["src"]), _array(held["dst"])
    return EventStore.from_arrays(
        src,
        dst,
        _array(held["t"]),
        _matrix([held["msg"]]) if "msg" in held else None,
        labels=_array(held["y"]) if "y" in held else None,
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
        InvalidArgumentError: ``columns`` is no such mapping.
        DataError: The graph has several types of edges or no time, or holds something that must not be trained on.
    """
    if len(graph.canonical_etypes) != 1:
        cure = "give one of them, graph.edge_type_subgraph([type]), or dgl.to_homogeneous(graph)"
        raise DataError(refusal("source", "a DGLGraph with one type of edges", graph.canonical_etypes, cure))
    names = _names_in(graph.edata, columns or {})
    src_type, _, dst_type = graph.canonical_etypes[0]
    src, dst = (_array(ends) for ends in graph.edges(order="eid"))
    num_nodes = graph.num_nodes()
    features = names["edge_features"]
    return EventStore.from_arrays(
        src,
        dst if src_type == dst_type else dst + graph.num_nodes(src_type),
        _array(graph.edata[names["time"]].squeeze(-1)),
        _matrix([graph.edata[name] for name in features]) if features else None,
        _matrix([graph.ndata["feat"]]) if len(graph.ntypes) == 1 and "feat" in graph.ndata else None,
        labels=_array(graph.edata[names["label"]]) if names["label"] else None,
        node_ids=np.arange(num_nodes),
    )


def _names_in(held: Mapping[str, Tensor], columns: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(columns) - set(_ROLES))
    if unknown:
        requirement = f"a mapping of {', '.join(_ROLES)} for a DGLGraph"
        cure = "give names of edata, for example columns={'time': 't'}"
        raise InvalidArgumentError(refusal("columns", requirement, unknown, cure))
    names = {"label": _first(held, "label"), "edge_features": [name for name in ("feat",) if name in held], **columns}
    if "time" not in columns:
        usual = [name for name in _USUAL_TIMES if name in held]
        if len(usual) != 1:
            requirement = f"a DGLGraph with one of {', '.join(_USUAL_TIMES)} in its edata"
            cure = "give every edge its time, or say which it is, for example columns={'time': 'when'}"
            raise DataError(refusal("source", requirement, sorted(held), cure))
        names["time"] = usual[0]
    used = [names["time"], *([names["label"]] if names["label"] else []), *names["edge_features"]]
    for name in used:
        if name not in held:
            cure = f"it has {', '.join(sorted(held))}"
            raise DataError(refusal("columns", "a mapping to names in the graph's edata", name, cure))
    return names


def _first(held: Mapping[str, Tensor], name: str) -> str | None:
    return name if name in held else None


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def _matrix(columns: Sequence[Tensor]) -> np.ndarray:
    """Return columns side by side, [rows, width]."""
    return _array(torch.cat([column.reshape(len(column), -1).float() for column in columns], dim=1))
