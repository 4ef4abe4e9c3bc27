"""Who works on which events when: the turns of every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_tgnn.types.exchange import RowAnnouncer
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import Outline
from lightning_tgnn.types.shared_writes import WriteRouter
from lightning_tgnn.types.temporal import EventBatch

TIME, DESTINATION = "time", "destination"
SPLITS = (TIME, DESTINATION)
"""By what the events of a global batch are ordered before ranks that share it get consecutive ones."""


@dataclass(frozen=True)
class Pass:
    """One pass over the events of a split of a stream.

    Attributes:
        num_events: How many events there are; turns count them from 0.
        batch_size: Events per rank and turn.
        epoch: Epoch of training; None in evaluation.
        first: The event at which the pass begins, if another number of ranks has played the events before.
    """

    num_events: int
    batch_size: int
    epoch: int | None = None
    first: int = 0


@dataclass(frozen=True)
class Turn:
    """One turn of a rank: a forward pass over some events, and a backward pass in training.

    Attributes:
        events: The rank's own events, consecutive places in the pass; they may be none. Of ranks that share a global
            batch, later ranks have later events: where several write to a node, the last one's counts. With
            ``split="destination"`` they count the events of the global batch in the order of their destinations, those
            of a destination in the order of time.
        of: The global batch that the events are from.
        draw: Which set of negatives the events are trained with, also in turns without events; None for the negatives
            of evaluation.
        ranks: How many ranks share the global batch.
        copy: Which copy of node state is read and written.
        reads: Whether node state is read.
        writes: Whether node state is written.
        resets: Whether node state is empty before this turn.
        before: The global batch that is played right before this one on the same copy, where another rank plays it;
            None where every rank plays what comes before.
        after: The global batch that is played right after it, in the same way.
        written: The global batch that is read and written on the copy in this turn, where it may not be ``of``.
        written_draw: Which set of negatives ``written`` is trained with where it is read and written.
        cut: How many consecutive events of the global batch each rank that shares it and the state has, in the order of
            the ranks; empty if it is not cut that way.
        beside: The events that are played on each other copy of node state for the same update of the weights.
        split: The order of the events by which the global batch is cut, one of `SPLITS`.
    """

    events: range
    of: range
    draw: int | None = None
    ranks: int = 1
    copy: int = 0
    reads: bool = True
    writes: bool = True
    resets: bool = False
    before: range | None = None
    after: range | None = None
    written: range | None = None
    written_draw: int | None = None
    cut: tuple[int, ...] = ()
    beside: tuple[range, ...] = ()
    split: str = TIME

    @property
    def share(self) -> float:
        """Share of the rank's events among all of the same update, times the ranks that have part in it."""
        events = len(self.of) + sum(len(other) for other in self.beside)
        return len(self.events) * self.ranks * (1 + len(self.beside)) / events if self.events else 0.0


class PlannedPart:
    """A part of a plan: a value that describes what to do, without a process.

    Attributes:
        needs: What another part of the plan has to offer, in words such as ``"events"``, ``"rows"`` or ``"pieces"``.
        offers: What this part offers to the others, in the same words.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    offers: ClassVar[frozenset[str]] = frozenset()


class Schedule(PlannedPart, ABC):
    """Decides for every rank what its turns are. All ranks have equally many.

    A checkpoint identifies a schedule by its `repr`, so make it a frozen data class.
    """

    @abstractmethod
    def check(self, layout: RankLayout, num_events: int) -> None:
        """Refuse ranks that do not fit, or too few events for them.

        Raises:
            InvalidArgumentError: The ranks do not fit the schedule, or there are too few events for them.
        """

    @abstractmethod
    def global_batch_size(self, layout: RankLayout, batch_size: int) -> int:
        """Return the events of a global batch."""

    def batches_per_turn(self, layout: RankLayout) -> int:
        """Return how many global batches all ranks play in a turn."""
        return 1

    def batches_at_once(self, layout: RankLayout) -> int:
        """Return how many global batches of a copy of node state have part in the updates of a turn."""
        return self.batches_per_turn(layout)

    def lanes(self, layout: RankLayout) -> int:
        """Return in how many groups the ranks of a copy of node state read and write it one after the other."""
        return 1

    def pipeline_length(self, layout: RankLayout) -> int:
        """Return how many consecutive ranks hand snapshots on to each other; 1 where none does."""
        return 1

    def draws(self, layout: RankLayout, rank: int, epoch: int) -> Sequence[int]:
        """Return which sets of negatives the turns of a rank draw in an epoch of training: one, by default."""
        return (epoch,)

    def outlined(self, outline: Outline, layout: RankLayout) -> Outline:
        """Return the outline of a plan with what the schedule adds to it, given the outline of its order and updates.

        Raises:
            InvalidArgumentError: The schedule cannot be simulated with the outline's store.
        """
        return outline

    @abstractmethod
    def turns(self, layout: RankLayout, rank: int, over: Pass) -> Sequence[Turn]:
        """Return the turns of a rank, made when they are asked for: a run resumes at any of them by its index."""


class ScheduledLoader(ABC):
    """A loader whose batches a schedule can deal out to ranks.

    Attributes:
        schedule: That deals them out; None before there is one.
        prefetch_batches: Batches made ahead; 0 makes each when it is asked for.
        waited: Seconds that the consumer has waited for batches.
    """

    schedule: Schedule | None
    prefetch_batches: int
    waited: float

    @abstractmethod
    def __len__(self) -> int:
        """Return the turns of a whole epoch."""

    @property
    @abstractmethod
    def turns_left(self) -> int:
        """Turns of this epoch that are still to come, where it resumes in the middle of one."""

    @abstractmethod
    def follow(
        self,
        schedule: Schedule,
        layout: RankLayout,
        rank: int,
        router: WriteRouter | None = None,
        announcer: RowAnnouncer | None = None,
    ) -> ScheduledLoader:
        """Return a loader of what a rank has to do, whose batches say where their writes go if a router is given.

        With an announcer batches that are made ahead tell the ranks what they read; all ranks then have to iterate
        alike.

        Raises:
            InvalidArgumentError: The ranks or the number of events do not fit, or the schedule's turns are faulty.
        """

    def release(self) -> None:
        """Remove files that are kept for as long as a run lasts; the next iteration makes what it needs."""


class StreamLoader(ScheduledLoader):
    """A loader of consecutive events that knows what came before."""

    @property
    @abstractmethod
    def start(self) -> int:
        """The id of the first event."""

    @abstractmethod
    def catch_up(self, position: int) -> Iterable[EventBatch]:
        """Return batches, without negatives, of the events from ``position`` up to where this loader begins."""
