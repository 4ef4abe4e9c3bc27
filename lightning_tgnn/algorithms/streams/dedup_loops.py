"""Compiled loops of the redundancy-free organisation on the CPU.

What they find is written to arrays that they are given, and a loop returns a number only: numba makes SystemError of
Ctrl-C where it has arrays to return.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def organize(entries: Any, slots: Any, num_slots: int, distinct: Any, last: Any, position: Any) -> int:
    """Find distinct entries, and return how many there are.

    Args:
        entries: int64 [L].
        slots: int64 [L], below ``num_slots``, equal where entries are.
        num_slots: Length of the table.
        distinct: int64 [L], begins afterwards with the distinct entries.
        last: int64 [L], begins afterwards with their last positions.
        position: int64 [L], becomes the position of every entry among the distinct ones.
    """
    length = len(entries)
    # Uninitialised on purpose: only the slots that occur are read, and the first pass writes them.
    table = np.empty(num_slots, np.int64)
    for i in range(length - 1, -1, -1):
        table[slots[i]] = i
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
    return count


@njit(nogil=True, cache=True)
def last_mails(mailed: Any, sides: Any, slots: Any, num_slots: int, receivers: Any, source: Any) -> int:
    """Find the distinct receivers of mails, in first-seen order, and return how many there are.

    Args:
        mailed: int64 [B, W], whom every event mails, one after the other.
        sides: int64 [W], which side of the event does so.
        slots: int64 [B, W], below ``num_slots``, equal where nodes are.
        num_slots: Length of the table.
        receivers: int64 [B W], begins afterwards with the receivers.
        source: int64 [B W], begins afterwards with the side of the latest event that mails each.
    """
    events, width = mailed.shape
    # Uninitialised on purpose: only the slots that occur are read, and the first pass writes them.
    table = np.empty(num_slots, np.int32)
    for event in range(events):
        for column in range(width):
            table[slots[event, column]] = -1
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
    return count
