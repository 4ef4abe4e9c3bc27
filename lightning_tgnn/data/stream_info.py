"""What a model has to know of a stream."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.data.event_store import EventStore
from lightning_tgnn.types import StreamInfo

_LEAST_DEVIATION = 1e-3


def stream_info(store: EventStore, train: Tensor) -> StreamInfo:
    """Describe ``store``; the time scale comes from its training events (int64 [E]) alone."""
    gap_mean, gap_std = _gaps(store, train)
    num_classes, multi_label = _classes(store.labels)
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
    )


def _classes(labels: Tensor | None) -> tuple[int, bool]:
    """Return how many classes labels name, and whether an event may have several; 0 where they are no classes.

    One column of whole numbers is a class per event; several columns of 0 and 1 are a column per class. Negative is no
    label.
    """
    if labels is None or (labels.is_floating_point() and not bool((labels == labels.round()).all())):
        return 0, False
    highest = int(labels.max())
    if labels.ndim == 2:
        return (labels.shape[1] if highest <= 1 else 0), True
    return (max(highest + 1, 2) if highest >= 0 else 0), False


def _gaps(store: EventStore, train: Tensor) -> tuple[float, float]:
    """Return mean and deviation of the time between consecutive events of a node; 1 where there is no scale."""
    nodes = torch.cat([store.src[train], store.dst[train]])
    times = store.time[train].repeat(2)
    # Sorted by time, then stably by node: each node's times stand together, in order.
    order = times.argsort(stable=True)
    order = order[nodes[order].argsort(stable=True)]
    nodes, times = nodes[order], times[order]
    gaps = (times[1:] - times[:-1])[nodes[1:] == nodes[:-1]]
    if not len(gaps):
        gaps = (store.time[-1] - store.time[0]).reshape(1)
    mean, std = float(gaps.mean()) or 1.0, float(gaps.std(correction=0))
    # The gaps of a regular stream differ by rounding alone, which is no scale to divide by.
    return mean, std if std > _LEAST_DEVIATION * mean else mean
