"""Random sequences of what is done to node state, and dictionaries that say what comes of them."""

import copy
import math
import random
from dataclasses import dataclass, replace

import torch

from lightning_tgnn.types import SharedWrites, StateRows, StateSpec, StateUpdate

NODES, MEMORY, FEATURES, EVENTS = 9, 3, 2, 2000
EDGE_FEATURES = torch.rand(EVENTS, FEATURES, generator=torch.Generator().manual_seed(0))
FIELDS = ("memory", "memory_time", "mails", "mail_time", "mail_event", "mail_count")


def spec(mailbox_size, *, own_half=False):
    return StateSpec(NODES, MEMORY, 2 * MEMORY + FEATURES, mailbox_size, own_half)


SETTINGS = {
    "one mail": spec(1),
    "one mail with its own half": spec(1, own_half=True),
    "three mails": spec(3),
    "mails of their events": spec(3),
    "sums": StateSpec.without_mails(NODES, MEMORY, (0.5, 1.0, 1.5)),
}
# Mails are made of rows that are written, and ranks know what all of them write.
OF_EVENTS = {"one mail with its own half", "mails of their events"}


class Reference:
    """Node state as a dictionary of rows, each a dictionary of plain values."""

    def __init__(self, spec):
        self.spec, self.rows, self.position = spec, {}, 0

    def _row(self, node):
        slots = self.spec.mailbox_size
        empty = {
            "memory": [0.0] * MEMORY,
            "memory_time": 0.0,
            "mails": [[0.0] * self.spec.mail_dim for _ in range(slots)],
            "mail_time": [0.0] * slots,
            "mail_event": [0] * slots,
            "mail_count": 0,
        }
        return self.rows.setdefault(node, empty)

    def fetch(self, nodes):
        rows = [self._row(node) for node in nodes.tolist()]
        return {name: [row[name] for row in rows] for name in FIELDS}

    def commit(self, updates):
        """Take in what the ranks write, in the order of their events; a node gets the latest of its mails."""
        delivered = {}
        for update in updates:
            columns = (update.nodes, update.memory, update.memory_time)
            for node, memory, time in zip(*(column.tolist() for column in columns), strict=True):
                row = self._row(node)
                if self.spec.decays:
                    memory, time = self._sum(row["memory"], row["memory_time"], memory, time)
                row.update(memory=memory, memory_time=time)
            columns = (update.mail_nodes, update.mails, update.mail_time, update.mail_event)
            for node, *mail in zip(*(column.tolist() for column in columns), strict=True):
                delivered[node] = mail
        for node, mail in delivered.items():
            row = self._row(node)
            slot = row["mail_count"] % self.spec.mailbox_size
            row["mails"][slot], row["mail_time"][slot], row["mail_event"][slot] = mail
            row["mail_count"] += 1
        self.position = updates[0].position

    def _sum(self, held, since, more, time):
        latest = max(since, time)
        worth = [(math.exp(rate * (since - latest)), math.exp(rate * (time - latest))) for rate in self.spec.decays]
        return [a * x + b * y for (a, b), x, y in zip(worth, held, more, strict=True)], latest

    def reset(self):
        self.rows, self.position = {}, 0

    def snapshot(self):
        return copy.deepcopy((self.rows, self.position))

    def restore(self, snapshot):
        self.rows, self.position = copy.deepcopy(snapshot)


def plain(rows):
    """Return rows that a store has handed out as the plain values of a `Reference`."""
    return {name: getattr(rows, name).tolist() for name in FIELDS}


def assert_same(found, wanted, setting, where):
    """Raise unless plain rows are equal; sums may be added up in another order."""
    if setting != "sums":
        assert found == wanted, where
        return
    torch.testing.assert_close(found.pop("memory"), wanted.pop("memory"), rtol=1e-5, atol=1e-7, msg=where)
    assert found == wanted, where


