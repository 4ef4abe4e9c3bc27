"""Compiled loops of the redundancy-free organisation on the CPU.

The loops write results to given arrays and return a number only. If a loop returned arrays, numba would turn Ctrl-C
into a SystemError.
"""

from __future__ import annotations

from typing import Any

from lightning_tgnn.algorithms.streams.distinct_loops import empty_table, number
from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def organize(entries: Any, distinct: Any, last: Any, position: Any) -> int:
    """Find distinct entries, and return how many there are.

    Args:
        entries: int64 [L].
        distinct: int64 [L], begins afterwards with the distinct entries.
        last: int64 [L], begins afterwards with their last positions.
        position: int64 [L], becomes the position of every entry among the distinct ones.
    """
    table, count = empty_table(len(entries)), 0
    for i in range(len(entries)):
        place, count = number(entries[i], table, distinct, count)
        position[i], last[place] = place, i
    return count


@njit(nogil=True, cache=True)
def last_mails(ends: Any, neighbors: Any, receivers: Any, source: Any) -> int:
    """Find the distinct receivers of mails, in first-seen order, and return how many there are.

    Args:
        ends: int64 [B, 2], both sides of every event.
        neighbors: int64 [B, 2, K], the neighbours that either side mails as well.
        receivers: int64 [2 B (K + 1)], begins afterwards with the receivers.
        source: int64 [2 B (K + 1)], begins afterwards with the side of the latest event that mails each.
    """
    events, table, count = len(ends), empty_table(len(receivers)), 0
    for event in range(events):
        for side in range(2):
            for k in range(neighbors.shape[2]):
                place, count = number(neighbors[event, side, k], table, receivers, count)
                source[place] = event + side * events
        for side in range(2):
            place, count = number(ends[event, side], table, receivers, count)
            source[place] = event + side * events
    return count
