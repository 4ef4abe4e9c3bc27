"""Snapshots of an event stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, did_you_mean
from lightning_tgnn.data.snapshots.cuts import Cut
from lightning_tgnn.data.snapshots.sequence import SnapshotSequence
from lightning_tgnn.data.streams.event_store import EventStore

SIGN, LABEL = "sign", "label"


@dataclass(frozen=True)
class EdgeColumns:
    """What the edges of a stream have besides their ends: of each a name, the number of an edge feature, or None.

    ``"label"`` is the stream's label, ``"sign"`` says whether its only edge feature is positive, as 0 or 1; other names
    are names of edge features.

    Attributes:
        weights: Of the edges.
        relations: Their kinds, whole numbers from 0.
        labels: What is to be predicted of them; the stream's own labels if None.
    """

    weights: int | str | None = None
    relations: int | str | None = None
    labels: int | str | None = None


def from_events(store: EventStore, cut: Cut, columns: EdgeColumns) -> SnapshotSequence:
    """Return the snapshots of a stream, whose columns are only read where they are.

    Raises:
        InvalidArgumentError: A column does not exist, or ``cut`` does not fit the stream.
        DataError: A column holds something that must not be trained on.
    """
    begins, ends, times = cut.ranges(store.time)
    labels = columns.labels
    if labels is None and store.labels is not None and store.labels.dim() == 1:
        labels = LABEL
    return SnapshotSequence(
        begins,
        ends,
        store.src,
        store.dst,
        store.num_nodes,
        weights=None if columns.weights is None else _column("weights", columns.weights, store).float(),
        relations=None if columns.relations is None else _whole("relations", columns.relations, store),
        edge_labels=None if labels is None else _labels(_column("labels", labels, store)),
        features=store.node_features,
        times=times,
    )


def _column(argument: str, name: str | int, store: EventStore) -> Tensor:
    """Return a column of numbers, [E]."""
    if name == LABEL:
        if store.labels is None or store.labels.dim() != 1:
            received = "no labels" if store.labels is None else f"{store.labels.shape[1]} labels of an event"
            cure = "name an edge feature, or give a stream with one label for each event"
            raise InvalidArgumentError(argument, "a column of the stream", received, cure)
        return store.labels
    features = store.edge_features
    width = store.edge_feature_dim
    if name == SIGN:
        if features is None or width != 1:
            cure = "name the edge feature whose sign is meant as the only one of the stream"
            requirement = "'sign' only where an edge has one feature"
            raise InvalidArgumentError(argument, requirement, f"{width} edge features", cure)
        return (features[:, 0] > 0).long()
    if isinstance(name, int) and not isinstance(name, bool):
        if features is None or not 0 <= name < width:
            cure = "number the edge features from 0"
            raise InvalidArgumentError(argument, f"one of {width} edge features", name, cure)
        return features[:, name]
    names = store.edge_feature_names or ()
    if features is None or name not in names:
        listed = ", ".join(repr(one) for one in (*names, LABEL, SIGN))
        cure = did_you_mean(name, (*names, LABEL, SIGN)) or "choose a name from that list, or a number from 0"
        raise InvalidArgumentError(argument, f"one of {listed}, or the number of an edge feature", name, cure)
    return features[:, names.index(str(name))]


def _whole(argument: str, name: str | int, store: EventStore) -> Tensor:
    column = _column(argument, name, store)
    whole = column.long()
    if not torch.equal(whole.to(column.dtype), column):
        wrong = float(column[int((whole != column).nonzero()[0])])
        raise InvalidArgumentError(argument, "a column of whole numbers", wrong, "number the kinds from 0")
    kinds = np.unique(whole.numpy())
    if len(kinds) and kinds[-1] - kinds[0] >= len(kinds) * 8:
        received = f"{len(kinds)} kinds between {kinds[0]} and {kinds[-1]}"
        raise InvalidArgumentError(argument, "a column of kinds of edges", received, "number them from 0")
    return whole


def _labels(column: Tensor) -> Tensor:
    """Return labels as classes where they are whole numbers, else as numbers."""
    if not column.is_floating_point():
        return column.long()
    return column.long() if torch.equal(column.round(), column) else column.float()
