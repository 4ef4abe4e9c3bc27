"""The highest scores: those of a stable sort, whatever is tied."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.serving.ranking import highest


@given(
    rows=st.integers(0, 4),
    columns=st.integers(1, 40),
    values=st.integers(1, 12),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_they_are_the_first_of_a_stable_sort(rows, columns, values, seed, data):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(values, (rows, columns), generator=generator) / 3
    k = data.draw(st.integers(1, columns))
    best, chosen = highest(scores, k)
    expected, order = scores.sort(dim=1, descending=True, stable=True)
    assert torch.equal(best, expected[:, :k])
    assert torch.equal(chosen, order[:, :k])
