"""Global batches that differ from epoch to epoch: in random order, or cut at random places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from typing_extensions import override

from lightning_tgnn.algorithms.schedules.data_parallel import DataParallel, part_of
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.schedule import Pass, Turn


@dataclass(frozen=True)
class ShuffledBatches(DataParallel):
    """`DataParallel` whose global batches are trained in random order, another one in each epoch.

    For models without node memory, whose batches may come in any order: static pretraining (DistTGL, section 3.1).

    Args:
        seed: Of the orders.
    """

    seed: int = 0

    @override
    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return a turn per global batch.

        Raises:
            InvalidArgumentError: Another number of ranks has begun the epoch.
        """
        _check_begins(over)
        inner = super().turns(layout, rank, over)
        if over.epoch is None:
            return inner
        order = np.random.default_rng((self.seed, over.epoch)).permutation(len(inner)).tolist()
        return [replace(inner[number], resets=place == 0) for place, number in enumerate(order)]


@dataclass(frozen=True)
class RandomChunks(DataParallel):
    """`DataParallel` whose epochs begin with a batch of random length, so that later batches end at other events.

    A batch consists of chunks, and the first batch of an epoch of any number of them, or is left out: random chunk
    scheduling of TGL (Zhou and others, VLDB 2022, section 3.3), against which Sven measures (section 5.1.3). Events
    that shared a batch in one epoch, and so did not see each other, do not in another one.

    Args:
        chunks: In a global batch.
        seed: Of the lengths.

    Raises:
        InvalidArgumentError: ``chunks`` is no integer of at least 1.

    >>> over = Pass(num_events=10, batch_size=4, epoch=1)
    >>> [turn.of for turn in RandomChunks(chunks=2).turns(RankLayout.of(1), 0, over)]
    [range(0, 2), range(2, 6), range(6, 10)]
    """

    chunks: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("chunks", self.chunks, minimum=1, cure="8 is usual; 1 makes all epochs alike")

    @override
    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return a turn per global batch.

        Raises:
            InvalidArgumentError: Another number of ranks has begun the epoch.
        """
        if over.epoch is None:
            return super().turns(layout, rank, over)
        _check_begins(over)
        size = self.global_batch_size(layout, over.batch_size)
        first = int(np.random.default_rng((self.seed, over.epoch)).integers(self.chunks)) * size // self.chunks
        bounds = [0, *range(first or size, over.num_events, size), over.num_events]
        found = []
        for place, (begin, end) in enumerate(pairwise(bounds)):
            of = range(begin, end)
            parts = [part_of(of, other, layout.ranks) for other in range(layout.ranks)]
            cut = tuple(map(len, parts))
            found.append(
                Turn(parts[rank], of, over.epoch, layout.ranks, resets=place == 0, cut=cut, split=self.split_batch)
            )
        return found


def _check_begins(over: Pass) -> None:
    if over.first:
        requirement = "as many as before in the middle of an epoch whose batches are random"
        cure = "resume on as many ranks, or from the end of an epoch"
        raise InvalidArgumentError("ranks", requirement, f"others, from event {over.first} on", cure)
