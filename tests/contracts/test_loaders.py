"""The contract of resumable loaders: what was handed out is not handed out again, and nothing is left out."""

from dataclasses import dataclass, fields, is_dataclass
from functools import cache

import pytest
import torch

from lightning_tgnn import FullGraphDataModule, SnapshotDataModule, TemporalDataModule
from lightning_tgnn.algorithms.schedules import DataParallel, EpochsAndCopies, RoundRobin
from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.types import RankLayout
from lightning_tgnn.types.layout import families_of
from tests.data.example_streams import random_store
from tests.data.snapshots.dealt_groups import DealtGroups

GRAPH = {"num_nodes": 40, "num_edges": 160, "feature_dim": 3, "num_classes": 3}
SPLITS = ("train", "val", "test")


@cache
def store():
    return random_store(97, num_nodes=12, edge_dim=2)


def events(split, rank, ranks, *, global_batch=16, schedule=DataParallel(), layout=None, **options):  # noqa: B008
    size = global_batch // ranks if schedule == DataParallel() else global_batch
    settings = {"num_neighbors": 2, "num_eval_negatives": 3, "batch_size": size, **options}
    data = TemporalDataModule(store(), **settings)
    data.sampled_roots = "all"
    loader = getattr(data, f"{split}_dataloader")()
    return loader.follow(schedule, layout or RankLayout.of(ranks), rank)


def in_turn(split, rank, ranks, **options):
    return events(split, rank, ranks, global_batch=5, schedule=RoundRobin(), **options)


