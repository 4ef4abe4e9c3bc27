"""The properties of a stream that a model has to know."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.data.arrays import digest_of_some
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.files.npy_file import pieces
from lightning_tgnn.types import StreamInfo

_LEAST_DEVIATION = 1e-3
_MOST_CLASSES = 100_000  # that are counted


def stream_info(store: EventStore, train: Tensor) -> StreamInfo:
    """Describe ``store``; the time scale comes from its training events (int64 [E]) alone."""
    gap_mean, gap_std = _gaps(store, train)
    num_classes, multi_label = _classes(store.labels)
    labelled = None if store.labels is None else _labelled(store.labels, train)
    counts = known = None
    if store.labels is not None and 0 < num_classes <= _MOST_CLASSES:
        counts, known = _class_counts(store.labels, train, num_classes)
    return StreamInfo(
        num_nodes=store.num_nodes,
        num_events=store.num_events,
        node_feature_dim=store.node_feature_dim,
        edge_feature_dim=store.edge_feature_dim,
        gap_mean=gap_mean,
        gap_std=gap_std,
        fingerprint=store.fingerprint,
        num_classes=num_classes,
        multi_label=multi_label,
        training_labels=labelled,
        edge_feature_names=store.edge_feature_names,
        features=digest_of_some(store.edge_features, store.node_features),
        class_counts=counts,
        column_counts=known if multi_label else None,
        column_names=None if store.origin is None else store.origin.column_names,
        has_dates=store.origin is not None and store.origin.dates,
    )


def _labelled(labels: Tensor, train: Tensor) -> int:
    """Return how many labels training events have; some millions at a time, for they may be more than memory holds."""
    some = pieces(len(train), labels[:1].numel())
    return sum(int((labels[train[piece]] >= 0).sum()) for piece in some)


def _class_counts(labels: Tensor, train: Tensor, num_classes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many training labels each class has, and each column of several."""
    counts, known = torch.zeros(2, num_classes, dtype=torch.int64)
    for piece in pieces(len(train), labels[:1].numel()):
        some = labels[train[piece]]
        if some.ndim == 2:
            counts, known = counts + (some > 0).sum(0), known + (some >= 0).sum(0)
        else:
            counts += some[some >= 0].long().bincount(minlength=num_classes)
    return tuple(counts.tolist()), tuple(known.tolist())


def _classes(labels: Tensor | None) -> tuple[int, bool]:
    """Return how many classes labels name, and whether an event may have several; 0 where they are no classes.

    One column of whole numbers is a class per event; several columns of 0 and 1 are a column per class. Negative is no
    label.
    """
    if labels is None or (labels.is_floating_point() and not bool((labels == labels.round()).all())):
        return 0, False
    highest = int(labels.max())
    if labels.ndim == 2:
        return (labels.shape[1] if 0 <= highest <= 1 else 0), True
    return (max(highest + 1, 2) if highest >= 0 else 0), False


def _gaps(store: EventStore, train: Tensor) -> tuple[float, float]:
    """Return mean and deviation of the time between consecutive events of a node; 1 where there is no scale."""
    from lightning_tgnn.algorithms.streams.gap_loops import gap_moments  # imports the compiler: only where it is used

    columns = (store.src.numpy(), store.dst.numpy(), store.time.numpy(), train.numpy())
    count, mean, squares = gap_moments(*columns, store.num_nodes)
    if not count:
        count, mean = 1, float(store.time[-1] - store.time[0])
    mean, std = mean or 1.0, (squares / count) ** 0.5
    # The gaps of a regular stream differ by rounding alone, which is no scale to divide by.
    return mean, std if std > _LEAST_DEVIATION * mean else mean
