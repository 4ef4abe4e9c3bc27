"""Compiled loop that numbers the distinct rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit

FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Knuth, section 6.4, multiplicative hashing
HALF = np.uint64(32)


@njit(nogil=True, cache=True)
def number_rows(rows: Any, slots: Any, codes: Any, first: Any) -> int:
    """Number distinct rows in first-seen order, and return how many there are.

    A hash table with linear probing (Knuth, "The Art of Computer Programming" 3, 6.4, algorithm L).

    Args:
        rows: uint64 [E, W].
        slots: int64 [2^b], more than E, all -1.
        codes: int64 [E], becomes the number of every row.
        first: int64 [E], begins afterwards with the place of the first of every number.
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
