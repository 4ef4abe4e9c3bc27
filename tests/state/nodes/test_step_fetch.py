"""The rows of a step on their way, on several ranks that take turns in one process."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Traffic
from lightning_tgnn.state import ShardedStateStore
from lightning_tgnn.state.nodes.step_fetch import StepFetch
from lightning_tgnn.state.nodes.wire import MailCodec, RowCodec
from lightning_tgnn.types import AnnouncedRows, StateRows, StateSpec

NODES, RANKS = 10, 3
SPEC = StateSpec(NODES, 2, 5, 1, False)


class Posted:
    """What all ranks send to one, once each of them has posted its part."""

    def __init__(self, wires, number, rank):
        self.wires, self.number, self.rank = wires, number, rank

    def wait(self):
        return torch.cat([posts[self.number][self.rank] for posts in self.wires])


class LocalExchange:
    """An exchange between ranks of one process, which have to start a message before one of them waits for it."""

    def __init__(self, wires, rank):
        self.ranks, self.rank, self.traffic = len(wires), rank, Traffic()
        self.wires = wires

    def start(self, rows, sent, received, operation):
        self.wires[self.rank].append(rows.split(list(sent)))
        return Posted(self.wires, len(self.wires[self.rank]) - 1, self.rank)

    def beside(self, group):
        return self

    def start_counts(self, counts, operation="counts"):
        return self.start(counts, [1] * self.ranks, [1] * self.ranks, operation)


def stores(owner, cache_rows):
    wires = [[] for _ in range(RANKS)]
    made = []
    for rank in range(RANKS):
        megabytes = cache_rows * RowCodec(MailCodec(SPEC)).width / 2**20
        made.append(ShardedStateStore(SPEC, owner, LocalExchange(wires, rank), row_cache_mb=megabytes))
    write(made, range(NODES), 0)
    return made


def write(all_stores, nodes, value):
    """Change the rows of nodes at their owners: all that they hold is then ``value`` and their number."""
    for store in all_stores:
        for node in nodes:
            if int(store.owner[node]) == store.exchange.rank:
                for field in fields(StateRows):
                    getattr(store.local.rows, field.name)[int(store.local_row[node])] = value * 100 + node


def announced_by_hand(owner, nodes, changing):
    """What each rank's batch says ahead, and hears of the others."""
    found = []
    for rank, own in enumerate(nodes):
        remote = sorted((int(owner[node]), node, place) for place, node in enumerate(own) if owner[node] != rank)
        wanted = sorted((other, node) for other, of in enumerate(nodes) for node in of if owner[node] == rank != other)
        found.append(
            AnnouncedRows(
                nodes=torch.tensor(own, dtype=torch.int64),
                changed=changing,
                remote=torch.tensor([place for _, _, place in remote], dtype=torch.int64),
                owner=torch.tensor([other for other, _, _ in remote], dtype=torch.int64),
                wanted=torch.tensor([node for _, node in wanted], dtype=torch.int64),
                wanted_by=torch.tensor([other for other, _ in wanted], dtype=torch.int64),
                asked=tuple(sum(other == to for other, _, _ in remote) for to in range(RANKS)),
                asked_for=tuple(sum(other == by for other, _ in wanted) for by in range(RANKS)),
            )
        )
    return found


def drop(store, changing):
    """What a store does with nodes that are written."""
    store.cache.drop(changing)
    if store.kept_elsewhere is not None:
        rows = store.local_row[changing]
        store.kept_elsewhere.drop(rows[rows >= 0])


def say(conversations):
    """Let all ranks say a sentence in turn until nobody has more to say."""
    over = object()
    while [said for said in [next(conversation, over) for conversation in conversations] if said is not over]:
        pass


def fetched(steps, pieces):
    """Return the places and rows of every piece of every rank, whose messages have all been started."""
    handles = [step.start() for step in steps]
    assert all(len(of) == pieces for of in handles)
    return [[(handle.places, handle.wait()) for handle in of] for of in handles]


def check_rows(found, nodes, written):
    """Every node is in one piece, and has the row that was written last."""
    for pieces, asked in zip(found, nodes, strict=True):
        places = [place for piece, _ in pieces for place in piece.tolist()]
        assert sorted(places) == list(range(len(asked)))
        for piece, rows in pieces:
            expected = [written[asked[place]] * 100 + asked[place] for place in piece.tolist()]
            for field in fields(StateRows):
                table = getattr(rows, field.name)
                assert len(table) == len(expected)
                by_row = table.flatten(1) if table.dim() > 1 else table.unsqueeze(1)
                assert torch.equal(by_row, torch.tensor(expected).unsqueeze(1).expand_as(by_row).to(table.dtype))


distinct = st.lists(st.integers(0, NODES - 1), unique=True)
owners = st.lists(st.integers(0, RANKS - 1), min_size=NODES, max_size=NODES).map(torch.tensor)
nodes_of_ranks = st.lists(distinct, min_size=RANKS, max_size=RANKS)


def tensors(lists):
    return [torch.tensor(nodes, dtype=torch.int64) for nodes in lists]


