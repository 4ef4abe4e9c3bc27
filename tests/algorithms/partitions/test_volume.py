from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.algorithms.partitions.partition_cost import (
    BatchShape,
    depcache_volume,
    depcomm_volume,
    sven_volume,
)

SHAPE = BatchShape(
    ranks=4,
    memory_dim=100,
    message_dim=372,
    sampled=24_000,
    sampled_redundancy=0.9,
    original=2_400,
    original_redundancy=0.5,
)

shapes = st.builds(
    BatchShape,
    ranks=st.integers(1, 64),
    memory_dim=st.integers(1, 500),
    message_dim=st.integers(1, 2000),
    sampled=st.integers(0, 10**6),
    sampled_redundancy=st.floats(0, 1),
    original=st.integers(1, 10**6),
    original_redundancy=st.floats(0, 0.99),
)


def counted(shape):
    """Elements at senders and receivers, hop by hop, with a share (M - 1) / M of the rows on another rank."""
    row = shape.memory_dim + shape.message_dim
    fetched = shape.sampled - shape.sampled * shape.sampled_redundancy
    written = shape.original - shape.original * shape.original_redundancy
    elsewhere = (shape.ranks - 1) / shape.ranks
    ends = 2
    return {
        sven_volume: ends * elsewhere * row * (fetched + written),
        depcomm_volume: ends * elsewhere * (shape.sampled * shape.memory_dim + written * row),
        depcache_volume: ends * elsewhere * written * row * (shape.ranks - 1),
    }


@given(shapes)
def test_equal_the_printed_formulas(shape):
    for volume, expected in counted(shape).items():
        assert volume(shape) == pytest.approx(expected, abs=1e-3)


def test_by_hand():
    assert sven_volume(SHAPE) == pytest.approx((2_400 + 1_200) * 472 * 1.5)
    assert depcomm_volume(SHAPE) == pytest.approx((24_000 * 100 + 1_200 * 472) * 1.5)
    assert depcache_volume(SHAPE) == pytest.approx(1_200 * 472 * 4.5)


def test_one_rank_sends_nothing():
    assert {volume(replace(SHAPE, ranks=1)) for volume in counted(SHAPE)} == {0}


@given(shapes)
def test_depcache_moves_more_than_sven_when_ranks_exceed_t_plus_2(shape):
    fetched = shape.sampled * (1 - shape.sampled_redundancy)
    written = shape.original * (1 - shape.original_redundancy)
    times = fetched / written  # T of Eq. 10
    if shape.ranks > times + 2 + 1e-6:
        assert depcache_volume(shape) > sven_volume(shape)
    elif 1 < shape.ranks < times + 2 - 1e-6:
        assert depcache_volume(shape) < sven_volume(shape)
