import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lightning_tgnn.algorithms.streams.counter_random import counter_hash
from lightning_tgnn.algorithms.streams.dedup import last_mails
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.streams.temporal_adjacency import TemporalAdjacency

_DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]
_NODES = 6


@st.composite
def _streams(draw):
    """Sources, destinations, ids (some left out) and whether directed; node 5 never has an event."""
    count = draw(st.integers(0, 25))
    ends = st.lists(st.integers(0, _NODES - 2), min_size=count, max_size=count)
    ids = sorted(draw(st.sets(st.integers(0, 40), min_size=count, max_size=count)))
    return draw(ends), draw(ends), draw(st.sampled_from([ids, None])), draw(st.booleans())


def _build(src, dst, ids, directed, device="cpu"):
    def tensor(values):
        return torch.tensor(values, dtype=torch.int64, device=device)

    return TemporalAdjacency.build(
        tensor(src), tensor(dst), _NODES, events=None if ids is None else tensor(ids), directed=directed
    )


def _past(src, dst, ids, directed, node, before):
    """(event, neighbour) of every past entry, most recent first, by a plain loop."""
    entries = []
    for event, u, v in zip(range(len(src)) if ids is None else ids, src, dst, strict=True):
        if event < before:
            if u == node:
                entries.append((event, v))
            elif v == node and not directed:
                entries.append((event, u))
    return entries[::-1]


def _all_queries(device="cpu"):
    pairs = [(node, before) for node in range(_NODES) for before in [*range(0, 43, 3), 10**6]]
    nodes, before = torch.tensor(pairs, device=device).t().contiguous()
    return pairs, nodes, before


def _rows(neighbors):
    """The (event, neighbour) pairs of every row; checks that empty places come last and hold 0."""
    rows = []
    columns = (neighbors.nodes.tolist(), neighbors.events.tolist(), neighbors.mask.tolist())
    for nodes, events, mask in zip(*columns, strict=True):
        filled = sum(mask)
        assert mask == [True] * filled + [False] * (len(mask) - filled)
        assert nodes[filled:] + events[filled:] == [0] * (len(mask) - filled) + [-1] * (len(mask) - filled)
        rows.append(list(zip(events[:filled], nodes[:filled], strict=True)))
    return rows


@pytest.mark.parametrize("device", _DEVICES)
@settings(deadline=None, max_examples=60)
@given(stream=_streams(), k=st.integers(0, 5))
def test_most_recent_and_count_equal_a_plain_loop(device, stream, k):
    adjacency = _build(*stream, device=device)
    pairs, nodes, before = _all_queries(device)
    found = adjacency.most_recent(nodes, before, k)
    expected = [_past(*stream, *pair) for pair in pairs]
    assert found.nodes.shape == found.events.shape == found.mask.shape == (len(pairs), k)
    assert _rows(found) == [past[:k] for past in expected]
    assert adjacency.count_before(nodes, before).tolist() == [len(past) for past in expected]


@pytest.mark.parametrize("device", _DEVICES)
@settings(deadline=None, max_examples=60)
@given(stream=_streams(), k=st.integers(0, 5), seed=st.integers(0, 2**64 - 1))
def test_uniform_draws_distinct_past_entries(device, stream, k, seed):
    pairs, nodes, before = _all_queries(device)
    drawn = _rows(_build(*stream, device=device).uniform(nodes, before, k, seed, 0))
    for pair, row in zip(pairs, drawn, strict=True):
        past = _past(*stream, *pair)
        # Distinct, a subset of the past, and in the past's order, most recent first.
        assert row == [entry for entry in past if entry in row]
        assert len(row) == min(k, len(past))


@settings(deadline=None, max_examples=100)
@given(_streams(), st.integers(0, 4), st.sampled_from([(), (7, 0), (7, 1)]), st.data())
def test_mails_are_those_of_what_is_drawn(stream, k, seeds, data):
    adjacency, node = _build(*stream), st.integers(0, _NODES - 1)
    events = data.draw(st.lists(st.tuples(node, node, st.integers(0, 45)), max_size=6))
    *ends, before = torch.tensor(events, dtype=torch.int64).view(-1, 3).t()
    ends, of_ends = torch.stack(ends, dim=1), before.repeat_interleave(2)
    draws = adjacency.uniform if seeds else adjacency.most_recent
    drawn = draws(ends.flatten(), of_ends, k, *seeds)
    neighbors = torch.where(drawn.mask, drawn.nodes, ends.view(-1, 1)).view(len(ends), 2, k)
    found, expected = adjacency.last_mails(ends, before, k, *seeds), last_mails(ends, neighbors)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@settings(deadline=None, max_examples=60)
@given(_streams())
def test_storage_is_what_it_says(stream):
    src, _, ids, _ = stream
    adjacency = _build(*stream)
    entries = [_past(*stream, node, 10**6)[::-1] for node in range(_NODES)]
    assert adjacency.num_nodes == _NODES
    assert adjacency.indptr.tolist() == [sum(map(len, entries[:node])) for node in range(_NODES + 1)]
    assert adjacency.span > max(range(len(src)) if ids is None else ids, default=-1)
    keys = [node * adjacency.span + event for node in range(_NODES) for event, _ in entries[node]]
    assert adjacency.keys.tolist() == keys
    assert adjacency.neighbors.tolist() == [neighbor for row in entries for _, neighbor in row]


