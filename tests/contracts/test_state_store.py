"""The contract of `StateStore`: every store answers what dictionaries say, on every number of ranks."""

import pytest
import torch

from lightning_tgnn.comm import Exchange
from lightning_tgnn.types import StateStore
from tests.contracts.node_state import (
    FIELDS,
    NODES,
    SETTINGS,
    Draw,
    Reference,
    assert_same,
    expected,
    plain,
    rows_of,
    sequence,
)
from tests.contracts.stores import CASES, LENGTH, PLACES, STORES, going_on, seed_of

THREE = SETTINGS["three mails"]


@pytest.mark.parametrize("name", STORES)
def test_members(name):
    store = STORES[name][0](THREE, Exchange())
    update = Draw(0, "three mails", 1).updates()[0]
    assert isinstance(store, StateStore)
    assert len(store.fetch(torch.arange(NODES)).wait().memory) == NODES
    assert store.commit(update).wait() is None


def saved(state):
    return {"position": state["position"], **plain(rows_of(state))}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_random_sequence(case, stores_on_ranks):
    _, ranks, setting = case
    steps = sequence(seed_of(case), setting, ranks, LENGTH)
    answers = expected(steps, SETTINGS[setting])
    for rank in range(ranks):
        given = stores_on_ranks[rank]["sequence"][case]
        for number, (step, answer, found) in enumerate(zip(steps, answers, given, strict=True)):
            where = f"step {number} of {[step.kind for step in steps]} on rank {rank}"
            if step.kind in ("fetch", "train"):
                assert_same(plain(found), answer[rank], setting, where)
            elif step.kind == "position":
                assert found == answer, where
            elif answer is not None and rank == 0:
                assert_same(saved(found), answer, setting, where)


@pytest.mark.parametrize("source", PLACES, ids=str)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_state_moves_to_other_ranks_and_stores(source, place, stores_on_ranks):
    reference, everything = Reference(THREE), torch.arange(NODES)
    steps = sequence(500 + source[1], "three mails", source[1], LENGTH)
    last = expected(steps, THREE)[-1][0]
    for rank in range(place[1]):
        position, before, after, end = stores_on_ranks[rank]["moved"][source, place]
        assert position == steps[-2].given[0].position
        assert plain(before) == last
        reference.rows = {node: {name: last[name][node] for name in FIELDS} for node in range(NODES)}
        reference.rows = {node: {**row, **copied_slots(row)} for node, row in reference.rows.items()}
        updates = going_on(place[1])
        reference.commit(updates)
        assert plain(after) == reference.fetch(everything)
        assert end == updates[0].position


def copied_slots(row):
    return {name: list(row[name]) for name in ("mails", "mail_time", "mail_event")}


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_state_of_another_model_is_refused(place, stores_on_ranks):
    for rank in range(place[1]):
        assert "node state must be of" in stores_on_ranks[rank]["refused"][place]


def test_sequences_cover_what_the_contract_says():
    """Several ranks write to one node, mailboxes overflow, and fetches and commits are empty."""
    shared, empty, most = 0, set(), 0
    for case in CASES:
        steps = sequence(seed_of(case), case[2], case[1], LENGTH)
        most = max(most, *expected(steps, SETTINGS[case[2]])[-1][0]["mail_count"])
        for step in steps:
            if step.kind == "commit":
                written = [node for update in step.given for node in update.nodes.tolist()]
                shared += len(written) > len(set(written))
            empty |= {(step.kind, len(given if step.kind == "fetch" else given.nodes) == 0) for given in step.given
                      if step.kind in ("fetch", "commit")}  # fmt: skip
    assert shared > len(CASES)
    assert empty == {(kind, is_empty) for kind in ("fetch", "commit") for is_empty in (True, False)}
    assert most > THREE.mailbox_size
