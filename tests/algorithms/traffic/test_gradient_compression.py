"""Compressed gradients: what they decode to, how many bytes they are, and what is no number in them."""

from math import prod

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from lightning_tgnn.algorithms.traffic.gradient_compression import (
    COMPRESSIONS,
    BFloat16,
    Int8,
    PowerSGD,
    compressed_bytes,
    gradient_compression,
)

BLOCK = 256
SHAPES = st.lists(st.lists(st.integers(1, 40), max_size=3), max_size=5)


@seed(17)
@settings(max_examples=40, deadline=None)
@given(draw=st.integers(0, 2**31), blocks=st.integers(0, 4), size=st.sampled_from([1e-30, 1e-6, 1.0, 1e30]))
def test_int8_is_within_half_a_level_of_its_block(draw, blocks, size):
    generator = torch.Generator().manual_seed(draw)
    values = size * torch.randn(blocks * BLOCK, generator=generator)
    values[torch.rand(values.shape, generator=generator) < 0.3] = 0
    data = Int8().encode(values)
    assert (data.dtype, data.shape) == (torch.uint8, (blocks, BLOCK + 4))
    found, rows = Int8().decode(data), values.view(-1, BLOCK)
    level = rows.abs().amax(1, keepdim=True) / 127 if blocks else rows
    assert ((found.view(-1, BLOCK) - rows).abs() <= 0.5001 * level).all()
    assert (found[values == 0] == 0).all()
    assert torch.equal(Int8().encode(found), data)  # nothing more is lost


@seed(18)
@settings(max_examples=30, deadline=None)
@given(draw=st.integers(0, 2**31), count=st.integers(0, 300))
def test_bfloat16_is_that_of_torch(draw, count):
    values = torch.randn(count, generator=torch.Generator().manual_seed(draw))
    data = BFloat16().encode(values)
    assert (data.dtype, data.shape) == (torch.uint8, (count, 2))
    assert torch.equal(BFloat16().decode(data), values.bfloat16().float())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_none_afterwards(value):
    values = torch.ones(2 * BLOCK)
    values[BLOCK + 3] = value
    assert torch.equal(BFloat16().decode(BFloat16().encode(values)).isfinite(), values.isfinite())
    found = Int8().decode(Int8().encode(values))
    assert not found[BLOCK:].isfinite().any()
    assert torch.equal(found[:BLOCK], values[:BLOCK])


@seed(19)
@settings(max_examples=60, deadline=None)
@given(shapes=SHAPES, rank=st.integers(1, 6))
def test_narrow_matrices_are_those_of_the_hook(shapes, rank):
    plain = left = right = 0
    for shape in shapes:
        ways = [(prod(shape[:cut]), prod(shape[cut:])) for cut in range(1, max(len(shape), 2))]
        rows, columns = next(way for way in ways if sum(way) == min(map(sum, ways)))
        matrix = torch.empty(shape).view(rows, columns)
        of_matrix = min(rows, columns, rank)
        if powerSGD_hook._should_compress(rows, columns, of_matrix, PowerSGD.least_gain)[0]:
            left, right = left + rows * of_matrix, right + columns * of_matrix
        else:
            plain += matrix.numel()
    assert PowerSGD(rank).narrow_sizes(shapes) == (plain, left, right)
    assert PowerSGD(rank).nbytes(shapes) == 4 * (plain + left + right)


@seed(20)
@settings(max_examples=30, deadline=None)
@given(shapes=SHAPES)
def test_bytes_are_those_of_what_is_encoded(shapes):
    for kind in (BFloat16(), Int8()):
        found = 0
        for shape in shapes:
            values = torch.ones(shape).flatten()
            filled = torch.cat([values, values.new_zeros(-len(values) % kind.block)])
            found += kind.encode(filled).numel()
        assert kind.nbytes(shapes) == found
    whole = [[BLOCK, 3], [BLOCK]]
    for name in ("bfloat16", "int8"):
        assert compressed_bytes(name, 4 * 4 * BLOCK) == gradient_compression(name).nbytes(whole)
    assert compressed_bytes("powersgd", 1e6) is None


def test_names_are_of_the_kinds():
    assert [type(gradient_compression(name)) for name in COMPRESSIONS] == [BFloat16, Int8, PowerSGD]
    assert gradient_compression(None) is None
    assert gradient_compression(PowerSGD(2)) == PowerSGD(rank=2, warm_up=100)
