"""A pipeline over batches: each rank has every M-th batch as a whole (PipeTGL, sections 4.1 and 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from lightning_tgnn.algorithms.schedules.data_parallel import check_ranks
from lightning_tgnn.algorithms.schedules.turns import Turns
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import SERVER, Outline
from lightning_tgnn.types.schedule import Pass, Schedule, Turn


@dataclass(frozen=True)
class RoundRobin(Schedule):
    """Batch b is turn ``b // M`` of rank ``b mod M``, whole; batches follow each other from rank to rank.

    All ranks have equally many turns. If the batches do not divide evenly, the last turn of the last ranks has no
    events.

    If the layout has several copies of node state, the ranks of each copy are a pipeline over the whole stream, which
    is memory parallelism (DistTGL, section 3.2.3). With k copies, copy c begins its epochs at segment c of k equal
    segments of the stream, goes round, and is emptied at the start of the stream. At its very first turn it is empty.
    Each copy trains with its own negatives. The first copy evaluates, and the others have turns without events.

    >>> turns = RoundRobin().turns(RankLayout.of(2), 1, Pass(num_events=7, batch_size=2, epoch=0))
    >>> [(turn.events, turn.before, turn.after) for turn in turns]
    [(range(2, 4), range(0, 2), range(4, 6)), (range(6, 7), range(4, 6), None)]
    >>> layout = RankLayout.of(2, families={"state": ((0,), (1,))})
    >>> turns = RoundRobin().turns(layout, 1, Pass(num_events=7, batch_size=2, epoch=0))
    >>> [(turn.events, turn.resets, turn.draw) for turn in turns]
    [(range(4, 6), True, 1), (range(6, 7), False, 1), (range(0, 2), True, 1), (range(2, 4), False, 1)]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})
    offers: ClassVar[frozenset[str]] = frozenset({"events", "pipeline"})

    def check(self, layout: RankLayout, num_events: int) -> None:
        """Refuse more ranks than events.

        Raises:
            InvalidArgumentError: There are several ranks, and more of them than events.
        """
        check_ranks(layout, num_events)

    def global_batch_size(self, layout: RankLayout, batch_size: int) -> int:
        """Return the number of events in a global batch, which belongs to one rank."""
        return batch_size

    def batches_per_turn(self, layout: RankLayout) -> int:
        """Return how many global batches the ranks of a copy train in a turn: one each."""
        return len(layout.copies[0])

    def lanes(self, layout: RankLayout) -> int:
        """Return in how many groups the ranks of a copy read and write it: each by itself."""
        return len(layout.copies[0])

    def draws(self, layout: RankLayout, rank: int, epoch: int) -> Sequence[int]:
        """Return the one set of negatives of a copy."""
        return (epoch * len(layout.copies) + layout.copy_of(rank)[0],)

    def outlined(self, outline: Outline, layout: RankLayout) -> Outline:
        """Return the outline as it is.

        Raises:
            InvalidArgumentError: Node state is served, which cannot be simulated under this schedule.
        """
        if any(stage.on == SERVER for stage in outline.stages):
            requirement = "a schedule under which served node state can be simulated"
            cure = "take EpochsAndCopies or DataParallel, or the store HostMemory"
            raise InvalidArgumentError("schedule", requirement, "RoundRobin", cure)
        return outline

    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return the turns of a rank."""
        copy, place = layout.copy_of(rank)
        return _Turns(len(layout.copies), copy, len(layout.copies[0]), place, over)


@dataclass(frozen=True)
class _Turns(Turns):
    """The turns of a rank, by its place among the M ranks of a copy of node state."""

    copies: int
    copy: int
    ranks: int
    place: int
    over: Pass

    @property
    def _batches(self) -> int:
        return -(-self.over.num_events // self.over.batch_size)

    @property
    def _first(self) -> int:
        return self.over.first // self.over.batch_size

    def __len__(self) -> int:
        return max(-(-(self._batches - self._first) // self.ranks), 0)

    def at(self, index: int) -> Turn:
        return self._evaluating(index) if self.over.epoch is None else self._training(index, self.over.epoch)

    def _evaluating(self, turn: int) -> Turn:
        batch = self._batch(0, turn)
        if self.copy:
            return Turn(range(0), self._events(min(batch, self._batches - 1)), copy=self.copy)
        return self._turn(batch)

    def _training(self, turn: int, epoch: int) -> Turn:
        batch = self._batch(self.copy, turn)
        others = [self._batch(other, turn) for other in range(self.copies) if other != self.copy]
        begins = turn == 0 and self._first == 0
        return replace(
            self._turn(batch),
            draw=epoch * self.copies + self.copy,
            resets=batch < self.ranks or (begins and epoch == 0) if self.copy else begins,
            beside=tuple(self._events(other) for other in others),
        )

    def _batch(self, copy: int, turn: int) -> int:
        """Return the batch that the rank in this place trains; it may be behind the last."""
        if not copy:
            return self._first + turn * self.ranks + self.place
        whole = -(-self._batches // self.ranks)
        played = -(-self._first // self.ranks)  # by other numbers of ranks
        return (copy * whole // self.copies + played + turn) % whole * self.ranks + self.place

    def _turn(self, batch: int) -> Turn:
        last = self._batches - 1
        before = self._events(min(batch - 1, last)) if batch and self.ranks > 1 else None
        after = self._events(batch + 1) if batch < last and self.ranks > 1 else None
        return Turn(self._events(batch), self._events(min(batch, last)), copy=self.copy, before=before, after=after)

    def _events(self, batch: int) -> range:
        """Return the events of a batch; an empty range behind the last batch."""
        size = self.over.batch_size
        return range(self.over.num_events)[batch * size : (batch + 1) * size]
