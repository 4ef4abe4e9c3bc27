"""Snapshots from the signals of PyTorch Geometric Temporal, which need not be installed."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.arrays import as_ends
from lightning_tgnn.data.snapshots.sequence import SnapshotSequence
from lightning_tgnn.data.snapshots.sources.graph_lists import GraphColumns, joined

_NO_EDGES = np.zeros((2, 0), np.int64)


class Signal(Protocol):
    """What all signals have; beside it ``features`` or a ``feature``, and edges, of all snapshots or of each."""

    targets: object


def is_signal(source: object) -> bool:
    """Whether ``source`` has what a signal has, such as a ``DynamicGraphTemporalSignal``."""
    alternatives = ("edge_index", "edge_indices"), ("feature", "features"), ("targets",)
    return all(any(hasattr(source, name) for name in names) for names in alternatives)


def from_signal(signal: Signal) -> SnapshotSequence:
    """Return the snapshots of a signal: edges of all or of each, features and targets of all or of each.

    Raises:
        DataError: The signal's lists differ in length, or hold something that must not be trained on.
    """
    fixed = hasattr(signal, "edge_index")
    names = ("edge_index", "edge_weight") if fixed else ("edge_indices", "edge_weights")
    edges, weights = (getattr(signal, name, None) for name in names)
    features = _features_of(signal)
    if isinstance(edges, dict):
        cure = "give a signal with one type of vertices and edges"
        raise DataError("source", "a homogeneous signal", type(signal).__name__, cure)
    each = {
        "edge_indices": None if fixed else edges,
        "edge_weights": None if fixed else weights,
        "features": features if _is_list(features) else None,
        "targets": signal.targets if _is_list(signal.targets) else None,
    }
    counts = {name: len(values) for name, values in each.items() if isinstance(values, Sized)}
    if len(set(counts.values())) != 1 or not min(counts.values()):
        cure = "give as many of each as there are snapshots"
        raise DataError("source", "a signal of at least one snapshot, with all it has for each", counts, cure)
    number = next(iter(counts.values()))
    columns = {name: [None] * number if values is None else values for name, values in each.items()}
    num_nodes = _num_nodes(features)
    if fixed:
        columns["edge_indices"] = [_NO_EDGES] * number
    rows = zip(*columns.values(), strict=True)
    read = joined([_graph(ends, weight, matrix, labels, num_nodes) for ends, weight, matrix, labels in rows])
    if fixed:
        one = _graph(edges, weights, None, None, num_nodes)
        everything = torch.zeros(number, dtype=torch.int64), torch.full((number,), len(one.src))
        read = replace(read, begins=everything[0], ends=everything[1], src=one.src, dst=one.dst, weights=one.weights)
    return _with_static(read, signal)


def _graph(edges: object, weights: object, features: object, targets: object, num_nodes: int) -> GraphColumns:
    src, dst = as_ends("edges of a snapshot", _NO_EDGES if edges is None else edges)
    named = {"weight": weights}
    vertices = {"x": features, "y": targets}
    return GraphColumns(src, dst, num_nodes, _given(named), _given(vertices), None)


def _with_static(read: SnapshotSequence, signal: Signal) -> SnapshotSequence:
    """Return a sequence with the features or targets that a signal has once for all snapshots."""
    features, targets = (_static(values) for values in (_features_of(signal), signal.targets))
    static = _graph(_NO_EDGES, None, features, targets, read.num_nodes)
    return replace(
        read,
        features=read.features if features is None else static.features,
        vertex_labels=read.vertex_labels if targets is None else static.labels,
    )


def _features_of(signal: Signal) -> object:
    return getattr(signal, "features", getattr(signal, "feature", None))


def _num_nodes(features: object) -> int:
    first = next(iter(features)) if _is_list(features) and isinstance(features, Iterable) else features
    if not isinstance(first, Sized):
        raise DataError("source", "a signal with features", None, "give features of all vertices in every snapshot")
    return len(first)


def _static(values: object) -> object:
    return None if values is None or _is_list(values) else values


def _is_list(values: object) -> bool:
    return isinstance(values, (list, tuple)) or (isinstance(values, (np.ndarray, Tensor)) and values.ndim == 3)


def _given(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
