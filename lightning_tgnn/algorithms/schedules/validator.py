"""Proves that no rank waits for ever, and that every batch has the node state and the weights that it must have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np

from lightning_tgnn.types.outline import MEETINGS, SERVER, After, Outline, Reads, Stage


class Moment(NamedTuple):
    """The begin or end of an action, or a meeting of several ranks.

    Attributes:
        what: ``"begin"``, ``"end"``, or ``"meet"``, which carries the lowest rank that takes part.
        stage: Of the action.
        rank: Its.
        turn: Its.
    """

    what: str
    stage: str
    rank: int
    turn: int

    def __str__(self) -> str:
        return f"{self.stage} of rank {self.rank} in turn {self.turn}"


def faults(programs: Programs, outline: Outline, ranks: int) -> list[str]:
    """Return the faults of programs, a line each; an empty list if they are correct.

    - Every message is received, and messages of a channel are received in the order in which they are sent.
    - Ranks that do something together do so in the same order.
    - No ranks wait in a circle.
    - A batch reads after the writes that it must see and before the writes that it must not see.
    - Updates are made in the order of the batches, and the weights of a batch lack as many as the outline says.

    Args:
        programs: What all ranks do.
        outline: What they are to keep to.
        ranks: How many.
    """
    found = [*_messages(programs), *_meetings(programs)]
    graph = _graph(programs)
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return [*found, _circle(error.args[1])]
    past = _Past(order, graph)
    history = _History(programs, outline, ranks, past)
    return [*found, *history.state(), *history.weights()]


def _messages(programs: Programs) -> Iterator[str]:
    sent, received = defaultdict(list), defaultdict(list)
    for actions in programs.values():
        for action in actions:
            for message in action.sends:
                sent[message.channel].append(message)
            for message in action.receives:
                received[message.channel].append(message)
    for channel in sorted({*sent, *received}):
        out, into = Counter(sent[channel]), Counter(received[channel])
        yield from (f"message: {_said(message)} is sent and not received" for message in (out - into).elements())
        yield from (f"message: {_said(message)} is received and not sent" for message in (into - out).elements())
        if out == into and sent[channel] != received[channel]:
            here, there = next(two for two in zip(sent[channel], received[channel], strict=True) if two[0] != two[1])
            yield f"order: {_said(here)} is sent where {_said(there)} is received"


def _said(message: Message) -> str:
    return (
        f"{message.stage} of batch {message.batch} from rank {message.sender} to {message.into} of rank "
        f"{message.receiver}"
    )


def _meetings(programs: Programs) -> Iterator[str]:
    """Yield groups whose ranks do not meet for the same things in the same order."""
    by_group: dict[tuple[int, ...], dict[int, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
    for actions in programs.values():
        for action in actions:
            if action.meets:
                by_group[action.meets][action.rank].append((action.stage, action.turn))
    for group, per_rank in by_group.items():
        for rank in group:
            if per_rank[rank] != per_rank[group[0]]:
                yield f"order: ranks {group[0]} and {rank} do not meet for the same stages in the same order"
                break


def _graph(programs: Programs) -> dict[Moment, set[Moment]]:
    """Return the moments before each moment."""
    senders = {message: action for actions in programs.values() for action in actions for message in action.sends}
    known = {(action.stage, action.rank, action.turn) for actions in programs.values() for action in actions}
    graph: dict[Moment, set[Moment]] = defaultdict(set)
    for actions in programs.values():
        last: Moment | None = None
        for action in actions:
            begin, end = _begin(action), _end(action)
            graph[end].add(begin)
            before = [Moment("end", stage, action.rank, turn) for stage, turn in action.waits]
            before += [_end(senders[message]) for message in action.receives if message in senders]
            graph[begin].update(moment for moment in before if moment[1:] in known)
            if last is not None:
                graph[begin].add(last)
            if action.meets:
                together = Moment("meet", action.stage, action.meets[0], action.turn)
                graph[together].add(begin)
                graph[end].add(together)
            last = end
    return graph


def _begin(action: Action) -> Moment:
    return Moment("begin", action.stage, action.rank, action.turn)


def _end(action: Action) -> Moment:
    return Moment("end", action.stage, action.rank, action.turn)


def _circle(moments: list[Moment]) -> str:
    """Return a line that says who waits for whom; the graph's circle has the awaited moment first."""
    names = list(dict.fromkeys(str(moment) for moment in reversed(moments[:-1])))
    return f"deadlock: {' waits for '.join([*names, names[0]])}"


