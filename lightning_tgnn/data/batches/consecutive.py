"""Turns and batches that follow each other on a rank: passes over the same events, and what the next batch reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from lightning_tgnn.types import EventBatch, Turn


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


def with_upcoming(batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
    """Tell each batch the nodes of the next."""
    batch = next(batches, None)
    while batch is not None:
        following = next(batches, None)
        if following is not None:
            shared = following.shared
            upcoming = torch.cat([following.nodes, shared.later]) if shared.reads else None
            told = replace(batch.shared, upcoming=upcoming, upcoming_announced=shared.announced)
            batch = replace(batch, shared=told)
        yield batch
        batch = following
