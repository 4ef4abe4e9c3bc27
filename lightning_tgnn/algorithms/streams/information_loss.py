"""How much of a stream node memory misses when events come in batches, and the largest batch that keeps it low.

Of the events of a node within one batch only the latest updates its memory; the others are lost to it. DistTGL
(section 3.3, figure 8) counts what is captured by degree of the nodes and takes the largest batch whose loss is under a
threshold; it gives no number for it. Here the loss is the mean over all places where the first batch may begin, so that
it grows with the batch and does not hang on one cut of the stream: two events of a node that are ``d`` apart in the
stream fall in one batch of ``b`` with probability ``max(0, 1 - d / b)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_LOSS = 0.75
"""The share of updates that may be lost where nobody says another: Wikipedia's usual batch of 600 loses 0.73."""


@dataclass(frozen=True)
class EventDistances:
    """How far apart in the stream the consecutive events of nodes are.

    Attributes:
        distance: int64 [D], ascending, the distinct distances; 0 for the two ends of a self loop.
        count: int64 [D], pairs of events at that distance.
        mails: All ends of events of these nodes.
    """

    distance: np.ndarray
    count: np.ndarray
    mails: int

    def loss(self, batch_size: int) -> float:
        """Return the share of the mails that batches of ``batch_size`` events lose, in [0, 1]."""
        near = slice(0, np.searchsorted(self.distance, batch_size))
        return float(self.count[near] @ (1 - self.distance[near] / batch_size)) / max(self.mails, 1)

    def largest_batch(self, max_loss: float, num_events: int) -> int:
        """Return the largest batch, up to all events, whose loss is at most ``max_loss``; at least 1."""
        low, high = 1, num_events
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.loss(middle) <= max_loss else (low, middle - 1)
        return low


def loss_by_degree(nodes: np.ndarray, events: np.ndarray, sizes: Sequence[int]) -> dict[str, dict[int, float]]:
    """Return the share of the updates that batches lose, by decades of the degree of the nodes.

    Nodes of many events lose most (DistTGL, figure 8).

    Args:
        nodes: As of `event_distances`.
        events: As of `event_distances`.
        sizes: Of batches, in events.

    Returns:
        Of nodes with 1 to 9 events, 10 to 99 and so on, as far as there are any: the loss of each size.

    >>> loss_by_degree(np.array([0, 0, 1]), np.array([0, 1, 0]), [1, 4])
    {'1-9': {1: 0.0, 4: 0.25}}
    """
    degree = np.bincount(nodes)
    found, low = {}, 1
    while low <= degree.max(initial=0):
        chosen = (degree >= low) & (degree < 10 * low)
        if chosen.any():
            distances = event_distances(nodes, events, chosen)
            found[f"{low:,}-{10 * low - 1:,}"] = {size: distances.loss(size) for size in sizes}
        low *= 10
    return found


def event_distances(nodes: np.ndarray, events: np.ndarray, chosen: np.ndarray | None = None) -> EventDistances:
    """Count the distances between consecutive events of a node.

    Args:
        nodes: int64 [2E], the ends of all events, ascending.
        events: int64 [2E], the position of the event of each end, ascending for each node.
        chosen: bool [N], nodes that count; all if None.
    """
    if chosen is not None:
        counts = chosen[nodes]
        nodes, events = nodes[counts], events[counts]
    within = nodes[1:] == nodes[:-1]
    distance, count = np.unique((events[1:] - events[:-1])[within], return_counts=True)
    return EventDistances(distance, count, len(nodes))