class Draw:
    """Draws what ranks do; the same for all of them, by a seed."""

    def __init__(self, seed, setting, ranks):
        self.random, self.spec, self.ranks = random.Random(seed), SETTINGS[setting], ranks
        self.of_events = setting in OF_EVENTS
        self.generator = torch.Generator().manual_seed(seed)
        self.events = 0

    def nodes(self):
        """Return distinct nodes of every rank, at times none."""
        return [self._distinct() for _ in range(self.ranks)]

    def _distinct(self, least=0):
        return torch.tensor(self.random.sample(range(NODES), self.random.randint(least, NODES)), dtype=torch.int64)

    def updates(self):
        """Return what every rank writes: of consecutive events, at times none, to nodes that ranks may share."""
        counts = [self.random.choice((0, 1, 2, 3)) for _ in range(self.ranks)]
        end, updates = self.events + sum(counts), []
        for count in counts:
            make = self._update_of_events if self.of_events else self._update
            updates.append(make(range(self.events, self.events + count), end))
            self.events += count
        if self.of_events:
            together = shared_writes([ends for _, ends in updates], [update for update, _ in updates])
            updates = [replace(update, together=together) for update, _ in updates]
        changed = {node for update in updates for node in (*update.nodes.tolist(), *update.mail_nodes.tolist())}
        return [replace(update, changed=torch.tensor(sorted(changed), dtype=torch.int64)) for update in updates]

    def _update(self, events, position):
        last = {self.random.randrange(NODES): event for event in events for _ in range(2)}
        mailed = last
        if self.spec.decays:
            mailed = {}
        elif not self.spec.own_half and events:
            mailed = {int(node): self.random.choice(events) for node in self._distinct(least=1)}
        event = torch.tensor(list(mailed.values()), dtype=torch.int64)
        memory = torch.rand(len(last), MEMORY, generator=self.generator)
        first = memory if self.spec.own_half else torch.rand(len(mailed), MEMORY, generator=self.generator)
        second = torch.rand(len(mailed), MEMORY, generator=self.generator)
        return StateUpdate(
            nodes=torch.tensor(list(last), dtype=torch.int64),
            memory=memory,
            memory_time=torch.tensor(list(last.values()), dtype=torch.float64) / 3,
            mail_nodes=torch.tensor(list(mailed), dtype=torch.int64),
            mails=torch.cat([first, second, EDGE_FEATURES[event]], dim=1)[:, : self.spec.mail_dim],
            mail_time=event.double() / 3,
            mail_event=event,
            position=position,
            changed=torch.empty(0, dtype=torch.int64),
        )

    def _update_of_events(self, events, position):
        """Return an update, and for each of its mails the node on whose side it was sent and the one on the other."""
        ends = [self.random.sample(range(NODES), 2) for _ in events]
        nodes = list(dict.fromkeys(node for pair in ends for node in pair))
        mailed = {node: (event, node, other) for event, pair in zip(events, ends, strict=True)
                  for node, other in (pair, pair[::-1])}  # fmt: skip
        if not self.spec.own_half and events:  # neighbours get mails as well
            for node in self._distinct().tolist():
                number = self.random.randrange(len(events))
                mailed[node] = (events[number], *self.random.sample(ends[number], 2))
        rows = dict(zip(nodes, torch.rand(len(nodes), MEMORY, generator=self.generator), strict=True))
        time = [self.random.random() for _ in nodes]
        mails = [torch.cat([rows[own], rows[other], EDGE_FEATURES[event]]) for event, own, other in mailed.values()]
        event = torch.tensor([event for event, _, _ in mailed.values()], dtype=torch.int64)
        update = StateUpdate(
            nodes=torch.tensor(nodes, dtype=torch.int64),
            memory=torch.stack([*rows.values()]) if rows else torch.empty(0, MEMORY),
            memory_time=torch.tensor(time, dtype=torch.float64),
            mail_nodes=torch.tensor(list(mailed), dtype=torch.int64),
            mails=torch.stack(mails) if mails else torch.empty(0, self.spec.mail_dim),
            mail_time=event.double() / 3,
            mail_event=event,
            position=position,
            changed=torch.empty(0, dtype=torch.int64),
        )
        return update, {node: pair for node, (_, *pair) in mailed.items()}


