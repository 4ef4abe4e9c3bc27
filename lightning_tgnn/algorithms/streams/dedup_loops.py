"""Compiled loops of the redundancy-free organisation on the CPU."""

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


@njit(nogil=True, cache=True)
def last_mails(mailed: Any, sides: Any, slots: Any, num_slots: int) -> Any:
    """Return the distinct receivers of mails, in first-seen order, and the side of the latest event that mails each.

    Args:
        mailed: int64 [B, W], whom every event mails, one after the other.
        sides: int64 [W], which side of the event does so.
        slots: int64 [B, W], below ``num_slots``, equal where nodes are.
        num_slots: Length of the table.
    """
    events, width = mailed.shape
    # Uninitialised on purpose: only the slots that occur are read, and the first pass writes them.
    table = np.empty(num_slots, np.int32)
    for event in range(events):
        for column in range(width):
            table[slots[event, column]] = -1
    receivers, source = np.empty(events * width, np.int64), np.empty(events * width, np.int64)
    count = 0
    for event in range(events):
        for column in range(width):
            place = table[slots[event, column]]
            if place < 0:
                place = count
                table[slots[event, column]] = count
                receivers[count] = mailed[event, column]
                count += 1
            source[place] = event + sides[column] * events
    return receivers[:count].copy(), source[:count].copy()
