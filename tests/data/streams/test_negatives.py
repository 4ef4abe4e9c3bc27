from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.streams.negatives import NEGATIVE_SAMPLERS, NegativeSampler, SimultaneousLinks

_NODES, _EVENTS, _TRAIN = 40, 600, 400


def _stream():
    """Sources 0..19 meet destinations 20..37 with repeats; nodes 38 and 39 are never seen."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(0, 20, (_EVENTS,), generator=generator)
    dst = 20 + (src + torch.randint(0, 6, (_EVENTS,), generator=generator)) % 18
    return src, dst


def _sampler(name, *, seed=3):
    src, dst = _stream()
    return NegativeSampler.build(name, src, dst, _NODES, seed=seed, train_events=_TRAIN, labels=src // 7)


def _allowed(name, src, dst, event, cutoff):
    """The table that an event draws from, by a plain loop, with one entry per chance."""
    if name == "all":
        return list(range(_NODES))
    if name == "relation":
        return sorted({other for u, other in zip(src, dst, strict=True) if u // 7 == src[event] // 7})
    table = []
    for past in range(event):
        same_source = name == "historical" and src[past] == src[event]
        pairs_before = list(zip(src[:past], dst[:past], strict=True))
        new_pair = name == "inductive" and past >= cutoff and (src[past], dst[past]) not in pairs_before
        if same_source or new_pair:
            table.append(dst[past])
    # With the true destination alone, or nothing, in the table, all draws fall back.
    return table if set(table) - {dst[event]} else sorted(set(dst))


@pytest.mark.parametrize("epoch", [None, 0, 5])
@pytest.mark.parametrize("name", NEGATIVE_SAMPLERS)
def test_draws_are_a_function_of_seed_epoch_and_event(name, epoch):
    sampler, events = _sampler(name), torch.arange(_EVENTS)
    whole = sampler.sample(events, 5, epoch=epoch)
    pieces = [_sampler(name).sample(piece, 5, epoch=epoch) for piece in events.split(37)]
    shuffled = torch.randperm(_EVENTS, generator=torch.Generator().manual_seed(1))
    assert whole.shape == (_EVENTS, 5)
    assert whole.dtype == torch.int64
    assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(sampler.sample(events[shuffled], 5, epoch=epoch), whole[shuffled])
    # Asking for more negatives leaves the first ones as they are.
    assert torch.equal(sampler.sample(events, 9, epoch=epoch)[:, :5], whole)


@pytest.mark.parametrize("name", NEGATIVE_SAMPLERS)
def test_epochs_seeds_and_evaluation_draw_differently(name):
    events = torch.arange(_TRAIN, _EVENTS)
    draws = [_sampler(name).sample(events, 4, epoch=epoch) for epoch in (None, 0, 1)]
    draws.append(_sampler(name, seed=4).sample(events, 4, epoch=0))
    for index, drawn in enumerate(draws):
        for other in draws[:index]:
            assert (drawn == other).double().mean() < 0.7


@pytest.mark.parametrize("epoch", [None, 2])
@pytest.mark.parametrize("name", NEGATIVE_SAMPLERS)
def test_the_true_destination_is_never_drawn(name, epoch):
    _, dst = _stream()
    drawn = _sampler(name).sample(torch.arange(_EVENTS), 50, epoch=epoch)
    assert not bool((drawn == dst.unsqueeze(1)).any())


@pytest.mark.parametrize("epoch", [None, 0])
@pytest.mark.parametrize("name", NEGATIVE_SAMPLERS)
def test_draws_come_from_the_table_of_the_event(name, epoch):
    src, dst = (column.tolist() for column in _stream())
    destinations = set(dst)
    events = torch.arange(0, _EVENTS, 7)
    drawn = _sampler(name).sample(events, 20, epoch=epoch).tolist()
    outside = 0
    for event, row in zip(events.tolist(), drawn, strict=True):
        table = set(_allowed(name, src, dst, event, cutoff=_TRAIN if epoch is None else 0))
        outside += len(set(row) - table)
        assert set(row) <= table | destinations
    # Eight rejections in a row can let a draw fall back although the table has another destination.
    assert outside <= (0.02 * len(events) * 20 if name in ("historical", "inductive") else 0)


@pytest.mark.parametrize(
    ("name", "epoch"), [("all", 0), ("destination", None), ("historical", 1), ("inductive", None), ("relation", 2)]
)
def test_draws_are_uniform_over_the_table_without_the_true_destination(name, epoch):
    src, dst = (column.tolist() for column in _stream())
    event = 580
    table = [node for node in _allowed(name, src, dst, event, cutoff=_TRAIN) if node != dst[event]]
    drawn = _sampler(name).sample(torch.tensor([event]), 20_000, epoch=epoch)[0]
    nodes = sorted(set(table))
    counts = torch.bincount(drawn, minlength=_NODES)[nodes].double()
    expected = torch.tensor([table.count(node) for node in nodes]).double() * counts.sum() / len(table)
    assert counts.sum() > 0.999 * 20_000
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


def test_events_without_a_table_fall_back_to_all_destinations():
    _, dst = _stream()
    for name, event, epoch in [("historical", 0, 0), ("inductive", 0, 0), ("inductive", _TRAIN, None)]:
        drawn = _sampler(name).sample(torch.tensor([event]), 2000, epoch=epoch)
        assert set(drawn[0].tolist()) == set(dst.tolist()) - {int(dst[event])}


def test_a_history_of_the_true_destination_alone_falls_back():
    src, dst = torch.tensor([0, 1, 0, 0]), torch.tensor([2, 3, 2, 2])
    sampler = NegativeSampler.build("historical", src, dst, 4, seed=0, train_events=4)
    assert sampler.sample(torch.tensor([3]), 6, epoch=0).tolist() == [[3] * 6]


@settings(deadline=None, max_examples=50)
@given(
    name=st.sampled_from(NEGATIVE_SAMPLERS),
    ends=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=15),
    epoch=st.none() | st.integers(0, 3),
)
def test_small_streams(name, ends, epoch):
    src, dst = torch.tensor(ends).t().contiguous()
    if dst.unique().numel() < 2:
        return
    sampler = NegativeSampler.build(name, src, dst, 4, seed=1, train_events=len(ends) // 2, labels=src % 2)
    drawn = sampler.sample(torch.arange(len(ends)), 3, epoch=epoch)
    assert not bool((drawn == dst.unsqueeze(1)).any())
    assert set(drawn.flatten().tolist()) <= (set(range(4)) if name == "all" else set(dst.tolist()))


@pytest.mark.parametrize("name", NEGATIVE_SAMPLERS)
def test_no_events_and_no_negatives(name):
    assert _sampler(name).sample(torch.empty(0, dtype=torch.int64), 3, epoch=0).shape == (0, 3)
    assert _sampler(name).sample(torch.arange(5), 0, epoch=0).shape == (5, 0)


def test_an_unknown_name_is_refused_with_the_valid_ones():
    with pytest.raises(
        InvalidArgumentError, match="'all', 'destination', 'historical', 'inductive', 'relation', got 'random'"
    ):
        _sampler("random")


@pytest.mark.parametrize("name", ["destination", "historical", "inductive"])
def test_a_single_destination_is_refused(name):
    src, dst = torch.tensor([0, 1]), torch.tensor([2, 2])
    with pytest.raises(InvalidArgumentError, match="at least 2 candidates, got '1 candidate'; draw from 'all' nodes"):
        NegativeSampler.build(name, src, dst, 3, seed=0, train_events=1)


@pytest.mark.parametrize("labels", [None, torch.rand(_EVENTS), torch.full((_EVENTS,), -1), torch.zeros(_EVENTS, 2)])
def test_relations_are_classes(labels):
    with pytest.raises(InvalidArgumentError, match="negatives must be 'relation' for events with a class each, got"):
        NegativeSampler.build("relation", *_stream(), _NODES, seed=0, train_events=_TRAIN, labels=labels)


def test_relations_of_a_single_destination_and_held_out_nodes():
    src, dst = torch.tensor([0, 0, 0, 0]), torch.tensor([1, 2, 3, 4])
    held_out = torch.tensor([False, False, False, True, False])
    options = {"seed": 0, "train_events": 4, "labels": torch.tensor([0, 1, 1, 1])}
    sampler = NegativeSampler.build("relation", src, dst, 5, **options)
    assert set(sampler.sample(torch.tensor([0]), 50, epoch=0)[0].tolist()) == {2, 3, 4}
    sampler = NegativeSampler.build("relation", src, dst, 5, **options, barred=held_out)
    assert set(sampler.sample(torch.tensor([1]), 50, epoch=0)[0].tolist()) == {4}


def test_a_single_node_is_refused():
    zero = torch.tensor([0])
    with pytest.raises(InvalidArgumentError, match="give a graph of at least two nodes"):
        NegativeSampler.build("all", zero, zero, 1, seed=0, train_events=1)


def test_a_negative_training_part_is_refused():
    with pytest.raises(InvalidArgumentError, match="train_events must be an integer of at least 0, got -1"):
        NegativeSampler.build("all", *_stream(), _NODES, seed=0, train_events=-1)


@pytest.mark.parametrize(("name", "epoch"), [("historical", None), ("historical", 1), ("inductive", 1)])
def test_where_a_source_goes_at_the_time_of_an_event_is_left_out(name, epoch):
    """A sender mails three of a team of six at a time: half of what it has mailed is right at that time."""
    generator = torch.Generator().manual_seed(0)
    src = (torch.arange(_EVENTS) // 3) % 4
    team = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(_EVENTS // 3)])
    dst, time = 4 + 6 * src + team.flatten(), (torch.arange(_EVENTS) // 6).double()  # two sources at each time
    sampler = NegativeSampler.build(name, src, dst, 28, seed=0, train_events=_TRAIN, time=time)
    events = torch.arange(_TRAIN, _EVENTS)
    true = set(zip(src.tolist(), dst.tolist(), time.tolist(), strict=True))

    def share(sampler):
        drawn = sampler.sample(events, 40, epoch=epoch).tolist()
        of_events = zip(src[events].tolist(), time[events].tolist(), drawn, strict=True)
        return np.mean([(source, node, when) in true for source, when, row in of_events for node in row])

    assert share(replace(sampler, simultaneous=None)) > 0.05
    assert share(sampler) == 0


def test_what_a_history_does_not_have_is_left_out_of_all_destinations_as_well():
    """A sender who always mails the same team has no other in its history."""
    src, time = torch.arange(40) // 5 % 4, (torch.arange(40) // 5).double()
    dst = 4 + 5 * src + torch.arange(40) % 5
    for name in ("historical", "inductive"):
        sampler = NegativeSampler.build(name, src, dst, 24, seed=0, train_events=20, time=time)
        drawn = sampler.sample(torch.arange(40), 50, epoch=0)
        assert not bool(((drawn - 4) // 5 == src.unsqueeze(1)).any())


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_simultaneous_links_are_those_of_a_loop(rows):
    rows = sorted(rows, key=lambda row: row[2])
    src, dst, time = torch.tensor(rows, dtype=torch.int64).view(-1, 3).t().contiguous()
    found = SimultaneousLinks.of(src, dst, time.double(), 4)
    for event, (source, _, when) in enumerate(rows):
        others = {row[1] for place, row in enumerate(rows) if place != event and row[::2] == (source, when)}
        own = {rows[event][1]}
        have = found.have(torch.full((4,), event), torch.arange(4)).tolist()
        assert {node for node, it_has in enumerate(have) if it_has} - own == others - own
