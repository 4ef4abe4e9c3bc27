"""The compiled loops of quantisation and of the comparison with what was last sent, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def quantize(rows: Any, bits: int, bounds: Any, packed: Any) -> None:
    """Write the bounds and the packed levels of rows.

    Args:
        rows: float32 [n, k], k at least 1.
        bits: 2, 4, 8 or 16.
        bounds: float32 [n, 2]; written.
        packed: uint8 [n, bytes]; written.
    """
    count, columns = rows.shape
    each = 8 // bits if bits < 8 else 1
    for row in range(count):
        low = high = rows[row, 0]
        for column in range(1, columns):
            low, high = min(low, rows[row, column]), max(high, rows[row, column])
        bounds[row, 0], bounds[row, 1] = low, high
        span = np.float64(high) - np.float64(low)
        scale = (2.0**bits - 1.0) / span if span > 0 else 0.0
        first = np.float64(low)
        if bits == 8:
            for column in range(columns):
                packed[row, column] = np.uint8((np.float64(rows[row, column]) - first) * scale + 0.5)
        elif bits == 16:
            for column in range(columns):
                level = np.int32((np.float64(rows[row, column]) - first) * scale + 0.5)
                packed[row, 2 * column] = np.uint8(level & 255)
                packed[row, 2 * column + 1] = np.uint8(level >> 8)
        else:
            packed[row] = 0
            for column in range(columns):
                small = np.uint8((np.float64(rows[row, column]) - first) * scale + 0.5)
                packed[row, column // each] |= np.uint8(small << ((column % each) * bits))


@njit(nogil=True, cache=True)
def dequantize(bounds: Any, packed: Any, bits: int, rows: Any) -> None:
    """Write the rows of what `quantize` has written.

    Args:
        bounds: float32 [n, 2].
        packed: uint8 [n, bytes].
        bits: 2, 4, 8 or 16.
        rows: float32 [n, k]; written.
    """
    count, columns = rows.shape
    each = 8 // bits if bits < 8 else 1
    mask = 2**bits - 1
    for row in range(count):
        first = np.float64(bounds[row, 0])
        step = (np.float64(bounds[row, 1]) - first) / (2.0**bits - 1.0)
        if bits == 8:
            for column in range(columns):
                rows[row, column] = np.float32(packed[row, column] * step + first)
        elif bits == 16:
            for column in range(columns):
                level = packed[row, 2 * column] + 256.0 * packed[row, 2 * column + 1]
                rows[row, column] = np.float32(level * step + first)
        else:
            for column in range(columns):
                level = (packed[row, column // each] >> ((column % each) * bits)) & mask
                rows[row, column] = np.float32(level * step + first)


@njit(nogil=True, cache=True)
def rows_to_send(values: Any, sent: Any, threshold: float) -> Any:
    """Return bool [n], where ``max |z - z~| > eps * max |z~|``.

    Args:
        values: float32 [n, k], z.
        sent: float32 [n, k], z~.
        threshold: eps.
    """
    count, columns = values.shape
    going = np.empty(count, np.bool_)
    for row in range(count):
        change = greatest = np.float32(0)
        for column in range(columns):
            change = max(change, abs(values[row, column] - sent[row, column]))
            greatest = max(greatest, abs(sent[row, column]))
        going[row] = change > np.float32(threshold) * greatest
    return going
