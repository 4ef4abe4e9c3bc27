import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.streams.dedup import by_loop, by_tensors, first_positions, last_mails, organize

_DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]


def _algorithm_2(vertices, interactions):
    """The paper's loop: compare every entry with every distinct vertex so far."""
    distinct, phi, last, psi = [], [], [], []
    for entry, (vertex, interaction) in enumerate(zip(vertices, interactions, strict=True)):
        for place, known in enumerate(distinct):
            if known == vertex:
                phi[place], last[place] = interaction, entry
                psi.append(place)
                break
        else:
            psi.append(len(distinct))
            distinct.append(vertex)
            phi.append(interaction)
            last.append(entry)
    return distinct, phi, last, psi


_dense = st.lists(st.integers(0, 12), max_size=60)
_sparse = st.lists(st.sampled_from([0, 5, 10**9, 2**40, 2**62, -3, -(2**62)]), max_size=30)


@pytest.mark.parametrize("device", _DEVICES)
@settings(deadline=None)
@given(vertices=_dense | _sparse, per_interaction=st.integers(1, 4))
def test_equals_the_loop_of_the_paper(device, vertices, per_interaction):
    interactions = [entry // per_interaction for entry in range(len(vertices))]
    entries = torch.tensor(vertices, dtype=torch.int64, device=device)
    result = organize(entries)
    distinct, phi, last, psi = _algorithm_2(vertices, interactions)
    assert result.distinct.tolist() == distinct
    assert [interactions[entry] for entry in result.last.tolist()] == phi
    assert result.last.tolist() == last
    assert result.position.tolist() == psi
    assert torch.equal(result.distinct[result.position], entries)
    for way in (by_loop, by_tensors) if device == "cpu" else (by_tensors,):
        assert [part.tolist() for part in way(entries)] == [distinct, last, psi]


def test_four_nodes_by_hand():
    # Interactions (a, b), (c, a), (b, a), (d, d) with a..d = 40..43.
    entries = torch.tensor([40, 41, 42, 40, 41, 40, 43, 43])
    result = organize(entries)
    assert result.distinct.tolist() == [40, 41, 42, 43]
    assert result.last.tolist() == [5, 4, 2, 7]
    assert result.position.tolist() == [0, 1, 2, 0, 1, 0, 3, 3]


def test_nothing_to_organise():
    result = organize(torch.empty(0, dtype=torch.int64))
    for part in (result.distinct, result.last, result.position):
        assert part.shape == (0,)
        assert part.dtype == torch.int64


def test_entries_are_left_as_they_were():
    entries = torch.tensor([9, 4, 9])
    organize(entries)
    assert entries.tolist() == [9, 4, 9]


def test_neighbourhoods_of_a_large_batch_equal_torch_unique():
    entries = torch.randint(0, 700, (20_000,), generator=torch.Generator().manual_seed(0))
    result = organize(entries)
    assert torch.equal(result.distinct.sort().values, entries.unique())
    assert torch.equal(result.distinct[result.position], entries)
    assert torch.equal(entries[result.last], result.distinct)


@settings(deadline=None)
@given(_dense | _sparse)
def test_first_positions_are_where_a_value_is_new(vertices):
    expected = [place for place, vertex in enumerate(vertices) if vertex not in vertices[:place]]
    assert first_positions(torch.tensor(vertices, dtype=torch.int64)).tolist() == expected


@settings(deadline=None)
@given(st.integers(0, 6), st.integers(0, 4), st.sampled_from([1, 9, 10**6, 10**12]), st.data())
def test_of_several_mails_the_last_side_counts(events, width, highest, data):
    nodes = st.integers(0, highest)
    ends, neighbors = (
        (
            torch.tensor(data.draw(st.lists(nodes, min_size=size, max_size=size)), dtype=torch.int64).view(
                events, 2, -1
            )
            for size in (2 * events, 2 * events * width)
        )
        if events
        else (torch.empty(0, 2, 1, dtype=torch.int64), torch.empty(0, 2, width, dtype=torch.int64))
    )
    mailed = {}
    for event in range(events):
        for receivers in (neighbors[event], ends[event]):
            for side, own in enumerate(receivers.tolist()):
                mailed |= dict.fromkeys(own, event + side * events)
    nodes, source = last_mails(ends.squeeze(2), neighbors)
    assert dict(zip(nodes.tolist(), source.tolist(), strict=True)) == mailed
    assert nodes.tolist() == list(mailed)