def in_passes(split, rank, ranks, **options):
    schedule = EpochsAndCopies(epoch=ranks // (1 + (ranks == 4)), memory=1 + (ranks == 4), negative_sets=5)
    layout = RankLayout.of(ranks, families=families_of(ranks, schedule.memory))
    return events(split, rank, ranks, global_batch=7, schedule=schedule, layout=layout, **options)


@cache
def graph():
    data = FullGraphDataModule("synthetic", synthetic=GRAPH)
    data.setup()
    return data


def whole_graph(split, rank, ranks):
    loader = getattr(graph(), f"{split}_dataloader")()
    return loader.shard(torch.arange(len(loader.edges[0])) % ranks, torch.zeros(ranks, dtype=torch.int64), rank)


@cache
def snapshot_data(options):
    return SnapshotDataModule(store(), num_snapshots=17, group_size=4, test_ratio=0.3, val_ratio=0.3, **dict(options))


def snapshots(split, rank, ranks, **options):
    schedule = DealtGroups(2 - ranks % 2)
    loader = getattr(snapshot_data(tuple(options.items())), f"{split}_dataloader")()
    return loader.follow(schedule, RankLayout.of(ranks), rank)


def sampled_snapshots(split, rank, ranks, **options):
    return snapshots(split, rank, ranks, vertices_per_batch=24, fanouts=2, **options)


@dataclass(frozen=True)
class Loaders:
    """How loaders of a kind are made, by split, rank and number of ranks, and by which options."""

    make: object
    options: tuple = ({},)


AHEAD = tuple(
    {"prefetch_batches": prefetch, "num_workers": workers, "presample": presample}
    for prefetch in (0, 2)
    for workers in (0, 2)
    for presample in ("off", "epoch")
)
SNAPSHOTS_AHEAD = ({"prefetch_batches": 0}, {"prefetch_batches": 2, "num_workers": 2})
# A new loader is added here in a line.
LOADERS = {
    "events": Loaders(events, AHEAD),
    "in turn": Loaders(in_turn, AHEAD[::3]),
    "in passes": Loaders(in_passes, AHEAD[::3]),
    "graph": Loaders(whole_graph),
    "snapshots": Loaders(snapshots, SNAPSHOTS_AHEAD),
    "sampled snapshots": Loaders(sampled_snapshots, SNAPSHOTS_AHEAD[1:]),
}
CASES = [
    (name, ranks, number)
    for name, kind in LOADERS.items()
    for ranks in range(1, 5)
    for number in range(len(kind.options))
]
in_every_case = pytest.mark.parametrize("case", CASES, ids=str)
of_every_kind = pytest.mark.parametrize("name", LOADERS)


def made(case, split, rank):
    name, ranks, number = case
    return LOADERS[name].make(split, rank, ranks, **LOADERS[name].options[number])


def values(batch):
    """Return all that a batch holds as plain values."""
    if is_dataclass(batch):
        return {field.name: values(getattr(batch, field.name)) for field in fields(batch)}
    if isinstance(batch, tuple):
        return [values(part) for part in batch]
    return (str(batch.dtype), batch.tolist()) if torch.is_tensor(batch) else batch


@cache
def uninterrupted(name, split, rank, ranks, epoch):
    """Return the batches of an epoch, each made when it is asked for, by a loader that was never stopped."""
    loader = LOADERS[name].make(split, rank, ranks, **({} if name == "graph" else {"num_workers": 0}))
    loader.set_epoch(epoch)
    return [values(batch) for batch in loader]


def rest_of(loader):
    return [values(batch) for batch in loader]


@in_every_case
@pytest.mark.parametrize("split", SPLITS)
def test_a_new_loader_goes_on_after_any_batch(case, split):
    name, ranks, _ = case
    rank, epoch = (ranks - 1, 3)
    known = uninterrupted(name, split, rank, ranks, epoch)
    following = uninterrupted(name, split, rank, ranks, epoch + 1)
    running = made(case, split, rank)
    running.set_epoch(epoch)
    iterator = iter(running)
    states = [running.state_dict()]
    for batch in known:
        assert values(next(iterator)) == batch
        states.append(running.state_dict())
    iterator.close()
    places = {0, 1, len(known) - 1, len(known)} if case[2] else range(len(states))
    for place in sorted(places):
        resumed = made(case, split, rank)
        resumed.load_state_dict(states[place])
        assert resumed.state_dict() == states[place]
        iterator = iter(resumed)  # as Lightning does: the iterator is made before the epoch is told
        resumed.set_epoch(epoch)
        assert rest_of(iterator) == known[place:], place
        assert resumed.state_dict() == states[-1]
        resumed.set_epoch(epoch + 1)
        assert rest_of(resumed) == following
        assert resumed.state_dict() == {**states[-1], "epoch": epoch + 1}


@of_every_kind
@pytest.mark.parametrize("split", SPLITS)
def test_the_length_is_the_number_of_batches_on_all_ranks(name, split):
    for ranks in range(1, 5):
        loaders = [LOADERS[name].make(split, rank, ranks) for rank in range(ranks)]
        assert {len(loader) for loader in loaders} == {len(list(loader)) for loader in loaders}
        assert len({len(loader) for loader in loaders}) == 1


@in_every_case
def test_the_next_epoch_begins_at_its_beginning(case):
    name, ranks, _ = case
    loader = made(case, "train", 0)
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(1)
    assert loader.state_dict()["position"] == 0
    assert rest_of(loader) == uninterrupted(name, "train", 0, ranks, 1)
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "position": 1})
    loader.set_epoch(2)
    assert rest_of(loader) == uninterrupted(name, "train", 0, ranks, 2)


@of_every_kind
def test_an_epoch_that_is_told_again_changes_nothing(name):
    loader = LOADERS[name].make("train", 0, 1)
    loader.set_epoch(4)
    iterator = iter(loader)
    next(iterator)
    before = loader.state_dict()
    loader.set_epoch(4)
    assert loader.state_dict() == before
    assert rest_of(iterator) == uninterrupted(name, "train", 0, 1, 4)[1:]
    assert rest_of(loader) == uninterrupted(name, "train", 0, 1, 4)  # asked once more, it begins once more


@of_every_kind
def test_epochs_of_training_differ_and_those_of_evaluation_do_not(name):
    for split, same in (("train", False), ("val", name != "graph")):  # a graph is not drawn in evaluation
        assert (uninterrupted(name, split, 0, 1, 0) == uninterrupted(name, split, 0, 1, 1)) == same


@of_every_kind
def test_a_position_is_plain_values(name):
    state = LOADERS[name].make("train", 0, 1).state_dict()
    assert all(type(value) is int for value in state.values())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("number", range(len(AHEAD)))
