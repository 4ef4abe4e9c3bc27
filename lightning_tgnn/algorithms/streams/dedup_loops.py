"""The compiled loop of the redundancy-free organisation on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def organize(entries: Any, slots: Any, num_slots: int) -> Any:
    """Return distinct entries, their last positions, and the position of every entry among them.

    Args:
        entries: int64 [L].
        slots: int64 [L], below ``num_slots``, equal where entries are.
        num_slots: Length of the table.
    """
    length = len(entries)
    # Uninitialised on purpose: only the slots that occur are read, and the first pass writes them.
    table = np.empty(num_slots, np.int64)
    for i in range(length - 1, -1, -1):
        table[slots[i]] = i
    distinct, last, position = np.empty_like(entries), np.empty_like(entries), np.empty_like(entries)
    count = 0
    for i in range(length):
        first = table[slots[i]]
        if first == i:
            distinct[count] = entries[i]
            position[i] = count
            count += 1
        else:
            position[i] = position[first]
        last[position[i]] = i
    return distinct[:count].copy(), last[:count].copy(), position
