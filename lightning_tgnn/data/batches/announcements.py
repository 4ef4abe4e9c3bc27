"""Batches that tell the ranks ahead which rows they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from lightning_tgnn.data.batches.prefetch import prefetched
from lightning_tgnn.types import EventBatch, RowAnnouncer

_In = TypeVar("_In")
Made = Future[list[EventBatch]]


def made_ahead(
    make: Callable[[_In], list[EventBatch]],
    inputs: Iterable[_In],
    announcer: RowAnnouncer | None,
    *,
    ahead: int,
    workers: int,
) -> Iterator[list[EventBatch]]:
    """Yield what is made of each input, announced if all ranks make batches ahead: then all as many as one of them.

    Args:
        make: Returns the batches of a turn of all ranks, of which the first reads.
        inputs: What to make them of.
        announcer: Tells the ranks what is read; None where nobody does.
        ahead: As for `prefetched`.
        workers: As for `prefetched`.
    """
    agreed = 0 if announcer is None else announcer.agreed(ahead if workers else 0)
    if announcer is None or not agreed:
        return prefetched(make, inputs, ahead=ahead, workers=workers)

    def then(made: Made) -> Made:
        return announcer.submit(lambda: _announced(made, announcer))

    return prefetched(make, inputs, ahead=agreed, workers=workers, then=then)


def _announced(made: Made, announcer: RowAnnouncer) -> list[EventBatch]:
    try:
        first, *later = made.result()
    except BaseException:
        announcer.decline()  # the others, which may not even train on theirs, do not wait for it
        raise
    rows = announcer.announce(first.nodes, first.shared.changed)
    return [replace(first, shared=replace(first.shared, announced=rows)), *later]
