import pytest
import torch

from lightning_tgnn.checks import CheckpointError
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.types import StateSpec, StateStore, StateUpdate

SPEC = StateSpec(num_nodes=4, memory_dim=2, mail_dim=3, mailbox_size=2, own_half=False)


def update(nodes, mail_nodes, value, position=1):
    return StateUpdate(
        nodes=torch.tensor(nodes),
        memory=torch.full((len(nodes), 2), float(value)),
        memory_time=torch.full((len(nodes),), float(value), dtype=torch.float64),
        mail_nodes=torch.tensor(mail_nodes),
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
