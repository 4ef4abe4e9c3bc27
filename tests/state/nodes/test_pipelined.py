"""Node state that passes along a pipeline: what each batch reads is what all batches before it have written."""

import random
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lightning_tgnn.comm import Messages, ProcessGroups, shared_tensors
from lightning_tgnn.state import PipelinedStateStore
from lightning_tgnn.state.nodes.pipelined import pipelined_shapes
from lightning_tgnn.types import RankLayout, Surroundings
from tests.contracts.node_state import NODES, SETTINGS, Draw, Reference, assert_same, plain, rows_of
from tests.multiprocess.ranks import run_ranks

RANKS, TURNS, EVALUATED = 4, 10, 3
KINDS = ("plain", "ahead", "passed on", "mixed")
BETWEEN = ("nothing", "nothing", "nothing", "save", "evaluate", "reset", "position", "held")
CASES = [(kind, ranks, setting) for kind in KINDS for ranks in range(1, RANKS + 1) for setting in SETTINGS]


def batches(case, count=TURNS):
    """Return what each batch reads and writes and what is around it, turn by turn; and what comes after each turn."""
    kind, ranks, setting = case
    number = CASES.index(case) + TURNS - count
    draw, choice = Draw(number, setting, 1), random.Random(number)
    updates = [draw.updates()[0] for _ in range(count * ranks)]
    written = [set(update.nodes.tolist()) for update in updates]
    turns = []
    for turn in range(count):
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
                    passed_on=ascending(written[batch] & after),
                )
            row.append((nodes, updates[batch], around))
        turns.append((row, choice.choice(BETWEEN if turn < count - 1 else BETWEEN[:5])))
    return turns


def ascending(nodes):
    return torch.tensor(sorted(nodes), dtype=torch.int64)


def play(case, store, place):
    """Return what this rank has read in every turn, and what was found between turns."""
    shake, found, played = random.Random(place), [], batches(case)
    for row, between in played:
        nodes, update, around = row[place]
        time.sleep(shake.choice((0, 0, 0.002)))
        if case[0] == "mixed" and shake.random() < 0.3:  # reads twice; then nothing is passed on
            store.read_ahead(nodes, around)
            around = None
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
                for others, _ in batches(case, EVALUATED):
                    nodes, update, around = others[place]
                    step = store.read_ahead(nodes, around) if around is not None else store.fetch(nodes)
                    step.wait()
                    store.commit(replace(update, memory=update.memory + 1))
            store.restore(kept)
        elif between == "reset":
            store.reset()
        elif between == "position":
            other = store.position
        elif between == "held":
            other = plain(store.held())
        found.append((read, other))
    assert store.position == played[-1][0][-1][1].position  # and no word is left on the way
    return found


def make(case, groups, rank):
    """Return the store of a case, and what it passes on by."""
    kind, count, setting = case
    own, group = tuple(range(count)), groups.of(str(count))
    messages = Messages(own, rank, group)
    tables = shared_tensors(pipelined_shapes(SETTINGS[setting]), own, rank, group)
    return PipelinedStateStore(SETTINGS[setting], messages, tables, passes_on=kind != "ahead"), messages


def holders(ranks):
    """Return the rank that counts each node."""
    return torch.arange(NODES) // -(-NODES // ranks)


def on_rank(rank, ranks):
    families = {str(count): (tuple(range(count)),) for count in range(1, ranks + 1)}
    groups, outcomes = ProcessGroups(RankLayout.of(ranks, families=families), rank), {}
    for case in CASES:
        if rank < case[1]:
            store, messages = make(case, groups, rank)
            outcomes[case] = play(case, store, rank)
            outcomes[case, "bytes"] = messages.traffic.flows["rows passed on"].sent
    return outcomes


@pytest.fixture(scope="module")
def played():
    return run_ranks(on_rank, RANKS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batch_reads_what_all_before_have_written(case, played):
    reference, everything = Reference(SETTINGS[case[2]]), torch.arange(NODES)
    ranks = case[1]
    for turn, (row, between) in enumerate(batches(case)):
        for place, (nodes, update, _) in enumerate(row):
            read, other = played[place][case][turn]
            assert_same(read, reference.fetch(nodes), case[2], f"turn {turn}, place {place}")
            reference.commit([update])
        for place in range(ranks):
            other = played[place][case][turn][1]
            if between == "position":
                assert other == reference.position
            elif between == "held":
                assert_same(
                    other, reference.fetch((holders(ranks) == place).nonzero().squeeze(1)), case[2], f"turn {turn}"
                )
            elif between == "save" and place == 0:
                assert other[0] == reference.position
                assert_same(other[1], reference.fetch(everything), case[2], f"turn {turn}")
        if between == "reset":
            reference.reset()


def test_rows_are_passed_on_where_they_may_be(played):
    for case in CASES:
        kind, ranks, _ = case
        if ranks > 1:
            sent = sum(played[place][case, "bytes"] for place in range(ranks))
            assert bool(sent) == (kind in ("passed on", "mixed")), case


class Recorded:
    """Messages of the first of two ranks, and what the shared rows hold when each is sent."""

    ranks, place = 2, 0

    def __init__(self, tables):
        self.tables, self.sent = tables, []

    def send(self, values, place, operation):
        self.sent.append((operation, self.tables["memory"].clone()))

    def receive(self, values, place, operation):
        return SimpleNamespace(wait=lambda: values)  # nothing was passed to it


def test_rows_are_passed_on_before_the_others_are_written():
    spec, nodes = SETTINGS["one mail"], torch.arange(NODES)
    tables = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in pipelined_shapes(spec).items()}
    messages = Recorded(tables)
    store = PipelinedStateStore(spec, messages, tables)
    (update,) = Draw(3, "one mail", 1).updates()
    half = update.nodes.sort().values[: len(update.nodes) // 2]
    store._turns = 1  # a batch was before
    store.read_ahead(nodes, Surroundings(nodes[:0], half))
    store.commit(update)
    names = [name for name, _ in messages.sent]
    assert names == ["number of rows passed on", "rows passed on", "word of written rows"]
    assert not messages.sent[1][1].any()
    assert messages.sent[2][1].any()
    assert not tables["memory"][half].any()  # the next rank writes them
