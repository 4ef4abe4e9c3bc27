"""Turns and batches that follow each other on a rank: passes over the same events, and what the next batch reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.types import EventBatch, Schedule, Turn


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
        InvalidArgumentError: It asks for node state that the rank does not have, or has no pass to take that from; or
            it is a part of a global batch that no other rank shares.
    """
    in_passes = "passes" in schedule.needs
    if turn.copy != copy or not (in_passes or (turn.reads and turn.writes)):
        cure = "give turns that do, or a store of your own behind a loader of your own"
        requirement = f"turns that read and write the rank's own copy of node state, {copy}"
        raise InvalidArgumentError(refusal("schedule", requirement, turn, cure))
    if 0 < len(turn.events) < len(turn.of) and turn.ranks < 2:
        cure = "set ranks of the turn to how many ranks share the batch, by which the loss is weighted"
        requirement = "turns of whole global batches, or of a part that several ranks share"
        raise InvalidArgumentError(refusal("schedule", requirement, turn, cure))


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
