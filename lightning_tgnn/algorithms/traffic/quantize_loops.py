"""The compiled loops of quantisation, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit

BOUND_BYTES = 8  # two float32: the least and the greatest value of the row


@njit(nogil=True, cache=True)
def encode_row(row: Any, bits: int, data: Any) -> None:
    """Write the bounds and the packed levels of a row.

    Args:
        row: float32 [k], k at least 1.
        bits: 2, 4, 8 or 16.
        data: uint8 [bytes]; written.
    """
    columns = len(row)
    low = high = row[0]
    for column in range(1, columns):
        low, high = min(low, row[column]), max(high, row[column])
    bounds = np.empty(2, np.float32)
    bounds[0], bounds[1] = low, high
    data[:BOUND_BYTES] = bounds.view(np.uint8)
    span = np.float64(high) - np.float64(low)
    scale = (2.0**bits - 1.0) / span if span > 0 else 0.0
    first = np.float64(low)
    packed = data[BOUND_BYTES:]
    if bits == 8:
        for column in range(columns):
            packed[column] = np.uint8((np.float64(row[column]) - first) * scale + 0.5)
    elif bits == 16:
        for column in range(columns):
            level = np.int32((np.float64(row[column]) - first) * scale + 0.5)
            packed[2 * column] = np.uint8(level & 255)
            packed[2 * column + 1] = np.uint8(level >> 8)
    else:
        each = 8 // bits
        packed[:] = 0
        for column in range(columns):
            small = np.uint8((np.float64(row[column]) - first) * scale + 0.5)
            packed[column // each] |= np.uint8(small << ((column % each) * bits))


@njit(nogil=True, cache=True)
def decode_row(data: Any, bits: int, row: Any) -> None:
    """Write the row that `encode_row` has packed.

    Args:
        data: uint8 [bytes].
        bits: 2, 4, 8 or 16.
        row: float32 [k]; written.
    """
    columns = len(row)
    bounds = np.empty(2, np.float32)
    bounds.view(np.uint8)[:] = data[:BOUND_BYTES]
    first = np.float64(bounds[0])
    step = (np.float64(bounds[1]) - first) / (2.0**bits - 1.0)
    packed = data[BOUND_BYTES:]
    if bits == 8:
        for column in range(columns):
            row[column] = np.float32(packed[column] * step + first)
    elif bits == 16:
        for column in range(columns):
            level = packed[2 * column] + 256.0 * packed[2 * column + 1]
            row[column] = np.float32(level * step + first)
    else:
        each, mask = 8 // bits, 2**bits - 1
        for column in range(columns):
            level = (packed[column // each] >> ((column % each) * bits)) & mask
            row[column] = np.float32(level * step + first)


@njit(nogil=True, cache=True)
def encode_blocks(row: Any, ends: Any, bits: int, data: Any) -> None:
    """Write a row, float32 [k], whose blocks of columns end at ``ends`` (int64 [b]), as uint8 [bytes]."""
    start = at = 0
    for end in ends:
        size = BOUND_BYTES + ((end - start) * bits + 7) // 8
        encode_row(row[start:end], bits, data[at : at + size])
        start, at = end, at + size


@njit(nogil=True, cache=True)
def decode_blocks(data: Any, ends: Any, bits: int, row: Any) -> None:
    """Write the row that `encode_blocks` has packed, uint8 [bytes], as float32 [k]."""
    start = at = 0
    for end in ends:
        size = BOUND_BYTES + ((end - start) * bits + 7) // 8
        decode_row(data[at : at + size], bits, row[start:end])
        start, at = end, at + size


@njit(nogil=True, cache=True)
def quantize(rows: Any, ends: Any, bits: int, data: Any) -> None:
    """Write float32 [n, k] as uint8 [n, bytes]."""
    for row in range(len(rows)):
        encode_blocks(rows[row], ends, bits, data[row])


@njit(nogil=True, cache=True)
def dequantize(data: Any, ends: Any, bits: int, rows: Any) -> None:
    """Write uint8 [n, bytes] as float32 [n, k]."""
    for row in range(len(rows)):
        decode_blocks(data[row], ends, bits, rows[row])