def test_another_batch_size_is_refused_within_an_epoch(ranks, number):
    loader = events("train", 0, ranks, **AHEAD[number])
    next(iter(loader))
    other = events("train", 0, ranks, global_batch=8, **AHEAD[number])
    other.load_state_dict(loader.state_dict())
    size = "batch_size" if ranks == 1 else f"batch_size times the {ranks} ranks"
    with pytest.raises(CheckpointError, match=f"{size} must be 16 to .*, got 8; give batch_size {16 // ranks}, or"):
        next(iter(other))
    other.load_state_dict(loader.state_dict())
    other.set_epoch(1)
    assert len(list(other)) == len(other)


@pytest.mark.parametrize(("ranks", "others"), [(1, 4), (4, 2), (2, 1)])
def test_other_ranks_go_on_where_the_global_batch_is_the_same(ranks, others):
    loader = events("train", 0, ranks)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    for rank in range(others):
        resumed = events("train", rank, others)
        resumed.load_state_dict(loader.state_dict())
        assert rest_of(resumed) == uninterrupted("events", "train", rank, others, 0)[2:]


@pytest.mark.parametrize("others", [2, 3])
def test_passes_that_other_ranks_have_begun_are_not_gone_on_with(others):
    loader = in_passes("train", 0, 1)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    first = next(iterator)
    read = set()
    for rank in range(others):
        resumed = in_passes("train", rank, others)
        resumed.load_state_dict(loader.state_dict() | {"position": 4, "batches": 4})
        for batch in resumed:
            assert batch.shared.reads or tuple(batch.events.tolist()) in read | {()}
            read |= {tuple(batch.events.tolist())} if batch.shared.reads else set()
    assert tuple(first.events.tolist()) in read


def test_ranks_that_have_no_part_in_a_batch_know_whom_it_mails():
    schedule = EpochsAndCopies(epoch=2)
    layout = RankLayout.of(2, families=families_of(2))
    uniform = {"neighbor_sampler": "uniform", "num_workers": 0, "batch_size": 5}
    loaders = []
    for rank in range(2):
        data = TemporalDataModule(store(), num_neighbors=2, **uniform)
        data.sampled_roots = "events"
        loaders.append(data.train_dataloader().follow(schedule, layout, rank))
    turns = list(zip(*loaders, strict=True))
    assert len(turns) > 5
    for number, batches in enumerate(turns):
        changed = [sorted(batch.shared.changed.tolist()) for batch in batches]
        assert changed[0] == changed[1]
        (reads, *_) = [batch for batch in batches if batch.shared.reads] or [None]
        if reads is not None:
            assert changed[0] == sorted(reads.mail_nodes.tolist()), number


def test_a_further_copy_is_told_where_it_has_to_stand():
    for copy in range(2):
        loader = in_passes("train", 2 * copy, 4)
        for epoch in range(2):
            loader.set_epoch(epoch)
            stands = [batch.shared.continues for batch in loader]
            assert stands[1:] == [None] * (len(stands) - 1)
            over = len(loader.events)
            batches = -(-over // 7)
            assert stands[0] == (int(loader.events[batches // 2 * 7 - 1]) + 1 if copy else None)


@pytest.mark.parametrize("others", range(1, 5))
@pytest.mark.parametrize("ranks", range(1, 5))
@pytest.mark.parametrize("ends", [False, True])
def test_other_ranks_that_take_turns_go_on_with_the_next_batch(ranks, others, ends):
    whole, loader = uninterrupted("in turn", "train", 0, 1, 0), in_turn("train", 0, ranks)
    played = len(loader) if ends else 2
    iterator = iter(loader)
    for _ in range(played):
        next(iterator)
    following = []
    for rank in range(others):
        resumed = in_turn("train", rank, others)
        resumed.load_state_dict(loader.state_dict())
        assert resumed.state_dict()["batches"] == min(played * ranks, len(whole))
        following.append(rest_of(resumed))
        assert resumed.turns_left == 0
        assert resumed.state_dict()["batches"] == len(whole)
        resumed.set_epoch(1)
        assert resumed.turns_left == len(resumed)
    found = [batch["events"][1] for turn in zip(*following, strict=True) for batch in turn]
    assert [events for events in found if events] == [batch["events"][1] for batch in whole[played * ranks :]]
