"""Turns and batches that follow each other on a rank: passes over the same events, and what the next batch reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.types import EventBatch, Pass, RankLayout, Schedule, Turn
from lightning_tgnn.types.schedule import TIME


def in_passes(turns: Sequence[Turn], position: int) -> Iterator[range]:
    """Yield the numbers of turns from a position on, one that reads together with those that take what it has read."""
    number = position
    while number < len(turns):
        first, count = turns[number], 1
        while first.reads and first.events and number + count < len(turns):
            turn = turns[number + count]
            if turn.reads or turn.events != first.events:
                break
            count += 1
        yield range(number, number + count)
        number += count


def check_turn(turn: Turn, schedule: Schedule, copy: int) -> None:
    """Refuse a turn that its rank cannot play.

    Raises:
        InvalidArgumentError: It asks for node state that the rank does not have, or has no pass to take that from; it
            is a part of a global batch that no other rank shares; or its events do not follow each other.
    """
    _check_consecutive(turn)
    in_passes = "passes" in schedule.needs
    if turn.copy != copy or not (in_passes or (turn.reads and turn.writes)):
        cure = "give turns that do, or a store of your own behind a loader of your own"
        requirement = f"turns that read and write the rank's own copy of node state, {copy}"
        raise InvalidArgumentError(refusal("schedule", requirement, turn, cure))
    if 0 < len(turn.events) < len(turn.of) and turn.ranks < 2:
        cure = "set ranks of the turn to how many ranks share the batch, by which the loss is weighted"
        requirement = "turns of whole global batches, or of a part that several ranks share"
        raise InvalidArgumentError(refusal("schedule", requirement, turn, cure))


def _check_consecutive(turn: Turn) -> None:
    places = (turn.events, turn.of, turn.before, turn.after, turn.written, *turn.beside)
    if any(place is not None and len(place) > 1 and place.step != 1 for place in places):
        cure = "give each rank a range of step 1"
        raise InvalidArgumentError(refusal("schedule", "turns of consecutive events", turn, cure))


def check_parts(schedule: Schedule, layout: RankLayout, over: Pass) -> None:
    """Refuse a schedule by which ranks share a global batch in another order than their own.

    Where several ranks write to a node, what the last one writes counts: it has to have the latest events. The first
    turns are looked at.

    Raises:
        InvalidArgumentError: They do, or their events do not follow each other.
    """
    ends: dict[tuple[int, range, int | None], int] = {}
    for rank in range(layout.ranks):
        turn = next(iter(schedule.turns(layout, rank, over)), None)
        if turn is None or turn.split != TIME or not turn.events:
            continue
        _check_consecutive(turn)
        batch = turn.copy, turn.of, turn.draw
        if turn.events.start < ends.get(batch, 0):
            cure = "give later ranks later events"
            raise InvalidArgumentError(refusal("schedule", "parts of a batch in the order of the ranks", turn, cure))
        ends[batch] = turn.events.stop


def with_upcoming(batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
    """Tell each batch the nodes of the next, and what is around it."""
    batch = next(batches, None)
    while batch is not None:
        following = next(batches, None)
        if following is not None:
            shared = following.shared
            upcoming = torch.cat([following.nodes, shared.later]) if shared.reads else None
            told = replace(
                batch.shared, upcoming=upcoming, upcoming_around=shared.around, upcoming_announced=shared.announced
            )
            batch = replace(batch, shared=told)
        yield batch
        batch = following
