"""The bytes that say which rows of a list travel."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.state.replicas.rows import _choice, _choice_bytes, _chosen


@given(st.lists(st.booleans(), max_size=200))
def test_places_find_their_way_in_the_fewer_bytes(chosen):
    places = torch.tensor(chosen, dtype=torch.bool).nonzero().squeeze(1)
    data = _choice(places, len(chosen))
    assert data.dtype == torch.uint8
    assert len(data) == _choice_bytes(len(places), len(chosen)) <= min(4 * len(places), (len(chosen) + 7) // 8)
    assert _chosen(data, len(places), len(chosen)).tolist() == places.tolist()
