"""Every store of node state, and what its contracts are held with: on one, two and three ranks of one start."""

from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.comm import Exchange, ProcessGroups
from lightning_tgnn.state import (
    LocalStateStore,
    ReplicatedStateStore,
    ServedStateStore,
    ShardedStateStore,
)
from lightning_tgnn.types import OwnRows, RankLayout
from tests.contracts.node_state import EDGE_FEATURES, NODES, SETTINGS, Draw, sequence

RANKS = 3
SOME_ROWS = 400 / 2**20
SCATTERED = torch.arange(NODES) * 7 % 5


def sharded(owner=SCATTERED, **options):
    return lambda spec, exchange: ShardedStateStore(spec, owner % exchange.ranks, exchange, **options)


def served(spec, exchange):
    return ServedStateStore(spec, tuple(range(exchange.ranks)), exchange.rank, exchange._group)


# A new store is added here in a line: how it is made, and on how many ranks.
STORES = {
    "local": (lambda spec, exchange: LocalStateStore(spec), (1,)),
    "replicated": (lambda spec, exchange: ReplicatedStateStore(spec, exchange), (1, 2, 3)),
    "served": (served, (1, 3)),
    "sharded": (sharded(), (1, 2, 3)),
    "sharded, rows not kept": (sharded(row_cache_mb=0), (2,)),
    "sharded, some rows kept": (sharded(row_cache_mb=SOME_ROWS), (3,)),
    "sharded, whole mails": (sharded(omit_own_half=False), (2,)),
    "sharded, features by event": (sharded(edge_features=EDGE_FEATURES), (3,)),
    "sharded, one owner": (sharded(torch.zeros(NODES, dtype=torch.int64)), (2,)),
    "sharded, features by event, some rows kept": (
        sharded(edge_features=EDGE_FEATURES, row_cache_mb=SOME_ROWS),
        (1, 2),
    ),
    "replicated, mails made there": (
        lambda spec, exchange: ReplicatedStateStore(spec, exchange, edge_features=EDGE_FEATURES),
        (1, 2, 3),
    ),
    "replicated, whole mails": (lambda spec, exchange: ReplicatedStateStore(spec, exchange, makes_mails=False), (2,)),
}
# Those that hand out rows in pieces.
PIECEWISE = [name for name in STORES if name.startswith("sharded")]

GENERAL = [setting for setting in SETTINGS if setting != "mails of their events"]
CASES = [(name, ranks, setting) for name, (_, counts) in STORES.items() for ranks in counts for setting in GENERAL]
# Only of these stores some make mails that go to others than the ends of their events.
CASES += [
    (name, ranks, "mails of their events")
    for name in ("sharded, features by event", "replicated, mails made there")
    for ranks in STORES[name][1]
]
LENGTH = 30
MOVING = ("local", "replicated", "sharded", "sharded, features by event")
PLACES = [(name, ranks) for name in MOVING for ranks in STORES[name][1]]
PIECES = [(name, ranks, setting) for name, ranks, setting in CASES if name in PIECEWISE]
TURNS = 12


def seed_of(case):
    return CASES.index(case)


class Group:
    """The first ranks of the start; the others are outside."""

    def __init__(self, groups, rank, ranks):
        self.rank, self.ranks, self._group = rank, ranks, groups.of(str(ranks))
        self.exchange = Exchange(ranks, rank, self._group) if rank < ranks else None

    def from_first(self, value):
        if self.ranks == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def to_first(self, value):
        """Return the values of all on the first rank, which keeps them as ``parts``; no others."""
        self.parts = [value]
        if self.ranks > 1:
            self.parts = [None] * self.ranks if self.rank == 0 else None
            dist.gather_object(value, self.parts, dst=0, group=self._group)
        return self.parts or []

    def make(self, name, setting):
        return STORES[name][0](SETTINGS[setting], self.exchange)


def do(store, steps, group):
    """Return what a store answers to each step on this rank; rows are those that were handed out, not copies."""
    answers, kept, saved = [], None, None
    for step in steps:
        answer = None
        with torch.inference_mode() if step.inference else nullcontext():
            if step.kind in ("fetch", "train"):
                answer = store.fetch(step.given[group.rank]).wait()
            elif step.kind == "commit":
                handle = store.commit(step.given[group.rank])
                if step.waits:
                    handle.wait()
            elif step.kind == "position":
                answer = store.position
            elif step.kind == "reset":
                store.reset()
            elif step.kind == "snapshot":
                kept = store.snapshot()
            elif step.kind == "restore":
                store.restore(kept)
            elif step.kind == "save the snapshot":
                answer = store.state_dict(kept)
                check_same_rows(store.sharded_state_dict(kept), answer, group)
            elif step.kind == "save":
                # A file is written at once; what is done to the store later must not change what it holds.
                answer = copied(store.state_dict())
                saved = group.from_first(answer)
                check_same_rows(store.sharded_state_dict(), answer, group)
            elif step.kind == "load":
                store.load_state_dict(saved)
            if step.kind == "train":  # raises where rows are of inference mode
                weight = torch.ones(answer.memory.shape[1], requires_grad=True)
                (answer.memory * weight).sum().backward()
        answers.append(answer)
    return answers


def check_same_rows(own, whole, group):
    """What ranks hold is together what the first one is sent."""
    for rank, state in enumerate(group.to_first(own)):
        for name, value in state.items():
            if isinstance(value, OwnRows):
                rows = slice(value.start, value.start + len(value.rows)) if value.nodes is None else value.nodes
                assert value.size == len(whole[name])
                assert torch.equal(value.rows, whole[name][rows]), (rank, name)
            else:
                assert torch.equal(torch.as_tensor(value), whole[name]) if name == "changed" else value == whole[name]
        assert state.keys() == whole.keys()
    assert not group.parts or sum(len(state["memory"].rows) for state in group.parts) == own["memory"].size