class _Past:
    """The order of moments: which are certain to lie before which.

    Args:
        order: All moments, none before one that it waits for.
        graph: The moments just before each.
    """

    def __init__(self, order: list[Moment], graph: dict[Moment, set[Moment]]) -> None:
        self._place = {moment: place for place, moment in enumerate(order)}
        self._before: dict[Moment, int] = {}
        for moment in order:
            bits = 1 << self._place[moment]
            for earlier in graph.get(moment, ()):
                bits |= self._before[earlier]
            self._before[moment] = bits

    def __call__(self, earlier: Moment, later: Moment) -> bool:
        """Whether one moment is certain to lie before another."""
        return bool(self._before[later] >> self._place[earlier] & 1)


class _History:
    """The reads of batches, and the weights that batches have.

    Args:
        programs: What all ranks do.
        outline: What they are to keep to.
        ranks: How many.
        past: Of these programs.
    """

    def __init__(self, programs: Programs, outline: Outline, ranks: int, past: _Past) -> None:
        self._programs, self._outline, self._past = programs, outline, past
        self._ranks, self._length = ranks, outline.length(ranks)
        self._actions = {
            (action.stage, action.rank, action.turn): action for actions in programs.values() for action in actions
        }
        self._batches = (
            max((action.turn for action in self._actions.values()), default=-1) * self._length + self._length
        )

    def state(self) -> Iterator[str]:
        """Yield reads that may miss a write that they must see, or see one that they must not."""
        for action in self._actions.values():
            stage = self._stage(action)
            for claim in stage.reads:
                yield from self._read(action, claim)

    def _read(self, action: Action, claim: Reads) -> Iterator[str]:
        batch = self._batch(action)
        for other in range(self._batches):
            for write in self._for_batch(claim.written, other, action.rank):
                if other <= batch - claim.batches:
                    # What several do together is known to all when it begins, and is done when it ends.
                    done = _begin(write) if write.meets else _end(write)
                    if not self._past(done, _end(action) if action.meets else _begin(action)):
                        yield f"state: {_end(action)} may miss {_end(write)}"
                elif other >= batch + claim.before:
                    starts = _end(write) if write.meets else _begin(write)
                    if not self._past(_end(action), starts):
                        yield f"state: {_end(action)} may see {_end(write)}"

    def weights(self) -> Iterator[str]:
        """Yield updates out of order or from gradients that are not there, and weights of another staleness."""
        made: dict[tuple[int, int], int] = {}  # after the update of a rank's turn: updates in its weights
        for action in sorted(self._actions.values(), key=self._batch):
            stage = self._stage(action)
            if stage.applies is not None:
                yield from self._update(action, stage, made)
        late = self._outline.staleness
        for action in self._actions.values():
            if self._stage(action).trains:
                known = self._latest(action, made)
                expected = max(self._batch(action) - late, 0)
                if known != expected:
                    yield f"weights: {_end(action)} has {known} updates and must have {expected}"

    def _update(self, action: Action, stage: Stage, made: dict[tuple[int, int], int]) -> Iterator[str]:
        assert stage.applies is not None
        batch, (first, last) = self._batch(action), stage.applies
        count = self._latest(action, made)
        if self._outline.hands_weights:
            count = max(count, self._handed(action, made))
        if count != max(batch - first, 0):
            yield f"weights: {_end(action)} makes the update of batch {max(batch - first, 0)} after {count} updates"
        made[action.rank, action.turn] = max(batch - last + 1, 0)
        for applied in range(max(batch - first, 0), batch - last + 1):
            for backward in self._everywhere("backward", applied):
                if not self._past(_end(backward), _begin(action)):
                    yield f"weights: {_end(action)} does not wait for the gradient of {_end(backward)}"

    def _handed(self, action: Action, made: dict[tuple[int, int], int]) -> int:
        """Return the updates in the weights that the previous batch's rank is certain to have handed on."""
        return max(
            (
                count
                for (rank, turn), count in made.items()
                if rank // self._length == action.rank // self._length
                and self._past(Moment("end", "weights", rank, turn), _begin(action))
            ),
            default=0,
        )

    def _latest(self, action: Action, made: dict[tuple[int, int], int]) -> int:
        """Return the updates in the weights of a rank when an action begins."""
        before = 0
        for other in self._programs[action.rank, self._stage(action).on]:
            if other is action:
                break
            if self._stage(other).applies is not None:
                before = made.get((other.rank, other.turn), before)
        return before

    def _stage(self, action: Action) -> Stage:
        return self._outline.stages[self._outline.place(action.stage)]

    def _batch(self, action: Action) -> int:
        return action.turn * self._length + action.rank % self._length

    def _for_batch(self, stage: str, batch: int, reader: int) -> Iterator[Action]:
        """Yield the actions of a batch on ranks that share the reader's node state."""
        for action in self._everywhere(stage, batch):
            if self._copy_of(action.rank) == self._copy_of(reader):
                yield action

    def _copy_of(self, rank: int) -> int:
        return self._outline.copy_of(rank, self._ranks)

    def _everywhere(self, stage: str, batch: int) -> Iterator[Action]:
        turn, place = divmod(batch, self._length)
        for rank in range(place, self._ranks, self._length):
            if (stage, rank, turn) in self._actions:
                yield self._actions[stage, rank, turn]


