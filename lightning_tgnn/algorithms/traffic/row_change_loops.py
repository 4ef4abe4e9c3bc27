"""The compiled loops over changed rows on the CPU, which read and write each row once."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.algorithms.traffic.quantize_loops import decode_blocks, encode_blocks
from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def changed(values: Any, places: Any, sent: Any, ends: Any, threshold: float) -> Any:
    """Return where ``max |z - z~| > eps * max |z~|`` in a block, or a difference is NaN, and what is held back.

    Args:
        values: float32 [m, k].
        places: int64 [n], the rows of ``values`` that are z.
        sent: float32 [n, k], z~.
        ends: int64 [b], where blocks of columns end.
        threshold: eps.

    Returns:
        bool [n]; the sums of squares of ``z - z~`` over the other rows, and of ``z~`` over all.
    """
    going = np.zeros(len(sent), np.bool_)
    held = size = 0.0
    for row in range(len(sent)):
        value, old = values[places[row]], sent[row]
        squares = 0.0
        column = 0
        for end in ends:
            change = greatest = np.float32(0)
            while column < end:
                difference = abs(value[column] - old[column])
                going[row] |= difference != difference
                change = max(change, difference)
                greatest = max(greatest, abs(old[column]))
                squares += difference * difference
                size += old[column] * old[column]
                column += 1
            going[row] |= change > np.float32(threshold) * greatest
        if not going[row]:
            held += squares
    return going, held, size


@njit(nogil=True, cache=True)
def quantize_rows(values: Any, places: Any, ends: Any, bits: int, data: Any) -> Any:
    """Write rows quantised, and return the greatest error.

    Args:
        values: float32 [m, k], k at least 1.
        places: int64 [n], the rows of ``values`` to take.
        ends: int64 [b], where blocks of columns end.
        bits: 2, 4, 8 or 16.
        data: uint8 [n, bytes]; written.
    """
    decoded = np.empty(values.shape[1], np.float32)
    error = np.float32(0)
    for row in range(len(places)):
        value = values[places[row]]
        encode_blocks(value, ends, bits, data[row])
        decode_blocks(data[row], ends, bits, decoded)
        for column in range(len(decoded)):
            error = max(error, abs(value[column] - decoded[column]))
    return error


@njit(nogil=True, cache=True)
def quantize_changes(values: Any, places: Any, table: Any, entries: Any, ends: Any, bits: int, data: Any) -> Any:
    """Write the quantised difference of rows from a table, add it to the table, and return the greatest error.

    Args:
        values: float32 [m, k], k at least 1.
        places: int64 [n], the rows of ``values`` to take.
        table: float32 [t, k]; written.
        entries: int64 [n], distinct, the rows of the table with which they are compared.
        ends: int64 [b], where blocks of columns end.
        bits: 2, 4, 8 or 16.
        data: uint8 [n, bytes]; written.
    """
    difference = np.empty(values.shape[1], np.float32)
    decoded = np.empty(values.shape[1], np.float32)
    error = np.float32(0)
    for row in range(len(places)):
        value, old = values[places[row]], table[entries[row]]
        for column in range(len(difference)):
            difference[column] = value[column] - old[column]
        encode_blocks(difference, ends, bits, data[row])
        decode_blocks(data[row], ends, bits, decoded)
        for column in range(len(difference)):
            error = max(error, abs(difference[column] - decoded[column]))
            old[column] += decoded[column]
    return error


@njit(nogil=True, cache=True)
def add_quantized(table: Any, entries: Any, data: Any, ends: Any, bits: int) -> None:
    """Add quantised rows to rows of a table.

    Args:
        table: float32 [t, k]; written.
        entries: int64 [n], may repeat.
        data: uint8 [n, bytes].
        ends: int64 [b], where blocks of columns end.
        bits: 2, 4, 8 or 16.
    """
    decoded = np.empty(table.shape[1], np.float32)
    for row in range(len(entries)):
        decode_blocks(data[row], ends, bits, decoded)
        sums = table[entries[row]]
        for column in range(len(decoded)):
            sums[column] += decoded[column]


@njit(nogil=True, cache=True)
def add_rows(table: Any, entries: Any, rows: Any) -> None:
    """Add rows to a table.

    Args:
        table: float32 [t, k]; written.
        entries: int64 [n], may repeat; rows whose entry is negative are left out.
        rows: float32 [n, k].
    """
    for row in range(len(entries)):
        if entries[row] >= 0:
            sums = table[entries[row]]
            for column in range(table.shape[1]):
                sums[column] += rows[row, column]
