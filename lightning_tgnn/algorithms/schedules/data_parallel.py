"""Data parallelism: all ranks share each global batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.turns import Turns
from lightning_tgnn.checks import InvalidArgumentError, check_choice
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.schedule import DESTINATION, SPLITS, TIME, Pass, Schedule, Turn


@dataclass(frozen=True)
class DataParallel(Schedule):
    """Every rank has consecutive events of each global batch, cut as evenly as can be.

    If the events do not divide evenly, the first ranks have one event more. The last global batch may be too short to
    give every rank an event.

    Args:
        split_batch: The order in which the events of a global batch are cut. With ``"destination"`` a rank has most
            events of the same destinations, batch after batch, and needs fewer rows of other ranks than with
            ``"time"``. The result is the same.

    Raises:
        InvalidArgumentError: ``split_batch`` is neither ``"time"`` nor ``"destination"``.

    >>> turns = DataParallel().turns(RankLayout.of(2), 1, Pass(num_events=7, batch_size=2, epoch=0))
    >>> [(turn.events, turn.of, turn.resets) for turn in turns]
    [(range(2, 4), range(0, 4), True), (range(6, 7), range(4, 7), False)]
    """

    split_batch: str = TIME

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})
    offers: ClassVar[frozenset[str]] = frozenset({"events", "shared batches"})

    def __post_init__(self) -> None:
        check_choice("split_batch", self.split_batch, SPLITS)

    def check(self, layout: RankLayout, num_events: int) -> None:
        """Refuse more ranks than events, and several copies of node state.

        Raises:
            InvalidArgumentError: There are more ranks than events, or several copies of node state.
        """
        check_ranks(layout, num_events)
        check_one_copy(self, layout)

    def global_batch_size(self, layout: RankLayout, batch_size: int) -> int:
        """Return the number of events in a global batch, over all ranks."""
        return batch_size * layout.ranks

    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return a turn per global batch."""
        return _Turns(layout.ranks, rank, over, self.split_batch)


@dataclass(frozen=True)
class _Turns(Turns):
    """The turns of a rank."""

    ranks: int
    rank: int
    over: Pass
    split: str

    def __len__(self) -> int:
        return -(-(self.over.num_events - self.over.first) // (self.over.batch_size * self.ranks))

    def at(self, index: int) -> Turn:
        size = self.over.batch_size * self.ranks
        of = range(self.over.first, self.over.num_events)[index * size : (index + 1) * size]
        own = part_of(of, self.rank, self.ranks)
        training = self.over.epoch is not None
        base, more = divmod(len(of), self.ranks)
        cut = (base + 1,) * more + (base,) * (self.ranks - more)
        resets = training and of.start == 0
        return Turn(own, of, self.over.epoch, self.ranks, resets=resets, cut=cut, split=self.split)


def part_of(of: range, rank: int, ranks: int) -> range:
    """Return a rank's consecutive events of a global batch, cut as evenly as can be."""
    base, more = divmod(len(of), ranks)
    start = rank * base + min(rank, more)
    return of[start : start + base + int(rank < more)]


def in_split_order(split: str, destination: Tensor, batch: Tensor | None = None) -> Tensor:
    """Return the order, int64 [B], in which events are cut, with earlier global batches first.

    Args:
        split: One of `SPLITS`.
        destination: int64 [B], the destination of every event, in the order of time.
        batch: int64 [B], ascending, the number of the global batch of every event; None if all are in one batch.
    """
    if split != DESTINATION:
        return torch.arange(len(destination))
    by_destination = destination.argsort(stable=True)
    return by_destination if batch is None else by_destination[batch[by_destination].argsort(stable=True)]


def rank_of(place: Tensor, size: Tensor, ranks: int) -> Tensor:
    """Return the rank of each place in a global batch, int64 [B]; see `part_of`.

    Args:
        place: int64 [B], from 0 on.
        size: int64 [B], events of that batch.
        ranks: How many share it.
    """
    base, more = size // ranks, size % ranks
    longer = more * (base + 1)
    return torch.where(place < longer, place // (base + 1), more + (place - longer) // base.clamp(min=1))


def check_one_copy(schedule: Schedule, layout: RankLayout) -> None:
    """Refuse several copies of node state.

    Raises:
        InvalidArgumentError: The layout has several copies of node state.
    """
    if len(layout.copies) > 1:
        requirement = f"1 under {type(schedule).__name__}, whose ranks share one copy of the state"
        cure = "leave it out, or take a schedule of events that plays several, RoundRobin or EpochsAndCopies"
        raise InvalidArgumentError("groups", requirement, len(layout.copies), cure)


def check_ranks(layout: RankLayout, num_events: int) -> None:
    """Refuse more ranks than events.

    Raises:
        InvalidArgumentError: There are several ranks, and more of them than events.
    """
    if 1 < layout.ranks > num_events:
        cure = "use fewer ranks, one a device, or a longer stream"
        raise InvalidArgumentError("ranks", f"at most the events of a split, {num_events}", layout.ranks, cure)
