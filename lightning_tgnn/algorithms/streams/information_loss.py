"""How much of a stream node memory misses when events come in batches, and the largest batch that keeps it low.

If a node has several events within one batch, only the latest updates its memory, and the others are lost. DistTGL
(section 3.3, figure 8) counts the captured events by degree of the nodes, and takes the largest batch whose loss is
under a threshold. The paper gives no number for the threshold. Here the loss is the mean over all places where the
first batch may begin, so that it grows with the batch and does not depend on one cut of the stream. Two events of a
node that are ``d`` apart in the stream fall in one batch of ``b`` with probability ``max(0, 1 - d / b)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

MAX_LOSS = 0.75
"""The share of updates that may be lost where nobody says another: Wikipedia's usual batch of 600 loses 0.73."""
BUSIEST = 0.1
"""The share of the nodes with events that count as busy."""


@dataclass(frozen=True)
class EventDistances:
    """How far apart in the stream the consecutive events of nodes are.

    Attributes:
        distance: int64 [D], ascending, the distinct distances; 0 for the two ends of a self loop.
        count: int64 [D], pairs of events at that distance.
        mails: The number of ends of events that these nodes have.
    """

    distance: np.ndarray
    count: np.ndarray
    mails: int

    def loss(self, batch_size: int) -> float:
        """Return the share of the mails that batches of ``batch_size`` events lose, in [0, 1]."""
        near = slice(0, np.searchsorted(self.distance, batch_size))
        lost = int(self.count[near] @ (batch_size - self.distance[near]))
        return share_lost(lost, batch_size, self.mails)

    def largest_batch(self, max_loss: float, num_events: int) -> int:
        """Return the largest batch, from 1 to all events, whose loss is at most ``max_loss``."""
        return largest_batch(self.loss, max_loss, num_events)


def share_lost(lost: int, batch_size: int, mails: int) -> float:
    """Return the share of the mails that batches lose, correctly rounded.

    Args:
        lost: Sum of ``batch_size - distance`` over pairs of consecutive events of a node that are less than
            ``batch_size`` apart.
        batch_size: In events.
        mails: The number of ends of all events.
    """
    return lost / (batch_size * max(mails, 1))


def largest_batch(loss: Callable[[int], float], max_loss: float, num_events: int) -> int:
    """Return the largest batch, from 1 to all events, whose ascending ``loss`` is at most ``max_loss``."""
    low, high = 1, num_events
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if loss(middle) <= max_loss else (low, middle - 1)
    return low


class LossByKind:
    """The loss of all nodes, of the busiest nodes and of each decade of degrees, added up from pieces of a stream.

    Nodes of many events lose most (DistTGL, figure 8).

    Args:
        degree: int64 [N], the ends of events of every node, at least one of them above 0.
        sizes: Sizes of batches, in events.
        busiest: Share of the nodes with events that count as the busiest.
    """

    def __init__(self, degree: np.ndarray, sizes: Sequence[int], busiest: float) -> None:
        self._decade = np.searchsorted(10 ** np.arange(19), degree, side="right")  # 1 for nodes of 1 to 9 events
        self._busy = busy_nodes(degree, busiest)
        self._sizes = np.array(sizes, np.int64)
        kinds = 2 * self._decade + self._busy
        self._mails = np.bincount(kinds, degree, 40).astype(np.int64)  # exact: below 2^53
        self._lost = np.zeros((40, len(sizes)), np.int64)

    def add(self, nodes: np.ndarray, distances: np.ndarray) -> None:
        """Add pairs of consecutive events, int64 [D] each: their node and how far apart in the stream they are."""
        from lightning_tgnn.algorithms.streams.statistics_loops import add_lost  # imports the compiler

        add_lost(distances, 2 * self._decade[nodes] + self._busy[nodes], self._sizes, self._lost)

    def losses(self) -> dict[int, float]:
        """Return the loss of all nodes for each size."""
        return self._losses(slice(None))

    def busiest_losses(self) -> dict[int, float]:
        """Return the loss of the busiest nodes for each size."""
        return self._losses(slice(1, None, 2))

    def by_degree(self) -> dict[str, dict[int, float]]:
        """Return the loss of nodes with 1 to 9 events, 10 to 99 and so on, for each size, where there are any."""
        there = [decade for decade in range(1, 20) if self._mails[2 * decade : 2 * decade + 2].any()]
        return {
            f"{10 ** (decade - 1):,}-{10**decade - 1:,}": self._losses(slice(2 * decade, 2 * decade + 2))
            for decade in there
        }

    def _losses(self, kinds: slice) -> dict[int, float]:
        mails, lost = int(self._mails[kinds].sum()), self._lost[kinds].sum(0).tolist()
        return {size: share_lost(one, size, mails) for size, one in zip(self._sizes.tolist(), lost, strict=True)}


def busy_nodes(degree: np.ndarray, busiest: float = BUSIEST) -> np.ndarray:
    """Return which nodes have the most events, bool [N].

    Args:
        degree: int64 [N], the ends of events of every node, at least one of them above 0.
        busiest: Share of the nodes with events that count.
    """
    return degree >= max(np.quantile(degree[degree > 0], 1 - busiest), 1)


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
