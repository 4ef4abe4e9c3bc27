"""Rows and mails as bytes, there and back."""

from itertools import product

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.state.nodes.wire import MailCodec, RowCodec, join, split
from lightning_tgnn.types import StateRows, StateSpec

EVENTS = 20


def codec_and_rows(count, memory_dim, edge_dim, mailbox_size, own_half, by_event, number):
    """Return a codec and rows as stores hold them: empty slots are 0, and mails are what the codec may rely on."""
    mail_dim = 2 * memory_dim + edge_dim
    spec = StateSpec(50, memory_dim, mail_dim, mailbox_size, own_half)
    generator = torch.Generator().manual_seed(number)
    features = torch.rand(EVENTS, edge_dim, generator=generator)
    memory = torch.randn(count, memory_dim, generator=generator)
    event = torch.randint(EVENTS, (count, mailbox_size), generator=generator)
    given = torch.randint(3 * mailbox_size, (count,), generator=generator)
    filled = torch.arange(mailbox_size) < given.unsqueeze(1)
    other = torch.randn(count, mailbox_size, 2 * memory_dim, generator=generator)
    mails = torch.cat([other, features[event]], dim=2) * filled.unsqueeze(2)
    if own_half:
        mails[..., :memory_dim] = memory.unsqueeze(1)
    time = torch.rand(count, mailbox_size, dtype=torch.float64, generator=generator) * 1e9
    rows = StateRows(
        memory=memory,
        memory_time=torch.rand(count, dtype=torch.float64, generator=generator) * 1e9,
        mails=mails,
        mail_time=time * filled,
        mail_event=event * filled,
        mail_count=given,
    )
    return MailCodec(spec, own_half=own_half, edge_features=features if by_event else None), rows


OPTIONS = list(product((False, True), (False, True), (1, 3)))


@pytest.mark.parametrize(("own_half", "by_event", "mailbox_size"), OPTIONS)
@seed(6)
@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 5),
    memory_dim=st.integers(1, 5),
    edge_dim=st.integers(0, 3),
    number=st.integers(0, 99),
)
def test_rows_come_back(own_half, by_event, mailbox_size, count, memory_dim, edge_dim, number):
    mails, rows = codec_and_rows(count, memory_dim, edge_dim, mailbox_size, own_half, by_event, number)
    codec = RowCodec(mails)
    data = codec.pack(rows)
    assert (data.dtype, data.shape) == (torch.uint8, (count, codec.width))
    back = codec.unpack(data)
    for name, table in vars(rows).items():
        found = getattr(back, name)
        assert (found.dtype, found.shape) == (table.dtype, table.shape), name
        assert torch.equal(found, table), name


@pytest.mark.parametrize(("own_half", "by_event", "mailbox_size"), OPTIONS)
@seed(13)
@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 6),
    memory_dim=st.integers(1, 5),
    edge_dim=st.integers(0, 3),
    number=st.integers(0, 99),
    asked=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=8),
)
def test_rows_that_are_here_and_rows_that_have_come(
    own_half, by_event, mailbox_size, count, memory_dim, edge_dim, number, asked
):
    mails, rows = codec_and_rows(count, memory_dim, edge_dim, mailbox_size, own_half, by_event, number)
    codec, places = RowCodec(mails), torch.tensor([place % count for place, _ in asked], dtype=torch.int64)
    remote = torch.tensor([is_remote for _, is_remote in asked], dtype=torch.bool)
    here = StateRows(**{name: table[places] for name, table in vars(rows).items()})
    data = codec.pack_some(rows, places)
    assert torch.equal(data, codec.pack(here))
    packed = torch.where(remote, torch.arange(len(asked)), -1)
    data[~remote] = 255
    unknown = torch.where(remote, -1, places)
    for gathered in (codec.gather, codec._gather_by_tensors):
        found = gathered(rows, unknown, data, packed)
        for name, table in vars(here).items():
            assert getattr(found, name).dtype == table.dtype
            assert torch.equal(getattr(found, name), table), name


@pytest.mark.parametrize(("own_half", "by_event"), list(product((False, True), repeat=2)))
@seed(7)
@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 5), memory_dim=st.integers(1, 5), edge_dim=st.integers(0, 3), number=st.integers(0, 99))
def test_mails_come_back(own_half, by_event, count, memory_dim, edge_dim, number):
    codec, rows = codec_and_rows(count, memory_dim, edge_dim, 1, own_half, by_event, number)
    mails, times, events = rows.mails[:, 0], rows.mail_time[:, 0], rows.mail_event[:, 0]
    data = codec.pack(mails, times, events)
    assert (data.dtype, data.shape) == (torch.uint8, (count, codec.width))
    left_out = 4 * (memory_dim * own_half + edge_dim * by_event)
    assert codec.width == 16 + -(-(4 * codec.spec.mail_dim - left_out) // 8) * 8
    back = codec.unpack(data, rows.memory, rows.mail_count > 0)
    for found, given_column in zip(back, (mails, times, events), strict=True):
        assert found.dtype == given_column.dtype
        assert torch.equal(found, given_column)


def test_an_empty_slot_has_no_features():
    codec, rows = codec_and_rows(1, 2, 3, 1, False, True, 0)
    data = codec.pack(rows.mails[:, 0] * 0, rows.mail_time[:, 0], torch.zeros(1, dtype=torch.int64))
    for filled in (True, False):
        mails = codec.unpack(data, rows.memory, torch.tensor([filled]))[0]
        assert torch.equal(mails[:, 4:], codec.edge_features[:1] * filled)


DTYPES = [torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool, torch.float16]


@seed(8)
@settings(max_examples=60, deadline=None)
@given(
    columns=st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(1, 5)), min_size=1, max_size=5),
    shape=st.sampled_from([(0,), (1,), (4,), (2, 3), (0, 3)]),
)
def test_columns_of_any_type_stand_side_by_side(columns, shape):
    generator = torch.Generator().manual_seed(0)
    given_columns = [torch.randint(0, 2, (*shape, width), generator=generator).to(dtype) for dtype, width in columns]
    data = join(given_columns)
    assert data.dtype == torch.uint8
    assert data.shape[:-1] == shape
    assert data.shape[-1] % 8 == 0
    back = split(data, columns)
    for found, column in zip(back, given_columns, strict=True):
        assert (found.dtype, found.shape) == (column.dtype, column.shape)
        assert torch.equal(found, column)


def test_values_keep_every_bit():
    odd = torch.tensor([[float("nan"), float("inf"), -0.0, 1e-310, 2.0**53 + 1]], dtype=torch.float64)
    whole = torch.tensor([[2**63 - 1, -(2**63)]])
    floats, numbers = split(join([odd, whole]), [(torch.float64, 5), (torch.int64, 2)])
    assert torch.equal(floats.view(torch.int64), odd.view(torch.int64))
    assert torch.equal(numbers, whole)
