"""A pipeline over batches: each rank has every M-th batch as a whole (PipeTGL, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, overload

from lightning_tgnn.algorithms.schedules.data_parallel import check_ranks
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.schedule import Pass, Schedule, Turn


@dataclass(frozen=True)
class RoundRobin(Schedule):
    """Batch b is turn ``b // M`` of rank ``b mod M``, whole; batches follow each other from rank to rank.

    All ranks have as many turns: where the batches do not divide, the last ranks' last turn has no events.

    >>> turns = RoundRobin().turns(RankLayout.of(2), 1, Pass(num_events=7, batch_size=2, epoch=0))
    >>> [(turn.events, turn.before, turn.after) for turn in turns]
    [(range(2, 4), range(0, 2), range(4, 6)), (range(6, 7), range(4, 6), None)]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})
    offers: ClassVar[frozenset[str]] = frozenset({"events", "pipeline"})

    def check(self, layout: RankLayout, num_events: int) -> None:
        """Refuse more ranks than events.

        Raises:
            InvalidArgumentError: There are more.
        """
        check_ranks(layout, num_events)

    def global_batch_size(self, layout: RankLayout, batch_size: int) -> int:
        """Return the events of a global batch: those of one rank."""
        return batch_size

    def batches_per_turn(self, layout: RankLayout) -> int:
        """Return how many global batches all ranks play in a turn: one each."""
        return layout.ranks

    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return the turns of a rank."""
        return _Turns(layout.ranks, rank, over)


@dataclass(frozen=True)
class _Turns(Sequence[Turn]):
    """The turns of a rank."""

    ranks: int
    rank: int
    over: Pass

    @property
    def _batches(self) -> int:
        return -(-self.over.num_events // self.over.batch_size)

    @property
    def _first(self) -> int:
        return self.over.first // self.over.batch_size

    def __len__(self) -> int:
        return max(-(-(self._batches - self._first) // self.ranks), 0)

    @overload
    def __getitem__(self, index: int) -> Turn: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Turn]: ...

    def __getitem__(self, index: int | slice) -> Turn | Sequence[Turn]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        turn = range(len(self))[index]
        batch = self._first + turn * self.ranks + self.rank
        last = self._batches - 1
        of = self._events(min(batch, last))
        own = of if batch <= last else of[len(of) :]
        training = self.over.epoch is not None
        return Turn(
            own,
            of,
            self.over.epoch,
            resets=training and turn == 0 and self._first == 0,
            before=self._events(min(batch - 1, last)) if batch and self.ranks > 1 else None,
            after=self._events(batch + 1) if batch < last and self.ranks > 1 else None,
        )

    def _events(self, batch: int) -> range:
        size = self.over.batch_size
        return range(self.over.num_events)[batch * size : (batch + 1) * size]
