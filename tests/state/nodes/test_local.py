import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.types import StateSpec, StateStore, StateUpdate

SPEC = StateSpec(num_nodes=4, memory_dim=2, mail_dim=3, mailbox_size=2, own_half=False)


def update(nodes, mail_nodes, value, position=1):
    return StateUpdate(
        nodes=torch.tensor(nodes, dtype=torch.int64),
        memory=torch.full((len(nodes), 2), float(value)),
        memory_time=torch.full((len(nodes),), float(value), dtype=torch.float64),
        mail_nodes=torch.tensor(mail_nodes, dtype=torch.int64),
        mails=torch.full((len(mail_nodes), 3), float(value)),
        mail_time=torch.full((len(mail_nodes),), float(value), dtype=torch.float64),
        mail_event=torch.full((len(mail_nodes),), int(value)),
        position=position,
        changed=torch.empty(0, dtype=torch.int64),
    )


def test_contract():
    store = LocalStateStore(SPEC)
    assert isinstance(store, StateStore)


def test_what_is_committed_is_fetched_in_the_order_asked_for():
    store = LocalStateStore(SPEC)
    store.commit(update([2, 0], [1], 5.0, position=7)).wait()
    rows = store.fetch(torch.tensor([0, 1, 2])).wait()
    assert rows.memory.tolist() == [[5, 5], [0, 0], [5, 5]]
    assert rows.memory_time.tolist() == [5, 0, 5]
    assert rows.mail_count.tolist() == [0, 1, 0]
    assert rows.mails[1, 0].tolist() == [5, 5, 5]
    assert store.position == 7


def test_a_full_mailbox_loses_its_oldest_mail():
    store = LocalStateStore(SPEC)
    for value in (1, 2, 3):
        store.commit(update([0], [0], value))
    rows = store.fetch(torch.tensor([0])).wait()
    assert sorted(rows.mail_time[0].tolist()) == [2, 3]
    assert rows.mail_count.tolist() == [3]


def test_rows_are_copies():
    store = LocalStateStore(SPEC)
    rows = store.fetch(torch.tensor([0])).wait()
    store.commit(update([0], [0], 1))
    assert rows.memory.tolist() == [[0, 0]]


def test_restore_brings_the_snapshot_back():
    store = LocalStateStore(SPEC)
    store.commit(update([0], [1], 1, position=3))
    snapshot = store.snapshot()
    with torch.inference_mode():
        store.commit(update([0, 3], [0, 1], 2, position=9))
        store.restore(snapshot)
    assert store.position == 3
    assert store.fetch(torch.tensor([0, 3])).wait().memory.tolist() == [[1, 1], [0, 0]]
    store.commit(update([3], [3], 4))  # outside inference mode: no tensor of it may have stayed
    assert not store.rows.memory.is_inference()


def test_reset_empties_everything():
    store = LocalStateStore(SPEC)
    store.commit(update([0], [0], 1))
    store.reset()
    assert not any(table.any() for table in vars(store.rows).values())
    assert store.position == 0


def test_state_dict_round_trip():
    store, other = LocalStateStore(SPEC), LocalStateStore(SPEC)
    store.commit(update([0, 2], [1], 1, position=4))
    other.load_state_dict(store.state_dict())
    assert other.position == 4
    for name, table in vars(store.rows).items():
        assert torch.equal(table, getattr(other.rows, name))


def test_state_of_another_graph_is_refused():
    store = LocalStateStore(StateSpec(num_nodes=5, memory_dim=2, mail_dim=3, mailbox_size=2, own_half=False))
    with pytest.raises(CheckpointError, match=r"node state must be of .*'num_nodes': 5.* got .*'num_nodes': 4"):
        store.load_state_dict(LocalStateStore(SPEC).state_dict())


@given(st.lists(st.tuples(st.permutations(range(4)), st.integers(0, 4), st.permutations(range(4)), st.integers(0, 4))))
def test_the_first_rows_of_an_update_are_written_without_asking_how_many(steps):
    ours, theirs = LocalStateStore(SPEC), LocalStateStore(SPEC)
    for number, (nodes, written, mailed, sent) in enumerate(steps, 1):
        ours.commit_first(update(nodes, mailed, number), torch.tensor(written), torch.tensor(sent))
        theirs.commit(update(nodes[:written], mailed[:sent], number))
    check_same_rows(ours, theirs)
    assert ours.position == 0


def check_same_rows(ours, theirs):
    for name, table in vars(theirs.rows).items():
        assert torch.equal(table, getattr(ours.rows, name)), name


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))])
def test_a_copy_with_a_spare_row_is_a_store_of_its_own(copied):
    store, plain = LocalStateStore(SPEC), LocalStateStore(SPEC)
    for one in (store, plain):
        one.commit(update([2, 0], [1], 5.0))
    spare = store.with_scratch_row()
    assert len(spare.memory) == SPEC.num_nodes + 1
    assert store.with_scratch_row() is spare
    check_same_rows(store, plain)
    other = copied(store)
    other.commit_first(update([1, 3], [2], 7.0), torch.tensor(1), torch.tensor(1))
    check_same_rows(store, plain)
    plain.commit(update([1], [2], 7.0))
    check_same_rows(other, plain)
