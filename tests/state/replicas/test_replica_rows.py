"""The bytes that say which rows of a list travel."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.state.replicas.rows import _choice, _choice_bytes, _chosen, _with_zeros, _without_zeros


@given(st.lists(st.booleans(), max_size=200))
def test_places_find_their_way_in_the_fewer_bytes(chosen):
    places = torch.tensor(chosen, dtype=torch.bool).nonzero().squeeze(1)
    data = _choice(places, len(chosen))
    assert data.dtype == torch.uint8
    assert len(data) == _choice_bytes(len(places), len(chosen)) <= min(4 * len(places), (len(chosen) + 7) // 8)
    assert _chosen(data, len(places), len(chosen)).tolist() == places.tolist()


@given(st.integers(0, 9), st.integers(0, 9), st.floats(0, 1), st.integers(0, 10))
def test_rows_without_their_zeros_are_the_same_rows_in_fewer_bytes(count, width, share, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, width, generator=generator) * (torch.rand(count, width, generator=generator) < share)
    for value in rows.flatten()[:1]:
        value.copy_(torch.tensor(-0.0))
    data = rows.view(torch.uint8) if width else torch.empty(count, 0, dtype=torch.uint8)
    packed, kept = _without_zeros(data), int((rows.view(torch.int32) != 0).sum())
    assert len(packed) == min(data.numel(), (rows.numel() + 7) // 8 + 4 * kept)
    assert torch.equal(_with_zeros(packed, *data.shape), data)
