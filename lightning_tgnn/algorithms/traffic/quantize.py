"""Linear quantisation of rows to a few bits, and their packing into bytes (CDFGNN, section 5)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError

QUANTIZE_BITS = (2, 4, 8, 16)
Blocks = tuple[int, ...]
_BOUND_BYTES = 8  # two float32: the least and the greatest value of the row


def check_bits(bits: int | None) -> int | None:
    """Return ``bits`` if they are allowed; None means no quantisation.

    Raises:
        InvalidArgumentError: ``bits`` is neither None nor one of `QUANTIZE_BITS`.
    """
    if bits is not None and (type(bits) is not int or bits not in QUANTIZE_BITS):
        listed = ", ".join(map(str, QUANTIZE_BITS))
        raise InvalidArgumentError("bits", f"one of {listed}, or None", bits, "8 is usual, None sends float32")
    return bits


def quantized_width(columns: int, bits: int, blocks: Blocks = ()) -> int:
    """Return the bytes of a packed row of ``columns`` values; arguments are as in `quantize`."""
    return sum(_BOUND_BYTES + -(-width * bits // 8) for width in blocks or (columns,))


def block_ends(columns: int, blocks: Blocks) -> np.ndarray:
    """Return where blocks of columns end, int64 [b]."""
    return np.cumsum(blocks or (columns,), dtype=np.int64)


def quantize(rows: Tensor, bits: int, blocks: Blocks = ()) -> Tensor:
    """Return rows as bytes: each value as one of ``2**bits`` levels between the least and the greatest of its row.

    ``q = floor((2^B - 1)(m - min) / (max - min) + 1/2)``; the paper prints ``2^B``, whose greatest value does not
    fit in B bits. A row of equal values is kept as it is.

    Args:
        rows: float32 [n, k], finite.
        bits: B, one of `QUANTIZE_BITS`.
        blocks: Widths of blocks of columns, k in all. Each block is quantised like a row, which suits values of
            different size side by side. Empty for one block.

    Returns:
        uint8 [n, `quantized_width`].
    """
    count, columns = rows.shape
    if rows.device.type == "cpu" and columns:
        from lightning_tgnn.algorithms.traffic import quantize_loops  # late: the compiler takes a second to import

        data = torch.empty(count, quantized_width(columns, bits, blocks), dtype=torch.uint8)
        quantize_loops.quantize(rows.contiguous().numpy(), block_ends(columns, blocks), bits, data.numpy())
        return data
    return quantize_by_tensors(rows, bits, blocks)


def quantize_by_tensors(rows: Tensor, bits: int, blocks: Blocks = ()) -> Tensor:
    """Return the same as `quantize`, on any device."""
    return torch.cat([_quantized(block, bits) for block in rows.split(blocks or (rows.shape[1],), dim=1)], dim=1)


def _quantized(rows: Tensor, bits: int) -> Tensor:
    if not rows.shape[1]:
        return rows.new_zeros(len(rows), _BOUND_BYTES, dtype=torch.uint8)
    least, greatest = torch.aminmax(rows, dim=1, keepdim=True)
    bounds = torch.cat([least, greatest], dim=1).contiguous().view(torch.uint8)
    # In float64: the range of a row may be beyond float32, and one level of 16 bits is near its resolution.
    low = least.double()
    span = greatest.double() - low
    scale = torch.where(span > 0, (2**bits - 1) / span, 0.0)
    levels = ((rows.double() - low) * scale + 0.5).floor_()
    return torch.cat([bounds, _packed(levels, bits)], dim=1)


def dequantize(data: Tensor, columns: int, bits: int, blocks: Blocks = ()) -> Tensor:
    """Return the rows, float32 [n, k], that `quantize` has packed.

    Each value is within ``(max - min) / (2 (2^B - 1))`` of the original value, up to rounding in float32.
    """
    if data.device.type == "cpu" and columns:
        from lightning_tgnn.algorithms.traffic import quantize_loops

        rows = torch.empty(len(data), columns)
        quantize_loops.dequantize(data.contiguous().numpy(), block_ends(columns, blocks), bits, rows.numpy())
        return rows
    return dequantize_by_tensors(data, columns, bits, blocks)


def dequantize_by_tensors(data: Tensor, columns: int, bits: int, blocks: Blocks = ()) -> Tensor:
    """Return the same as `dequantize`, on any device."""
    widths = blocks or (columns,)
    parts = data.split([quantized_width(width, bits) for width in widths], dim=1)
    return torch.cat([_dequantized(part, width, bits) for part, width in zip(parts, widths, strict=True)], dim=1)


def _dequantized(data: Tensor, columns: int, bits: int) -> Tensor:
    if not columns:
        return data.new_zeros(len(data), 0, dtype=torch.float32)
    low, high = (
        data[:, :_BOUND_BYTES].clone(memory_format=torch.contiguous_format).view(torch.float32).double().split(1, dim=1)
    )
    levels = _unpacked(data[:, _BOUND_BYTES:], columns, bits).double()
    return (levels * ((high - low) / (2**bits - 1)) + low).float()


def _packed(levels: Tensor, bits: int) -> Tensor:
    if bits == 16:
        # torch has little arithmetic on uint16; int32 carries it, and its low half is kept.
        return levels.to(torch.int32).view(torch.uint8).view(*levels.shape, 4)[..., :2].flatten(1)
    values = levels.to(torch.uint8)
    each = 8 // bits
    if each == 1:
        return values
    if extra := -values.shape[1] % each:
        values = torch.cat([values, values.new_zeros(len(values), extra)], dim=1)
    parts = values.unflatten(1, (values.shape[1] // each, each))
    packed = parts[..., 0].clone()
    for place in range(1, each):
        packed |= parts[..., place] << (place * bits)
    return packed


def _unpacked(data: Tensor, columns: int, bits: int) -> Tensor:
    if bits == 16:
        low, high = data.unflatten(1, (columns, 2)).to(torch.int32).unbind(-1)
        return low | high << 8
    each = 8 // bits
    if each == 1:
        return data
    places = [data >> (place * bits) & (2**bits - 1) for place in range(each)]
    return torch.stack(places, dim=-1).flatten(1)[:, :columns]