class Message(NamedTuple):
    """Tells a stage of a batch that a stage of an earlier batch is done, and brings its rows or weights.

    Attributes:
        stage: What is done.
        into: Who waits for it.
        sender: Rank that sends it.
        receiver: Rank that receives it.
        batch: Batch of the sender.
    """

    stage: str
    into: str
    sender: int
    receiver: int
    batch: int

    @property
    def channel(self) -> tuple[str, str, int, int]:
        """Messages of a channel arrive in the order in which they are sent."""
        return self[:4]


@dataclass(frozen=True)
class Action:
    """A stage of a turn on a rank.

    Attributes:
        stage: Its name.
        rank: Rank that does it.
        turn: Turn in which the rank does it.
        waits: Stages and turns of the same rank that are done before it.
        receives: Messages that are received before it.
        sends: Messages that are sent after it.
        meets: The ranks that do it together; none if one rank does it alone.
    """

    stage: str
    rank: int
    turn: int
    waits: tuple[tuple[str, int], ...] = ()
    receives: tuple[Message, ...] = ()
    sends: tuple[Message, ...] = ()
    meets: tuple[int, ...] = ()


Programs = dict[tuple[int, str], list[Action]]
"""The actions of each rank on each resource, in their order; the first rank of a copy stands for its server."""


def programs(outline: Outline, ranks: int, turns: int) -> Programs:
    """Write out the actions of all ranks.

    Args:
        outline: Of every turn.
        ranks: Number of ranks, over all pipelines.
        turns: Of every rank.

    Raises:
        InvalidArgumentError: The ranks do not fit the outline.
    """
    together = {stage.name: _together(outline, stage, ranks) for stage in outline.stages}
    written: Programs = {}
    for turn in range(turns):
        for stage in outline.stages:
            for rank in range(ranks):
                if stage.on == SERVER and stage.first_pass and not outline.begins_batch(turn, rank, ranks):
                    continue  # nobody asks the server for it
                action = _action(outline, stage, rank, turn, together[stage.name][rank], ranks, turns)
                sharing = ranks // outline.copies
                doer = rank // sharing * sharing if stage.on == SERVER else rank
                written.setdefault((doer, stage.on), []).append(action)
    return written


def _action(
    outline: Outline, stage: Stage, rank: int, turn: int, meets: tuple[int, ...], ranks: int, turns: int
) -> Action:
    length = outline.length(ranks)
    waits, receives = [], []
    for awaited in stage.after:
        found = _awaited(awaited, rank, turn, length, turns)
        if found is None:
            continue
        whose, then = found
        if whose == rank:
            waits.append((awaited.stage, then))
        else:
            batch = then * length + whose % length
            receives.append(Message(awaited.stage, stage.name, whose, rank, batch))
    sends = tuple(_sends(outline, stage, rank, turn, length, turns))
    return Action(stage.name, rank, turn, tuple(waits), tuple(receives), sends, meets)


def _together(outline: Outline, stage: Stage, ranks: int) -> list[tuple[int, ...]]:
    """Return for each rank the ranks that meet at a stage; none if ranks do not meet."""
    if stage.travel not in MEETINGS:
        return [()] * ranks
    groups = outline.groups_that_meet(stage, ranks)
    members = [tuple(np.flatnonzero(groups == group).tolist()) for group in range(groups.max() + 1)]
    return [members[group] for group in groups]


def _awaited(awaited: After, rank: int, turn: int, length: int, turns: int) -> tuple[int, int] | None:
    """Return the rank and the turn of the awaited stage; None if there was no such turn."""
    pipeline, place = divmod(rank, length)
    batch = (turn - awaited.turns) * length + place - awaited.batches
    return (pipeline * length + batch % length, batch // length) if 0 <= batch < turns * length else None


def _sends(outline: Outline, stage: Stage, rank: int, turn: int, length: int, turns: int) -> Iterator[Message]:
    for waiting in outline.stages:
        for awaited in waiting.after:
            if awaited.stage != stage.name or not awaited.batches % length:
                continue
            back = After(stage.name, batches=-awaited.batches, turns=-awaited.turns)
            found = _awaited(back, rank, turn, length, turns)
            if found is not None:
                yield Message(stage.name, waiting.name, rank, found[0], turn * length + rank % length)
