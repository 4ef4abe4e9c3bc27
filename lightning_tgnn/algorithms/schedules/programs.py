"""The actions of every rank, one after the other, written out from an outline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lightning_tgnn.types.outline import MEETINGS, SERVER, After, Outline, Stage


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
"""The actions of each rank on each resource, in their order; those of a server by the first rank of its copy."""


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