def copied(state):
    return {name: value.clone() if torch.is_tensor(value) else value for name, value in state.items()}


def move(state, name, group):
    """Return what is in a store onto which a state was loaded, before and after it has gone on."""
    store = group.make(name, "three mails")
    store.load_state_dict(state)
    here = torch.arange(NODES)
    first, position = store.fetch(here).wait(), store.position
    store.commit(going_on(group.ranks)[group.rank])
    return position, first, store.fetch(here).wait(), store.position


def going_on(ranks):
    draw = Draw(99, "three mails", ranks)
    draw.events = 1000
    return draw.updates()


def refused(store):
    """Return why a state of other widths is refused."""
    other = LocalStateStore(replace(store.spec, memory_dim=store.spec.memory_dim + 1))
    try:
        store.load_state_dict(other.state_dict())
    except CheckpointError as error:
        return str(error)
    return None


def turns(case):
    """Return turns of training: nodes, updates, pieces, whether the next are asked for ahead, what comes between."""
    _, ranks, setting = case
    draw = Draw(1000 + seed_of(case), setting, ranks)
    between = ("nothing", "nothing", "nothing", "fetch", "evaluate", "save", "reset")
    return [
        {
            "nodes": draw.nodes(),
            "updates": draw.updates(),
            "pieces": draw.random.randint(1, 4),
            "ahead": draw.random.random() < 0.8,
            "carried on": draw.random.randint(0, 3),
            "backwards": draw.random.random() < 0.3,
            "between": draw.random.choice(between),
            "others": draw.nodes(),
            "meanwhile": draw.updates(),
        }
        for _ in range(TURNS)
    ]


def train(case, group):
    """Return the pieces of every turn, as places and rows, and what was fetched between turns."""
    name, _, setting = case
    store, rank, found = group.make(name, setting), group.rank, []
    plan = turns(case)
    for turn, following in zip(plan, [*plan[1:], None], strict=True):
        handles = store.fetch_pieces(turn["nodes"][rank], turn["pieces"])
        rows = {number: handles[number].wait() for number in in_turn(len(handles), turn["backwards"])}
        found.append({"pieces": [(handle.places, rows[number]) for number, handle in enumerate(handles)]})
        update = turn["updates"][rank]
        if turn["ahead"] and following:
            store.ask_ahead(following["nodes"][rank], update.changed, following["pieces"])
        store.commit(update)
        for _ in range(turn["carried on"]):
            store.carry_on()
        if turn["between"] == "fetch":
            found[-1]["others"] = store.fetch(turn["others"][rank]).wait()
        elif turn["between"] == "evaluate":
            kept = store.snapshot()
            with torch.inference_mode():
                store.commit(turn["meanwhile"][rank])
                found[-1]["others"] = store.fetch(turn["others"][rank]).wait()
                store.restore(kept)
        elif turn["between"] == "save":
            found[-1]["saved"] = copied(store.state_dict())
        elif turn["between"] == "reset":
            store.reset()
    counts = store.asked, store.found
    return found, counts, resumed(store, case, group), announced(store, group)


def in_turn(count, backwards):
    return reversed(range(count)) if backwards else range(count)


def resumed(store, case, group):
    """Return pieces and rows of a run that goes on and of one that was resumed behind rows asked for ahead."""
    name, ranks, setting = case
    draw = Draw(7, setting, ranks)
    before, update, nodes = draw.updates()[group.rank], draw.updates()[group.rank], draw.nodes()[group.rank]
    store.commit(before)  # still under way when the next rows are asked for
    store.ask_ahead(nodes, update.changed, 3)
    store.commit(update)
    again = group.make(name, setting)
    again.load_state_dict(group.from_first(store.state_dict()))
    return [[(handle.places, handle.wait()) for handle in one.fetch_pieces(nodes, 3)] for one in (store, again)]


def announced(store, group):
    """Return why other nodes than those asked for ahead are refused."""
    nodes = torch.arange(NODES)
    store.ask_ahead(nodes, nodes[:0], 2)
    try:
        handles = store.fetch_pieces(nodes.flip(0), 2)
    except InvalidArgumentError as error:
        return str(error)
    return [handle.wait() for handle in handles]


def on_rank(rank, ranks):
    """Run all cases, those of fewer ranks on the first ones, and return what this rank has seen of each."""
    families = {str(count): (tuple(range(count)),) for count in range(1, ranks + 1)}
    made = ProcessGroups(RankLayout.of(ranks, families=families), rank)
    groups = {count: Group(made, rank, count) for count in range(1, ranks + 1)}
    world, outcomes = groups[ranks], {"sequence": {}, "moved": {}, "refused": {}, "pieces": {}}
    for case in CASES:
        name, count, setting = case
        if rank < count:
            steps = sequence(seed_of(case), setting, count, LENGTH)
            store = groups[count].make(name, setting)
            outcomes["sequence"][case] = do(store, steps, groups[count])
            if isinstance(store, ServedStateStore):
                store.close()  # its process serves the next
    for source in PLACES:
        name, count = source
        state = None
        if rank < count:
            store = groups[count].make(name, "three mails")
            do(store, sequence(500 + count, "three mails", count, LENGTH), groups[count])
            state = store.state_dict()
        state = world.from_first(state)
        for place in PLACES:
            if rank < place[1]:
                outcomes["moved"][source, place] = move(state, place[0], groups[place[1]])
    for place in PLACES:
        if rank < place[1]:
            outcomes["refused"][place] = refused(groups[place[1]].make(place[0], "three mails"))
    for case in PIECES:
        if rank < case[1]:
            outcomes["pieces"][case] = train(case, groups[case[1]])
    return outcomes
