"""Compiled loops that number distinct values in first-seen order.

They use a hash table with linear probing (Knuth, "The Art of Computer Programming" 3, 6.4, algorithm L).
"""

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
