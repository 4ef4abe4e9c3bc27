import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lightning_tgnn.algorithms.streams.counter_random import counter_hash, random_below, shuffled, splitmix64

_BITS_64 = (1 << 64) - 1
_DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]


def _splitmix64(state: int) -> int:
    bits = (state + 0x9E3779B97F4A7C15) & _BITS_64
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _BITS_64
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _BITS_64
    return bits ^ (bits >> 31)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def _chained(*counters: int) -> int:
    state = 0
    for counter in counters:
        state = _splitmix64(state ^ (counter & _BITS_64))
    return state & ((1 << 62) - 1)


def test_splitmix64_gives_the_published_outputs_for_seed_1234567():
    # The reference generator's state grows by the increment with every output.
    states = [(1234567 + step * 0x9E3779B97F4A7C15) & _BITS_64 for step in range(3)]
    outputs = splitmix64(torch.tensor([_signed(state) for state in states]))
    assert [value & _BITS_64 for value in outputs.tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@settings(deadline=None)
@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=4))
def test_hash_is_the_chain_in_plain_integers(counters):
    expected = _chained(*counters)
    assert counter_hash(*counters).item() == expected
    assert counter_hash(*(torch.tensor([counter]) for counter in counters)).tolist() == [expected]


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1])
def test_integers_count_modulo_2_to_the_64(seed):
    assert counter_hash(seed, 3).item() == _chained(seed, 3)


@pytest.mark.parametrize("device", _DEVICES)
def test_counters_broadcast_and_keep_their_value(device):
    rows, columns = torch.arange(3, device=device).unsqueeze(1), torch.arange(4, device=device)
    hashed = counter_hash(7, rows, columns)
    assert hashed.tolist() == [[_chained(7, row, column) for column in range(4)] for row in range(3)]
    assert rows.flatten().tolist() == [0, 1, 2]
    assert columns.tolist() == [0, 1, 2, 3]


def test_draws_do_not_depend_on_the_cut_nor_on_earlier_draws():
    events = torch.arange(1000)
    whole = random_below(50, 3, 0, events)
    pieces = [random_below(50, 3, 0, piece) for piece in events.split(7)]
    assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(random_below(50, 3, 0, events), whole)


def test_order_of_counters_counts():
    assert counter_hash(1, 2).item() != counter_hash(2, 1).item()


@pytest.mark.parametrize("limit", [2, 7, 10, 64, 1000])
@pytest.mark.parametrize("seed", [0, 1])
def test_draws_are_uniform(limit, seed):
    counts = torch.bincount(random_below(limit, seed, torch.arange(100_000)), minlength=limit)
    assert counts.numel() == limit
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_every_row_has_its_own_limit():
    limits = torch.arange(1, 200)
    draws = random_below(limits, 5, torch.arange(199))
    assert bool(((draws >= 0) & (draws < limits)).all())
    assert draws.unique().numel() > 50


@pytest.mark.parametrize(
    "others",
    [
        lambda events: counter_hash(0, events + 1),
        lambda events: counter_hash(1, events),
        lambda events: counter_hash(0, events ^ (1 << 40)),
    ],
    ids=["next event", "next seed", "one bit"],
)
def test_neighbouring_counters_are_uncorrelated(others):
    events = torch.arange(20_000)
    drawn, other = counter_hash(0, events), others(events)
    unit = torch.stack([drawn, other]).double() / 2**62
    assert abs(torch.corrcoef(unit)[0, 1].item()) < 4 / 20_000**0.5
    flipped = torch.stack([((drawn ^ other) >> bit) & 1 for bit in range(62)]).double().mean(dim=1)
    assert bool(((flipped - 0.5).abs() < 5 * 0.5 / 20_000**0.5).all())
    cells = torch.bincount((drawn % 8) * 8 + other % 8, minlength=64)
    assert stats.chisquare(cells.numpy()).pvalue > 1e-3


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**40), st.integers(0, 5))
def test_a_shuffled_order_has_every_place_once_and_any_part_of_it_is_the_same(size, seed, epoch):
    places = torch.arange(size)
    order = shuffled(places, size, seed, epoch)
    assert sorted(order.tolist()) == list(range(size))
    assert torch.equal(shuffled(places[size // 3 :], size, seed, epoch), order[size // 3 :])
    assert places.tolist() == list(range(size))


def test_a_shuffled_order_puts_every_place_everywhere():
    counts = torch.zeros(7, 7)
    for epoch in range(1400):
        order = shuffled(torch.arange(7), 7, 3, epoch)
        counts[torch.arange(7), order] += 1
    assert stats.chisquare(counts.flatten()).pvalue > 1e-4
    neighbours = torch.cat([shuffled(torch.arange(1000), 1000, 3, epoch).diff() for epoch in range(10)])
    assert len(neighbours.unique()) > 1400
