"""The compiled loops that turn rows of node state into bytes and back on the CPU, each in one pass over memory.

Bytes are given as three views of the same memory, float64, int64 and float32 [n, ...]. A row is its memory's time, the
count of its mails, its memory, and for each slot a mail's time, its event and the part of the mail that travels.
Columns of float32 fill up to a multiple of 8 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def pack(places: Any, tables: Any, first: int, carried: int, times: Any, numbers: Any, values: Any) -> None:
    """Write rows of tables as bytes.

    Args:
        places: int64 [n], rows of the tables.
        tables: Memory, its time, mails, their times and events, and their count, of all rows.
        first: Where in a mail the part that travels begins.
        carried: How many values of a mail travel.
        times: The bytes; written.
        numbers: The bytes; written.
        values: The bytes; written.
    """
    memory, memory_time, mails, mail_time, mail_event, mail_count = tables
    dim, slots = memory.shape[1], mails.shape[1]
    for i in range(len(places)):
        row = places[i]
        times[i, 0], numbers[i, 1] = memory_time[row], mail_count[row]
        for column in range(dim):
            values[i, 4 + column] = memory[row, column]
        if dim % 2:
            values[i, 4 + dim] = 0
        begin = 4 + dim + dim % 2
        for slot in range(slots):
            times[i, begin // 2], numbers[i, begin // 2 + 1] = mail_time[row, slot], mail_event[row, slot]
            for column in range(carried):
                values[i, begin + 4 + column] = mails[row, slot, first + column]
            if carried % 2:
                values[i, begin + 4 + carried] = 0
            begin += 4 + carried + carried % 2


@njit(nogil=True, cache=True)
def gather(
    places: Any, tables: Any, packed: Any, first: int, times: Any, numbers: Any, values: Any, looked_up: Any, made: Any
) -> None:
    """Join rows of tables and rows given as bytes.

    Args:
        places: int64 [n], rows of the tables, for rows that come from the tables.
        tables: As for `pack`.
        packed: int64 [n], rows of the bytes; below 0 for a row of the tables.
        first: How many values of a mail repeat its row's memory and do not travel.
        times: The bytes.
        numbers: The bytes.
        values: The bytes.
        looked_up: float32 [E, k], features of events, which are the last values of a mail and do not travel, and what
            is taken off each of them and multiplied with the rest, float32 [k] each; k may be 0.
        made: Tables of n rows; written.
    """
    memory, memory_time, mails, mail_time, mail_event, mail_count = tables
    to_memory, to_memory_time, to_mails, to_mail_time, to_mail_event, to_mail_count = made
    features, shift, scale = looked_up
    dim, slots, width, own = memory.shape[1], mails.shape[1], mails.shape[2], features.shape[1]
    carried = width - first - own
    for i in range(len(places)):
        row = packed[i]
        if row < 0:
            row = places[i]
            to_memory_time[i], to_mail_count[i] = memory_time[row], mail_count[row]
            for column in range(dim):
                to_memory[i, column] = memory[row, column]
            for slot in range(slots):
                to_mail_time[i, slot], to_mail_event[i, slot] = mail_time[row, slot], mail_event[row, slot]
                for column in range(width):
                    to_mails[i, slot, column] = mails[row, slot, column]
            continue
        to_memory_time[i], to_mail_count[i] = times[row, 0], numbers[row, 1]
        for column in range(dim):
            to_memory[i, column] = values[row, 4 + column]
        begin = 4 + dim + dim % 2
        for slot in range(slots):
            event = numbers[row, begin // 2 + 1]
            to_mail_time[i, slot], to_mail_event[i, slot] = times[row, begin // 2], event
            for column in range(first):
                to_mails[i, slot, column] = values[row, 4 + column]
            for column in range(carried):
                to_mails[i, slot, first + column] = values[row, begin + 4 + column]
            filled = slot < numbers[row, 1]
            for column in range(own):
                value = (features[event, column] - shift[column]) * scale[column] if filled else np.float32(0)
                to_mails[i, slot, first + carried + column] = value
            begin += 4 + carried + carried % 2