@seed(9)
@settings(max_examples=150, deadline=None)
@given(
    owner=owners,
    steps=st.lists(st.tuples(nodes_of_ranks, distinct, st.integers(1, 4), st.booleans()), min_size=1, max_size=5),
    ahead=st.booleans(),
    cache_rows=st.sampled_from([0, 2, NODES]),
)
def test_rows_are_those_after_the_step_before(owner, steps, ahead, cache_rows):
    """Rows are asked for before or after the step before is written, or announced; kept rows as well."""
    made, written = stores(owner, cache_rows), dict.fromkeys(range(NODES), 0)
    for number, (nodes, changed, pieces, tells) in enumerate(steps, start=1):
        changing = torch.tensor(changed, dtype=torch.int64)
        written.update(dict.fromkeys(changed, number))
        if not ahead:
            write(made, changed, number)
            for store in made:
                drop(store, changing)
        told = announced_by_hand(owner, nodes, changing) if tells else [None] * RANKS
        fetches = [
            StepFetch(store, asked, pieces, changing, ahead=ahead, announced=announced)
            for store, asked, announced in zip(made, tensors(nodes), told, strict=True)
        ]
        say([fetch.conversation() for fetch in fetches])
        if ahead:
            write(made, changed, number)
            for store in made:
                drop(store, changing)
        check_rows(fetched(fetches, pieces), nodes, written)


@seed(10)
@settings(max_examples=60, deadline=None)
@given(owner=owners, nodes=nodes_of_ranks, changed=distinct, pieces=st.integers(2, 4))
def test_only_what_the_step_before_changes_comes_late_and_in_even_pieces(owner, nodes, changed, pieces):
    made, changing = stores(owner, 0), torch.tensor(changed, dtype=torch.int64)
    for store, asked in zip(made, nodes, strict=True):
        fetch = StepFetch(store, torch.tensor(asked, dtype=torch.int64), pieces, changing, ahead=True)
        first, *others = [[asked[place] for place in piece.tolist()] for piece in fetch.pieces]
        late = {node for node in asked if node in changed and int(owner[node]) != store.exchange.rank}
        assert {node for piece in others for node in piece} == late
        assert set(first) == set(asked) - late
        sizes = [len(piece) for piece in others]
        assert max(sizes) - min(sizes) <= 1


@seed(11)
@settings(max_examples=40, deadline=None)
@given(owner=owners, nodes=nodes_of_ranks, changed=distinct, pieces=st.integers(1, 4), kept=distinct)
def test_pieces_do_not_depend_on_what_has_been_kept(owner, nodes, changed, pieces, kept):
    changing, cut = torch.tensor(changed, dtype=torch.int64), []
    for cache_rows in (0, NODES):
        made = stores(owner, cache_rows)
        before = [StepFetch(store, torch.tensor(kept, dtype=torch.int64), 1, changing[:0]) for store in made]
        say([fetch.conversation() for fetch in before])
        fetched(before, 1)
        cut.append(
            [
                [piece.tolist() for piece in StepFetch(store, asked, pieces, changing, ahead=True).pieces]
                for store, asked in zip(made, tensors(nodes), strict=True)
            ]
        )
    assert cut[0] == cut[1]


def test_rows_that_nobody_changed_are_not_sent_again():
    owner = torch.arange(NODES) % RANKS
    made, everything = stores(owner, NODES), torch.arange(NODES)
    for changed, sent in (([], NODES - 4), ([], 0), ([1, 2, 3], 2)):  # rank 0 has 4 rows, and 3 of them is its own
        changing = torch.tensor(changed, dtype=torch.int64)
        for store in made:
            drop(store, changing)
        before = made[0].asked - made[0].found
        fetches = [StepFetch(store, everything, 2, changing) for store in made]
        say([fetch.conversation() for fetch in fetches])
        fetched(fetches, 2)
        assert made[0].asked - made[0].found - before == sent


@pytest.mark.parametrize("cache_rows", [0, 2, NODES])
def test_announced_rows_are_sent_as_often_as_those_that_are_asked_for(cache_rows):
    """By messages: of rows that were announced only rows travel, or where a cache makes room which of them it lacks."""
    owner, generator, sent = torch.arange(NODES) % RANKS, torch.Generator().manual_seed(2), []
    for tells in (False, True):
        generator.manual_seed(2)
        made, messages, rows = stores(owner, cache_rows), [], 0
        for _ in range(6):
            nodes = [torch.randperm(NODES, generator=generator)[:7].tolist() for _ in range(RANKS)]
            changing = torch.randperm(NODES, generator=generator)[:3]
            told = announced_by_hand(owner, nodes, changing) if tells else [None] * RANKS
            fetches = [
                StepFetch(store, asked, 1, changing, ahead=True, announced=announced)
                for store, asked, announced in zip(made, tensors(nodes), told, strict=True)
            ]
            before = len(made[0].exchange.wires[0])
            say([fetch.conversation() for fetch in fetches])
            for store in made:
                drop(store, changing)
            fetched(fetches, 1)
            posted = made[0].exchange.wires[0][before:]
            messages.append(len(posted))
            rows += sum(len(part) for post in posted[-2:] for part in post[1:])
        assert set(messages) == {4 if not tells else 3 if cache_rows == 2 else 2}
        sent.append(rows)
    assert sent[0] == sent[1] or cache_rows == 2  # of several rows that leave at once others may stay


def test_other_nodes_than_those_that_were_announced_are_refused():
    owner, nodes = torch.arange(NODES) % RANKS, [[1, 2], [3], []]
    told = announced_by_hand(owner, nodes, torch.tensor([], dtype=torch.int64))[0]
    with pytest.raises(InvalidArgumentError, match="batch must be the one that was announced, got 'another'"):
        StepFetch(stores(owner, 0)[0], torch.tensor([2, 1]), 1, told.changed, announced=told)
