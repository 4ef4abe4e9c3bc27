from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn import EventStore, TemporalDataModule
from lightning_tgnn.algorithms.partitions.demand import Demand
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.batches import presampled_demand
from lightning_tgnn.data.batches.presampled_demand import presample_apart, presample_demand
from lightning_tgnn.data.batches.sampling import EventSampler
from lightning_tgnn.types import RankLayout
from tests.data.example_streams import random_store


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=40),
    st.sampled_from([10, 1000]),  # few nodes are counted in a table, many by a sort
)
def test_repeated_pairs_add_up(entries, num_nodes):
    ranks, nodes = torch.tensor(entries, dtype=torch.int64).reshape(-1, 2).T
    demand = Demand.of(ranks, nodes, num_ranks=4, num_nodes=num_nodes)
    triples = zip(demand.rank.tolist(), demand.node.tolist(), demand.count.tolist(), strict=True)
    assert {(rank, node): count for rank, node, count in triples} == Counter(entries)
    assert len(demand.rank) == len(set(entries))
    assert (demand.num_ranks, demand.num_nodes) == (4, num_nodes)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=40), st.sampled_from([10, 1000]))
def test_demands_add_up(entries, num_nodes):
    ranks, nodes = torch.tensor(entries, dtype=torch.int64).reshape(-1, 2).T
    parts = [Demand.of(ranks[place::3], nodes[place::3], 4, num_nodes) for place in range(3)]
    found, whole = parts[0].plus(*parts[1:]), Demand.of(ranks, nodes, 4, num_nodes)
    assert as_counter(found) == as_counter(whole)
    assert found.total().tolist()[:10] == torch.bincount(nodes, minlength=10).tolist()


def test_pairs_are_sorted_by_node_then_rank_and_int64():
    demand = Demand.of(
        torch.tensor([2, 0, 1, 0], dtype=torch.int32), torch.tensor([1, 1, 0, 1], dtype=torch.int16), 3, 2
    )
    assert demand.node.tolist() == [0, 1, 1]
    assert demand.rank.tolist() == [1, 0, 2]
    assert demand.count.tolist() == [1, 2, 1]
    assert {part.dtype for part in (demand.node, demand.rank, demand.count)} == {torch.int64}


def test_raw_entries_are_left_as_they_were():
    ranks, nodes = torch.tensor([1, 0]), torch.tensor([4, 2])
    Demand.of(ranks, nodes, 2, 5)
    assert (ranks.tolist(), nodes.tolist()) == ([1, 0], [4, 2])


@pytest.mark.parametrize(
    ("ranks", "nodes", "sizes", "message"),
    [
        ([0, 2], [0, 0], (2, 1), "ranks must be in [0, 2), got 2; number from 0, or give the right total"),
        ([0, -1], [0, 0], (2, 1), "ranks must be in [0, 2), got -1; number from 0, or give the right total"),
        ([0, 1], [0, 7], (2, 7), "nodes must be in [0, 7), got 7; number from 0, or give the right total"),
        ([0, 1], [0], (2, 7), "nodes must be as long as ranks, 2, got 1; give a rank and a node per entry"),
        ([[0]], [0], (2, 7), "ranks must be one row of integers, got 'torch.int64 [1, 1]'; give ids as int64 [L]"),
        ([0], [0.5], (2, 7), "nodes must be one row of integers, got 'torch.float32 [1]'; give ids as int64 [L]"),
        ([0], [0], (0, 7), "num_ranks must be an integer of at least 1, got 0; give the number of ranks, M"),
        ([0], [0], (2, 0), "num_nodes must be an integer of at least 1, got 0; give the number of nodes, N"),
    ],
)
def test_refusals(ranks, nodes, sizes, message):
    with pytest.raises(InvalidArgumentError) as refused:
        Demand.of(torch.tensor(ranks), torch.tensor(nodes), *sizes)
    assert str(refused.value) == message


def loader(sampled_roots="all", **options):
    data = TemporalDataModule(
        random_store(300, num_nodes=25, edge_dim=2), batch_size=8, num_neighbors=3, num_workers=0, **options
    )
    data.sampled_roots = sampled_roots
    return data.train_dataloader()


def as_counter(demand):
    triples = zip(demand.rank.tolist(), demand.node.tolist(), demand.count.tolist(), strict=True)
    return Counter({(rank, node): count for rank, node, count in triples})


