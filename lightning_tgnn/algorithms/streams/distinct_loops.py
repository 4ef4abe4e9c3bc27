"""Compiled loops that number distinct values, and the distinct rows of a table, in first-seen order.

Both use a hash table with linear probing (Knuth, "The Art of Computer Programming" 3, 6.4, algorithm L).
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


@njit(nogil=True, cache=True)
def number_rows(rows: Any, slots: Any, codes: Any, first: Any) -> int:
    """Number distinct rows in first-seen order, and return how many there are.

    Args:
        rows: uint64 [E, W].
        slots: int64 [2^b], more than E, all -1.
        codes: int64 [E], becomes the number of every row.
        first: int64 [E], begins afterwards with the place of the first row of every number.
    """
    last_slot = np.uint64(len(slots) - 1)
    count = 0
    for i in range(rows.shape[0]):
        key = np.uint64(0)
        for w in range(rows.shape[1]):
            key = (key ^ rows[i, w]) * FACTOR
            key ^= key >> HALF
        slot = key & last_slot
        while slots[slot] >= 0 and not _are_equal(rows, i, first[slots[slot]]):
            slot = (slot + np.uint64(1)) & last_slot
        if slots[slot] < 0:
            slots[slot], first[count] = count, i
            count += 1
        codes[i] = slots[slot]
    return count


@njit(nogil=True, cache=True)
def _are_equal(rows: Any, i: int, j: int) -> bool:
    w = 0
    while w < rows.shape[1] and rows[i, w] == rows[j, w]:
        w += 1
    return w == rows.shape[1]
