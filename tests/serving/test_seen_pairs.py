from array import array

import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.serving.ranking import SeenPairs

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6)


def columns(pairs):
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t().contiguous()


@given(st.lists(st.tuples(PAIRS, st.booleans(), st.booleans()), max_size=8))
def test_pairs_are_a_set_however_they_come(steps):
    seen, expected = SeenPairs(), set()
    for pairs, asks, clears in steps:
        if clears:
            seen.clear()
            expected.clear()
        seen.add(*columns(pairs))
        expected.update(pairs)
        if asks:
            assert seen.saved(5).tolist() == sorted(5 * src + dst for src, dst in expected)
            assert torch.equal(SeenPairs.from_saved(seen.saved(5), 5).keys(), seen.keys())
            rows, found = seen.for_sources(torch.tensor([3, 0]))
            pairs_of = {asked: [dst for src, dst in sorted(expected) if src == asked] for asked in (3, 0)}
            of_both = [(place, dst) for place, asked in enumerate((3, 0)) for dst in pairs_of[asked]]
            assert list(zip(rows.tolist(), found.tolist(), strict=True)) == of_both


def test_events_one_by_one_wait_in_one_buffer():
    seen = SeenPairs()
    for number in range(20):
        seen.add(*columns([(number % 5, number // 5)]))
    assert isinstance(seen._new, array)
    assert len(seen._new) == 20
    assert len(seen.keys()) == 20
    assert not seen._new