def shared_writes(ends, updates):
    """Return what all ranks write, given the ends of each one's mails by the nodes that get them."""
    written = {node: rank for rank, update in enumerate(updates) for node in update.nodes.tolist()}
    mailed = {}
    for rank, update in enumerate(updates):
        for node, event in zip(update.mail_nodes.tolist(), update.mail_event.tolist(), strict=True):
            mailed[node] = (rank, event, ends[rank][node])
    events = torch.tensor([event for _, event, _ in mailed.values()], dtype=torch.int64)
    return SharedWrites(
        nodes=torch.tensor(list(written), dtype=torch.int64),
        node_rank=torch.tensor(list(written.values()), dtype=torch.int64),
        mail_nodes=torch.tensor(list(mailed), dtype=torch.int64),
        mail_rank=torch.tensor([rank for rank, _, _ in mailed.values()], dtype=torch.int64),
        mail_ends=torch.tensor([pair for _, _, pair in mailed.values()], dtype=torch.int64).view(-1, 2),
        mail_event=events,
        mail_time=events.double() / 3,
    )


@dataclass(frozen=True)
class Step:
    """Something that all ranks do with a store.

    Attributes:
        kind: What.
        given: What each rank gives.
        waits: Whether a commit is waited for.
        inference: Whether it is done under inference mode.
    """

    kind: str
    given: tuple = ()
    waits: bool = False
    inference: bool = False


OFTEN = ("fetch", "commit", "commit", "fetch", "commit", "position")
SELDOM = ("reset", "snapshot", "restore", "save", "save the snapshot", "load")


def sequence(seed, setting, ranks, length):
    """Return random steps; the last ones train, so that everything before has to have left the store fit for it."""
    draw = Draw(seed, setting, ranks)
    steps, done = [], set()
    while len(steps) < length:
        kind = draw.random.choice(OFTEN + SELDOM if draw.random.random() < 0.5 else OFTEN)
        if kind in ("restore", "save the snapshot") and "snapshot" not in done:
            continue
        if kind == "load" and "save" not in done:
            continue
        done.add(kind)
        given = draw.nodes() if kind == "fetch" else draw.updates() if kind == "commit" else ()
        waits, inference = draw.random.random() < 0.5, draw.random.random() < 0.3
        steps.append(Step(kind, tuple(given), waits, inference))
    steps += [Step("commit", tuple(draw.updates())), Step("train", (torch.arange(NODES),) * ranks)]
    return steps


def expected(steps, spec):
    """Return what every step has to answer: for all ranks, or, of what only rank 0 gets, for that one."""
    reference, answers = Reference(spec), []
    kept, saved = None, None
    for step in steps:
        answer = None
        if step.kind in ("fetch", "train"):
            answer = [reference.fetch(nodes) for nodes in step.given]
            answer = copy.deepcopy(answer)
        elif step.kind == "commit":
            reference.commit(step.given)
        elif step.kind == "position":
            answer = reference.position
        elif step.kind == "reset":
            reference.reset()
        elif step.kind == "snapshot":
            kept = reference.snapshot()
        elif step.kind == "restore":
            reference.restore(kept)
        elif step.kind == "load":
            reference.restore(saved)
        elif step.kind in ("save", "save the snapshot"):
            of = Reference(spec)
            of.restore(reference.snapshot() if step.kind == "save" else kept)
            saved = of.snapshot() if step.kind == "save" else saved
            answer = {"position": of.position, **of.fetch(torch.arange(NODES))}
        answers.append(answer)
    return answers


def rows_of(state):
    """Return the rows of a ``state_dict``."""
    return StateRows(**{name: state[name] for name in FIELDS})