@pytest.mark.parametrize("sampled_roots", ["none", "events", "all"])
@pytest.mark.parametrize("options", [{}, {"presample": "epoch"}, {"past": "batch"}])
@pytest.mark.parametrize("split", ["time", "destination"])
@pytest.mark.parametrize(("batches", "numbers"), [(None, range(9)), (3, [0, 4, 8]), (1, [0])])
def test_presampled_demand_is_that_of_the_ranks_batches(sampled_roots, options, split, batches, numbers):
    expected, schedule = Counter(), DataParallel(split)
    for rank in range(3):
        own = list(loader(sampled_roots, **options).follow(schedule, RankLayout.of(3), rank))
        assert len(own) == 9
        for number in numbers:
            expected.update((rank, node) for node in own[number].nodes.tolist())
            expected.update((rank, node) for node in own[number].mail_nodes.tolist())
    found = presample_demand(loader(sampled_roots, **options), 3, batches, schedule)
    assert as_counter(found.demand) == expected
    assert (found.demand.num_ranks, found.demand.num_nodes) == (3, 25)
    assert found.numbers == list(numbers)
    assert 0 <= found.reliability <= 1


def test_batches_to_fit_and_to_judge_are_apart_and_all_there_are():
    fitted, judged = presample_apart(loader(), 3, 2)
    assert (fitted.numbers, judged.numbers) == ([0, 1, 3, 4, 5, 7, 8], [2, 6])
    together = presample_demand(loader(), 3).demand
    assert as_counter(fitted.demand) + as_counter(judged.demand) == as_counter(together)
    events = loader().events
    assert torch.equal(torch.cat([fitted.events, judged.events]).sort().values, events)
    assert len(presample_apart(loader(), 3, 100)[1].numbers) == 2  # a quarter of nine


def test_of_a_long_stream_batches_are_counted_that_are_spread_over_it(monkeypatch):
    monkeypatch.setattr(presampled_demand, "MOST_EVENTS", 100)
    monkeypatch.setattr(presampled_demand, "_EVENTS_AT_ONCE", 30)
    found = presample_demand(loader(), 3)
    assert found.numbers == [0, 3, 5, 8]  # of 24 events each
    assert as_counter(found.demand) == as_counter(presample_demand(loader(), 3, 4).demand)


def test_what_is_drawn_does_not_grow_with_the_ranks(monkeypatch):
    """Neither the mails of the whole batch nor its neighbours are drawn by each of them (APAN)."""
    drawn = []

    def sample(self, events, *others):
        drawn.append(len(events))
        return draw(self, events, *others)

    draw = EventSampler.sample
    monkeypatch.setattr(EventSampler, "sample", sample)
    data = TemporalDataModule(random_store(300, num_nodes=25), num_workers=0, num_neighbors=3)
    data.sampled_roots = "events"
    counts = set()
    for ranks in (2, 8, 16):
        data.batch_size = 48 // ranks
        drawn.clear()
        presample_demand(data.train_dataloader(), ranks)
        counts.add(sum(drawn))
    assert counts == {210}


def test_differences_between_ranks_are_reliable_by_destination_and_chance_by_time():
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 60, (6000,), generator=generator), torch.randint(60, 100, (6000,), generator=generator)
    data = TemporalDataModule(EventStore.from_arrays(src, dst, torch.arange(6000.0)), batch_size=50, num_workers=0)
    data.sampled_roots = "all"
    share = {
        split: presample_demand(data.train_dataloader(), 4, schedule=DataParallel(split)).reliability
        for split in ("time", "destination")
    }
    assert share["time"] < 0.2
    assert share["destination"] > 0.7


def test_presampling_leaves_the_loader_as_it_was():
    before, after = loader(), loader()
    presample_demand(after, 2, 2)
    assert (after.rank, after.layout, len(after)) == (0, before.layout, len(before))
    assert all(torch.equal(a.nodes, b.nodes) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "ranks must be an integer of at least 1, got 0; give the number of ranks, M"),
        ((2, 0), "batches must be an integer of at least 1, got 0; 32 is usual, and None takes all"),
    ],
)
def test_presampling_nothing_is_refused(arguments, message):
    with pytest.raises(InvalidArgumentError) as refused:
        presample_demand(loader(), *arguments)
    assert str(refused.value) == message
