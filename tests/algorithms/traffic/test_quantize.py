"""Quantisation to bits: the error bound, the packing, constant rows, and every B."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lightning_tgnn.algorithms.traffic.quantize import (
    QUANTIZE_BITS,
    check_bits,
    dequantize,
    dequantize_by_tensors,
    quantize,
    quantize_by_tensors,
    quantized_width,
)
from lightning_tgnn.checks import InvalidArgumentError

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
ROWS = hnp.arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(0, 9)), elements=FINITE)


@settings(deadline=None)  # loops are compiled in the first one
@given(ROWS, st.sampled_from(QUANTIZE_BITS))
def test_the_error_is_at_most_half_a_level(values, bits):
    rows = torch.from_numpy(values)
    data = quantize(rows, bits)
    assert data.dtype == torch.uint8
    assert data.shape == (len(rows), quantized_width(rows.shape[1], bits))
    back = dequantize(data, rows.shape[1], bits)
    if not rows.numel():
        assert back.shape == rows.shape
        return
    low, high = rows.double().aminmax(dim=1, keepdim=True)
    rounding = torch.maximum(low.abs(), high.abs()) * 2**-23 + 1e-37
    assert ((back.double() - rows.double()).abs() <= (high - low) / (2 * (2**bits - 1)) + rounding).all()
    constant = (low == high).squeeze(1)
    assert torch.equal(back[constant], rows[constant])
    # Zeros of either sign are equal, so the bytes need not be.
    assert torch.equal(dequantize(quantize_by_tensors(rows, bits), rows.shape[1], bits), back)
    torch.testing.assert_close(dequantize_by_tensors(data, rows.shape[1], bits), back, rtol=1e-6, atol=0)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from(QUANTIZE_BITS), st.integers(0, 99))
def test_blocks_are_quantised_each_by_itself(blocks, bits, seed):
    rows = torch.randn(3, sum(blocks), generator=torch.Generator().manual_seed(seed))
    data = quantize(rows, bits, tuple(blocks))
    assert data.shape == (3, quantized_width(sum(blocks), bits, tuple(blocks)))
    parts = [quantize(part.contiguous(), bits) for part in rows.split(blocks, dim=1)]
    assert torch.equal(data, torch.cat(parts, dim=1))
    assert torch.equal(data, quantize_by_tensors(rows, bits, tuple(blocks)))
    back = [dequantize(part, width, bits) for part, width in zip(parts, blocks, strict=True)]
    assert torch.equal(dequantize(data, sum(blocks), bits, tuple(blocks)), torch.cat(back, dim=1))
    by_tensors = dequantize_by_tensors(data, sum(blocks), bits, tuple(blocks))
    torch.testing.assert_close(by_tensors, torch.cat(back, dim=1), rtol=1e-6, atol=1e-7)


def by_hand(row, bits):
    """The levels of a row, one value after the other, and the bytes that they fill from the lowest bit on."""
    low, high = min(row), max(row)
    levels = [round((2**bits - 1) * (value - low) / (high - low)) for value in row]
    number = sum(level << (place * bits) for place, level in enumerate(levels))
    length = -(-len(row) * bits // 8)
    return np.array([low, high], np.float32).tobytes() + number.to_bytes(length, "little")


@pytest.mark.parametrize("bits", QUANTIZE_BITS)
def test_the_bytes_are_those_written_out_by_hand(bits):
    row = [0.0, 3.0, 1.0, 2.875, 0.375]
    assert bytes(quantize(torch.tensor([row]), bits)[0].tolist()) == by_hand(row, bits)


def test_errors_do_not_add_up_over_500_epochs_of_constant_input():
    rows = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    for bits in QUANTIZE_BITS:
        sent = torch.zeros_like(rows)
        errors = []
        for _ in range(500):
            sent += dequantize(quantize(rows - sent, bits), 33, bits)
            errors.append(float((rows - sent).abs().max()))
        first = float((rows.amax(1) - rows.amin(1)).max()) / (2 * (2**bits - 1)) + 1e-6
        assert max(errors) <= first
        assert errors[-1] <= 1e-6  # what is left is sent with ever finer levels


@pytest.mark.parametrize("bits", [1, 3, 32, True, 8.5, "8"])
def test_other_bits_are_refused(bits):
    with pytest.raises(InvalidArgumentError, match="bits must be one of 2, 4, 8, 16, or None"):
        check_bits(bits)
