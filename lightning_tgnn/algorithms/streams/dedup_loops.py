"""Compiled loops that number distinct values, and the redundancy-free organisation on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit

FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Knuth, section 6.4, multiplicative hashing
HALF = np.uint64(32)


@njit(nogil=True, cache=True)
def empty_table(entries: int) -> Any:
    """Return a hash table for at most ``entries`` values that is never more than half full."""
    size = 1
    while size < 2 * entries:
        size *= 2
    return np.full(size, -1, np.int32)


@njit(nogil=True, cache=True)
def number(value: int, table: Any, values: Any, count: int) -> Any:
    """Return the number of a value and the count; a new value gets number ``count`` and is listed in ``values``."""
    last = np.uint64(len(table) - 1)
    key = np.uint64(value) * FACTOR
    slot = (key ^ (key >> HALF)) & last
    while table[slot] >= 0 and values[table[slot]] != value:
        slot = (slot + np.uint64(1)) & last
    if table[slot] < 0:
        table[slot], values[count] = count, value
        return count, count + 1
    return table[slot], count


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
