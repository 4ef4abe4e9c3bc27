"""Snapshots of a store in one process: any number of them, held and put back in any order, against whole copies."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.types import StateSpec, StateUpdate

NODES = 6
SPEC = StateSpec(num_nodes=NODES, memory_dim=2, mail_dim=3, mailbox_size=2, own_half=False)


def update(seed):
    g = torch.Generator().manual_seed(seed)
    nodes, mailed = (torch.randperm(NODES, generator=g)[: int(torch.randint(4, (), generator=g))] for _ in range(2))
    return StateUpdate(
        nodes=nodes,
        memory=torch.rand(len(nodes), 2, generator=g),
        memory_time=torch.rand(len(nodes), generator=g).double(),
        mail_nodes=mailed,
        mails=torch.rand(len(mailed), 3, generator=g),
        mail_time=torch.rand(len(mailed), generator=g).double(),
        mail_event=torch.arange(len(mailed)),
        position=seed + 1,
        changed=nodes[:0],
    )


def tables(state):
    return {
        name: state[name].tolist()
        for name in ("memory", "memory_time", "mails", "mail_time", "mail_event", "mail_count")
    }


def whole(store):
    return store.position, tables(store.state_dict())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "commit", "snapshot", "restore", "save", "drop", "reset", "load"]),
        st.integers(0, 99),
        st.booleans(),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_several_snapshots_are_what_whole_copies_were(steps):
    store, held, saved = LocalStateStore(SPEC), [], None
    for kind, number, inference in steps:
        with torch.inference_mode(inference):
            if kind == "commit":
                store.commit(update(number)).wait()
            elif kind == "snapshot":
                held.append((store.snapshot(), whole(store)))
            elif kind == "reset":
                store.reset()
            elif kind == "load":
                if saved is not None:
                    store.load_state_dict(saved)
            elif held:
                snapshot, expected = held[number % len(held)]
                if kind == "drop":
                    del held[number % len(held)]
                elif kind == "restore":
                    store.restore(snapshot)
                    assert whole(store) == expected
                else:
                    before, saved = whole(store), store.state_dict(snapshot)
                    assert (saved["position"], tables(saved)) == expected
                    assert whole(store) == before
    for snapshot, expected in held:
        store.restore(snapshot)
        assert whole(store) == expected


def test_only_what_is_written_is_kept_and_only_while_a_snapshot_is_held():
    store = LocalStateStore(SPEC)
    snapshot = store.snapshot()
    written = update(3)
    store.commit(written).wait()
    expected = torch.cat([written.nodes, written.mail_nodes]).unique()
    assert 0 < len(expected) < NODES
    assert torch.equal(snapshot["old"].nodes, expected)
    assert store._held_snapshots() == [snapshot["old"]]
    del snapshot
    assert store._held_snapshots() == []


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copy", "pickle"]
)
def test_a_copy_of_a_store_and_its_snapshot_go_on_by_themselves(copied):
    store = LocalStateStore(SPEC)
    store.commit(update(1)).wait()
    expected, both = whole(store), (store, store.snapshot())
    store.commit(update(2)).wait()
    other, snapshot = copied(both)
    other.commit(update(5)).wait()
    changed = whole(store)
    other.restore(snapshot)
    assert whole(other) == expected
    assert whole(store) == changed