def test_an_event_does_not_see_itself_nor_what_comes_later():
    # Events 0, 1 and 2 of nodes 0 and 1 could all have the same time: input order decides.
    adjacency = TemporalAdjacency.build(torch.tensor([0, 0, 0]), torch.tensor([1, 1, 1]), 2)
    found = adjacency.most_recent(torch.tensor([0, 0, 0]), torch.tensor([0, 1, 2]), 3)
    assert found.events.tolist() == [[-1, -1, -1], [0, -1, -1], [1, 0, -1]]
    assert found.mask.sum(dim=1).tolist() == [0, 1, 2]


def test_a_self_loop_is_one_entry():
    adjacency = TemporalAdjacency.build(torch.tensor([2, 0, 2]), torch.tensor([2, 2, 2]), 3)
    found = adjacency.most_recent(torch.tensor([2, 0]), torch.tensor([3, 3]), 4)
    assert _rows(found) == [[(2, 2), (1, 0), (0, 2)], [(1, 2)]]


def test_more_entries_than_a_chunk(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 9, (2, 500), generator=generator)
    events = torch.arange(500) * 3 + 1
    whole = TemporalAdjacency.build(src, dst, 9, events=events)
    monkeypatch.setattr("lightning_tgnn.data.streams.temporal_adjacency._CHUNK", 64)
    pieces = TemporalAdjacency.build(src, dst, 9, events=events)
    assert torch.equal(whole.keys, pieces.keys)
    assert torch.equal(whole.neighbors, pieces.neighbors)


def _star(degree):
    """Node 0 meets 1 .. degree, in that order."""
    return TemporalAdjacency.build(torch.zeros(degree, dtype=torch.int64), torch.arange(1, degree + 1), degree + 1)


def test_every_set_of_neighbours_is_equally_likely():
    adjacency, draws = _star(6), 30_000
    zero = torch.zeros(draws, dtype=torch.int64)
    events = adjacency.uniform(zero, zero + 5, 3, torch.arange(draws)).events
    codes = (1 << events).sum(dim=1)
    _, counts = codes.unique(return_counts=True)
    assert counts.numel() == 10  # 3 of 5
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_uniform_draws_depend_on_seeds_node_and_event_alone():
    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, 20, (2, 2000), generator=generator)
    adjacency = TemporalAdjacency.build(src, dst, 20)
    nodes, before = src, torch.arange(2000)
    whole = adjacency.uniform(nodes, before, 4, 9, 0)
    shuffled = torch.randperm(2000, generator=generator)
    again = adjacency.uniform(nodes[shuffled], before[shuffled], 4, 9, 0)
    cut = zip(nodes.split(33), before.split(33), strict=True)
    pieces = [adjacency.uniform(*piece, 4, 9, 0).events for piece in cut]
    assert torch.equal(again.events, whole.events[shuffled])
    assert torch.equal(torch.cat(pieces), whole.events)
    for seeds in [(9, 1), (10, 0)]:
        assert not torch.equal(adjacency.uniform(nodes, before, 4, *seeds).events, whole.events)


def test_to_keeps_the_columns():
    adjacency = _star(3)
    moved = adjacency.to("meta")
    assert {moved.keys.device.type, moved.indptr.device.type, moved.neighbors.device.type} == {"meta"}
    assert moved.span == adjacency.span


def test_neighbors_move_together():
    zero = torch.tensor([0])
    moved = _star(3).most_recent(zero, zero + 3, 2).to("meta")
    assert {moved.nodes.device.type, moved.events.device.type, moved.mask.device.type} == {"meta"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0, 1], [1], 2, None), DataError, r"dst must be of the shape of src, \[2\], got \[1\]"),
        (([0, 1], [1, 2], 2, None), DataError, r"dst must be nodes in 0 \.\. 1, got 2"),
        (([0, -1], [1, 0], 2, None), DataError, r"src must be nodes in 0 \.\. 1, got -1"),
        (([0], [1], 2, [0, 1]), DataError, r"events must be of the shape of src, \[1\], got \[2\]"),
        (([0, 1], [1, 0], 2, [4, 4]), DataError, "events must be at least 0 and strictly ascending"),
        (([0, 1], [1, 0], 2, [-1, 4]), DataError, "events must be at least 0 and strictly ascending"),
        (([0], [1], 0, None), InvalidArgumentError, "num_nodes must be an integer of at least 1"),
        (([0], [1], 2**40, [2**30]), InvalidArgumentError, "num_nodes .* below 2.63.*; number nodes and events"),
    ],
)
def test_refusals(arguments, error, message):
    src, dst, num_nodes, events = arguments
    ids = None if events is None else torch.tensor(events)
    with pytest.raises(error, match=message):
        TemporalAdjacency.build(torch.tensor(src), torch.tensor(dst), num_nodes, events=ids)


@settings(deadline=None, max_examples=60)
@given(_streams(), st.integers(1, 6), st.integers(0, 99))
def test_the_compiled_loops_are_what_tensors_compute(stream, k, seed):
    adjacency, (_, nodes, before) = _build(*stream), _all_queries()
    key = counter_hash(seed, 1, nodes, before)
    pairs = [
        (adjacency.most_recent(nodes, before, k), adjacency._most_recent_by_tensors(nodes, before, k)),
        (adjacency.uniform(nodes, before, k, seed, 1), adjacency._uniform_by_tensors(nodes, before, k, key)),
    ]
    for found, expected in pairs:
        assert all(torch.equal(getattr(found, name), getattr(expected, name)) for name in ("nodes", "events", "mask"))
    ends = adjacency._past_end_by_tensors(nodes, before)
    assert torch.equal(adjacency.count_before(nodes, before), ends - adjacency.indptr[nodes])
