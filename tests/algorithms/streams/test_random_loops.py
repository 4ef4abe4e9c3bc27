"""Compiled draws are those of `counter_random`, one counter after the other."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.streams.counter_random import chained, counter_hash, random_below
from lightning_tgnn.algorithms.streams.random_loops import draw_others

_COUNTERS = st.integers(-(1 << 63), (1 << 64) - 1)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(_COUNTERS, max_size=3),
    st.lists(st.tuples(st.integers(0, (1 << 62) - 1), st.integers(-3, 40)), max_size=12),
    st.sets(st.integers(0, 37), min_size=2, max_size=20),
    st.integers(0, 5),
    st.integers(0, 9),
)
def test_others_are_drawn_as_by_tensors(counters, events, candidates, num, last):
    ids, true = (
        torch.tensor(column, dtype=torch.int64) for column in (zip(*events, strict=True) if events else ((), ()))
    )
    candidates = torch.tensor(sorted(candidates))
    index = random_below(len(candidates) - 1, counter_hash(*counters, ids.unsqueeze(1), torch.arange(num)), last)
    index += index >= torch.searchsorted(candidates, true).unsqueeze(1)
    drawn = torch.empty(len(ids), num, dtype=torch.int64)
    draw_others(chained(*counters), last, ids.numpy(), true.numpy(), candidates.numpy(), drawn.numpy())
    assert torch.equal(drawn, candidates[index])
