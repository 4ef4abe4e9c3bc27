import pytest
import torch

from lightning_tgnn import EventStore
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.streams.splits import chronological_split
from tests.data.example_streams import random_store


def test_by_events():
    split = chronological_split(random_store(200), val_ratio=0.15, test_ratio=0.1)
    assert split.train.tolist() == list(range(150))
    assert split.val.tolist() == list(range(150, 180))
    assert split.test.tolist() == list(range(180, 200))


def test_by_time():
    store = EventStore.from_arrays([0] * 6, [1] * 6, [0.0, 1.0, 2.0, 65.0, 90.0, 100.0])
    split = chronological_split(store, val_ratio=0.2, test_ratio=0.2, by="time")  # cuts at 60 and at 80
    assert [part.tolist() for part in (split.train, split.val, split.test)] == [[0, 1, 2], [3], [4, 5]]
    with pytest.raises(InvalidArgumentError, match="the validation split must be at least one event"):
        chronological_split(store, val_ratio=0.1, test_ratio=0.2, by="time")


def test_held_out_nodes_leave_training_only():
    store = random_store(300, num_nodes=40)
    plain = chronological_split(store, val_ratio=0.2, test_ratio=0.2)
    split = chronological_split(store, val_ratio=0.2, test_ratio=0.2, held_out=0.2, seed=1)
    assert torch.equal(split.val, plain.val)
    assert torch.equal(split.test, plain.test)
    kept = set(split.train.tolist())
    assert kept < set(plain.train.tolist())
    out = {int(node) for node in split.unseen.nonzero()}
    later = {int(n) for part in (plain.val, plain.test) for n in torch.cat([store.src[part], store.dst[part]])}
    assert len(out & later) >= round(0.2 * len(later))
    for event in plain.train.tolist():
        ends = {int(store.src[event]), int(store.dst[event])}
        assert (event in kept) == (not ends & out)


def test_held_out_nodes_depend_on_the_seed():
    store = random_store(300, num_nodes=40)
    splits = [chronological_split(store, val_ratio=0.2, test_ratio=0.2, held_out=0.2, seed=s).train for s in (1, 1, 2)]
    assert torch.equal(splits[0], splits[1])
    assert not torch.equal(splits[0], splits[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_ratio": 0.0}, r"val_ratio must be a number in \(0, 1\), got 0.0"),
        ({"test_ratio": 1.0}, r"test_ratio must be a number in \(0, 1\), got 1.0"),
        ({"val_ratio": float("nan")}, "val_ratio must be a number"),
        ({"val_ratio": 0.5, "test_ratio": 0.5}, "the training split must be at least one event"),
        ({"val_ratio": 0.001}, "the validation split must be at least one event"),
        ({"by": "nodes"}, "split_by must be one of 'events', 'time', got 'nodes'"),
        ({"held_out": -0.1}, r"held_out_nodes must be a number in \[0, 1\)"),
        ({"held_out": 0.99}, "held_out_nodes must be a share that leaves events to train on, got 0.99"),
    ],
)
def test_bad_splits_are_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        chronological_split(random_store(200), **{"val_ratio": 0.15, "test_ratio": 0.15, **options})


def test_one_event_cannot_be_split():
    with pytest.raises(InvalidArgumentError, match="must be at least one event"):
        chronological_split(EventStore.from_arrays([0], [1], [0.0]), val_ratio=0.15, test_ratio=0.15)
