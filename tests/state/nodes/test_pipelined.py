"""Node state that passes along a pipeline: what each batch reads is what all batches before it have written."""

import random
import time
from dataclasses import replace

import pytest
import torch

from lightning_tgnn.comm import Messages, ProcessGroups, shared_tensors
from lightning_tgnn.state import PipelinedStateStore
from lightning_tgnn.state.nodes.pipelined import pipelined_shapes
from lightning_tgnn.types import RankLayout, Surroundings
from tests.contracts.node_state import NODES, SETTINGS, Draw, Reference, plain, rows_of
from tests.multiprocess.ranks import run_ranks

RANKS, TURNS = 4, 14
KINDS = ("plain", "ahead", "passed on", "mixed")
BETWEEN = ("nothing", "nothing", "nothing", "save", "evaluate", "reset", "position", "held")
CASES = [(kind, ranks, setting) for kind in KINDS for ranks in range(1, RANKS + 1) for setting in SETTINGS]


def batches(case):
    """Return what each batch reads and writes and what is around it, turn by turn; and what comes after each turn."""
    kind, ranks, setting = case
    number = CASES.index(case)
    draw, choice = Draw(number, SETTINGS[setting], 1), random.Random(number)
    updates = [draw.updates()[0] for _ in range(TURNS * ranks)]
    written = [set(update.nodes.tolist()) for update in updates]
    turns = []
    for turn in range(TURNS):
        row = []
        for place in range(ranks):
            batch = turn * ranks + place
            others = [node for node in range(NODES) if node not in written[batch] and choice.random() < 0.5]
            nodes = torch.tensor([*written[batch], *others], dtype=torch.int64)
            around = None
            if batch and (kind != "mixed" or choice.random() < 0.5) and kind != "plain":
                after = written[batch + 1] if batch + 1 < len(written) else set()
                around = Surroundings(
                    changed=updates[batch - 1].changed,
                    received=ascending(written[batch] & written[batch - 1]),
                    passed_on=ascending(written[batch] & after),
                )
            row.append((nodes, updates[batch], around))
        turns.append((row, choice.choice(BETWEEN if turn < TURNS - 1 else BETWEEN[:5])))
    return turns


def ascending(nodes):
    return torch.tensor(sorted(nodes), dtype=torch.int64)


def play(case, store, place):
    """Return what this rank has read in every turn, and what was found between turns."""
    shake, found = random.Random(place), []
    for row, between in batches(case):
        nodes, update, around = row[place]
        time.sleep(shake.choice((0, 0, 0.002)))
        step = store.read_ahead(nodes, around) if around is not None else store.fetch(nodes)
        time.sleep(shake.choice((0, 0, 0.002)))
        read = plain(step.wait())
        time.sleep(shake.choice((0, 0, 0.002)))
        store.commit(update).wait()
        other = None
        if between == "save":
            state = store.state_dict()
            other = (state["position"], plain(rows_of(state))) if place == 0 else None
        elif between == "evaluate":
            kept = store.snapshot()
            with torch.inference_mode():
                store.fetch(nodes).wait()
                store.commit(replace(update, memory=update.memory + 1))
            store.restore(kept)
        elif between == "reset":
            store.reset()
        elif between == "position":
            other = store.position
        elif between == "held":
            other = plain(store.held())
        found.append((read, other))
    assert store.position == batches(case)[-1][0][-1][1].position  # and no word is left on the way
    return found


def on_rank(rank, ranks):
    families = {str(count): (tuple(range(count)),) for count in range(1, ranks + 1)}
    groups, outcomes = ProcessGroups(RankLayout.of(ranks, families=families), rank), {}
    for case in CASES:
        kind, count, setting = case
        if rank < count:
            own = tuple(range(count))
            tables = shared_tensors(pipelined_shapes(SETTINGS[setting]), own, rank, groups.of(str(count)))
            messages = Messages(own, rank, groups.of(str(count)))
            store = PipelinedStateStore(SETTINGS[setting], messages, tables, passes_on=kind != "ahead")
            outcomes[case] = play(case, store, rank)
            if count > 1:
                outcomes[case, "bytes"] = messages.traffic.flows["rows passed on"].sent
    return outcomes


@pytest.fixture(scope="module")
def played():
    return run_ranks(on_rank, RANKS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batch_reads_what_all_before_have_written(case, played):
    reference, everything = Reference(SETTINGS[case[2]]), torch.arange(NODES)
    ranks = case[1]
    each = -(-NODES // ranks)
    for turn, (row, between) in enumerate(batches(case)):
        for place, (nodes, update, _) in enumerate(row):
            read, other = played[place][case][turn]
            assert read == reference.fetch(nodes), (turn, place)
            reference.commit([update])
        for place in range(ranks):
            other = played[place][case][turn][1]
            if between == "position":
                assert other == reference.position
            elif between == "held":
                assert other == reference.fetch(everything[place * each : (place + 1) * each])
            elif between == "save" and place == 0:
                assert other == (reference.position, reference.fetch(everything))
        if between == "reset":
            reference.reset()


def test_rows_are_passed_on_where_they_may_be(played):
    for case in CASES:
        if case[1] > 1:
            sent = sum(played[place][case, "bytes"] for place in range(case[1]))
            assert bool(sent) == (case[0] in ("passed on", "mixed")), case
