"""The loader of event batches: iterable, sized, resumable; it announces ahead which rows batches read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any, TypeVar
from zlib import crc32

import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import check_global_batch_size
from lightning_tgnn.data.batches.organizer import BatchOrganizer, Whole, drawn_for_mails, mails_of_batch
from lightning_tgnn.data.batches.padding import Paddings
from lightning_tgnn.data.batches.prefetch import prefetched
from lightning_tgnn.data.batches.presample import PresampledEpochs
from lightning_tgnn.data.batches.sampling import EventSampler
from lightning_tgnn.data.batches.turn_checks import check_parts, check_resumable, check_turn
from lightning_tgnn.types import EventBatch, Pass, RankLayout, RowAnnouncer, Schedule, StreamLoader, Turn, WriteRouter

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_LOOKED_AT = 8  # batches of an epoch, which say how large the others will be


class EventLoader(StreamLoader):
    """Yields the events of one split of a stream in time order, in batches.

    Not a map-style DataLoader, so that Lightning never reshuffles it. `state_dict` holds the exact position, counted in
    batches that were handed out, not in batches made ahead. A run with another number of ranks can resume from there.

    A schedule decides which events a rank gets, and in which batches; see `follow`. Without a schedule a single rank
    gets all events.

    Args:
        events: int64 [E], ascending event ids.
        batch_size: Events per rank and turn.
        sampler: Draws negatives and neighbours.
        organizer: Makes batches.
        training: Draws anew each epoch, and marks the first batch as the start of the stream.
        prefetch_batches: Batches made ahead; 0 makes each when it is asked for.
        num_workers: Threads that make batches; 0 makes each when it is asked for.
        pins_memory: Put batches that are made ahead in pinned memory, for a GPU.
        presampled: Where a whole epoch is drawn ahead, or None.
        paddings: Sizes to which batches of ``batch_size`` events are padded; None leaves all as they are.
        history: Loaders of the splits before this one, in time order, for `catch_up`.

    Attributes:
        waited: Seconds that the consumer has waited for batches, made then or ahead.
    """

    batch_sampler = None  # Lightning looks here before it looks at `sampler`.

    def __init__(
        self,
        events: Tensor,
        batch_size: int,
        sampler: EventSampler,
        organizer: BatchOrganizer,
        *,
        training: bool,
        prefetch_batches: int = 0,
        num_workers: int = 0,
        pins_memory: bool = False,
        presampled: PresampledEpochs | None = None,
        paddings: Paddings | None = None,
        history: tuple[EventLoader, ...] = (),
    ) -> None:
        self.events, self.batch_size = events, batch_size
        self.prefetch_batches, self.num_workers = prefetch_batches, num_workers
        self._pins_memory, self.history = pins_memory, history
        self._sampler, self._organizer = sampler, organizer
        self._training, self._presampled, self._paddings = training, presampled, paddings
        self._announcer: RowAnnouncer | None = None
        self.schedule: Schedule = DataParallel()
        self.layout, self.rank = RankLayout.of(1), 0
        self._epoch, self._position = 0, 0
        self._first = 0  # global batches of this epoch that other numbers of ranks have played
        self._resume: dict[str, int] | None = None
        self.waited = 0.0

    def __repr__(self) -> str:
        place = "" if self.layout.ranks == 1 else f", rank {self.rank} of {self.layout.ranks}"
        return f"EventLoader({len(self.events):,} events, {len(self)} batches of {self.global_batch_size}{place})"

    def __len__(self) -> int:
        return len(self.turns(self._epoch if self._training else None))

    @property
    def global_batch_size(self) -> int:
        """Events of a global batch."""
        return self.schedule.global_batch_size(self.layout, self.batch_size)

    def follow(
        self,
        schedule: Schedule,
        layout: RankLayout,
        rank: int,
        router: WriteRouter | None = None,
        announcer: RowAnnouncer | None = None,
    ) -> EventLoader:
        """Return a loader of what a rank has to do by a schedule. All ranks have as many batches.

        With a router, batches are made with the destinations of their writes, so that these are computed ahead. With an
        announcer, the ranks tell each other ahead which rows batches read, if all ranks make batches ahead; then all
        ranks have to iterate alike.

        Raises:
            InvalidArgumentError: The ranks or the number of events do not fit, or the schedule's turns are faulty.
        """
        schedule.check(layout, len(self.events))
        check_parts(schedule, layout, Pass(len(self.events), self.batch_size, 0 if self._training else None))
        own = copy(self)
        own.schedule, own.layout, own.rank = schedule, layout, rank
        own._organizer, own._announcer = replace(self._organizer, router=router), announcer
        own._presampled = None if self._presampled is None else self._presampled.follower()
        own.history = tuple(earlier.follow(schedule, layout, rank, router) for earlier in self.history)
        return own

    def release(self) -> None:
        """Remove the files of an epoch that was drawn ahead; the next iteration draws it anew."""
        if self._presampled is not None:
            self._presampled.release()

    def turns(self, epoch: int | None) -> Sequence[Turn]:
        """Return this rank's turns in an epoch; None asks for the turns of an evaluation."""
        return self._turns(self.events, epoch)

    def _turns(self, events: Tensor, epoch: int | None, first: int = 0) -> Sequence[Turn]:
        over = Pass(len(events), self.batch_size, epoch, first)
        return check_resumable(self.schedule.turns(self.layout, self.rank, over), over)

    def __iter__(self) -> Iterator[EventBatch]:
        # Runs when the first batch is asked for: Lightning makes the iterator before it tells the epoch, and at times
        # the position. A saved position counts only within its own epoch; a later epoch starts at its beginning.
        resume, self._resume = self._resume, None
        self._position, self._first = 0, 0
        if resume is not None and resume["epoch"] == self._epoch:
            check_global_batch_size(resume["batch_size"], self.batch_size, self.global_batch_size // self.batch_size)
            self._position, self._first = self._place(resume)
        epoch = self._epoch if self._training else None
        turns = self._turns(self.events, epoch, self._first * self.global_batch_size)
        if self._presampled is not None:
            begin = perf_counter()
            draws = (None,) if epoch is None else self.schedule.draws(self.layout, self.rank, epoch)
            self._presampled.draw(draws, self.global_batch_size, self._organizer.events_of(self.events, turns))
            self.waited += perf_counter() - begin
        if self._paddings is not None:
            self._paddings.expect(map(self.batch, turns[:: max(len(turns) // _LOOKED_AT, 1)]))
        passes = in_passes(turns, self._position)
        workers = {"ahead": self.prefetch_batches, "workers": self.num_workers}
        made = made_ahead(partial(self._passes, turns), passes, self._announcer, **workers)
        batches = chain.from_iterable(made) if self.layout.ranks == 1 else with_upcoming(chain.from_iterable(made))
        while True:
            begin = perf_counter()
            batch = next(batches, None)
            self.waited += perf_counter() - begin
            if batch is None:
                return
            if self._position == 0 and epoch is not None:
                batch = replace(batch, shared=replace(batch.shared, continues=self._continues(epoch)))
            self._position += 1
            yield batch

    def _continues(self, epoch: int) -> int | None:
        """Return where the state of a further copy stands if it has gone round in the epoch before; None for others."""
        copy, _ = self.layout.copy_of(self.rank)
        if not copy:
            return None
        over = Pass(len(self.events), self.batch_size, epoch, self._first * self.global_batch_size)
        begin = self.schedule.turns(self.layout, self.layout.copies[copy][0], over)[0].of.start
        return int(self.events[begin - 1]) + 1 if begin else None

    @property
    def start(self) -> int:
        """The id of the first event."""
        return int(self.events[0])

    @property
    def sampler(self) -> EventLoader:
        """Itself: Lightning tells the epoch to a loader's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Draw the negatives of ``epoch`` from the next iteration on."""
        if epoch != self._epoch:
            self._epoch, self._position, self._first = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, how many of its batches this rank and all ranks have been handed, and their sizes."""
        per_turn = self.schedule.batches_per_turn(self.layout)
        batches = self._first + self._position * per_turn
        batches = min(batches, -(-len(self.events) // self.global_batch_size))  # the last turn may have some to spare
        sizes = {"batch_size": self.global_batch_size, "batches_per_turn": per_turn}
        place = {"epoch": self._epoch, "position": self._position, "batches": batches, "first": self._first}
        return {**place, **sizes, "players": self._players}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict` in the next iteration."""
        batches = state.get("batches", state["position"])  # earlier files count no others
        self._resume = {"epoch": state["epoch"], "batches": batches, "batch_size": state["batch_size"]}
        if state.get("players") == self._players:
            self._resume |= {"first": state["first"], "position": state["position"]}
        self._epoch = state["epoch"]
        self._position, self._first = self._place(self._resume)

    @property
    def _players(self) -> int:
        """Who plays what, as a number: a position in turns means nothing to others."""
        return crc32(f"{self.schedule} on {self.layout.copies}".encode())

    def _place(self, resume: dict[str, int]) -> tuple[int, int]:
        """Return turns that have been played and global batches before them, of all that have been played."""
        if "position" in resume:
            return resume["position"], resume["first"]
        batches = resume["batches"]
        turns, others = divmod(batches, self.schedule.batches_per_turn(self.layout))
        if batches * self.global_batch_size >= len(self.events):
            return len(self), 0  # the epoch is over
        # Nobody has what a pass that other ranks have begun has read.
        return (0, batches) if others or "passes" in self.schedule.needs else (turns, 0)

    @property
    def turns_left(self) -> int:
        """Turns of this epoch that are still to come."""
        epoch = self._epoch if self._training else None
        return len(self._turns(self.events, epoch, self._first * self.global_batch_size)) - self._position

    def catch_up(self, position: int) -> Iterator[EventBatch]:
        """Yield batches, without negatives, of the events from ``position`` up to where this loader begins.

        Copies of node state beside the first, which evaluates, need none.
        """
        if self.layout.copy_of(self.rank)[0]:
            return iter(())
        return chain.from_iterable(earlier.replay(position) for earlier in self.history)

    def replay(self, position: int) -> Iterator[EventBatch]:
        """Yield this loader's events from ``position`` on in batches that only change node state."""
        remaining = self.events[int((self.events < position).sum()) :]
        sampler = drawn_for_mails(self._sampler)
        organizer = replace(self._organizer, sampled_roots=sampler.sampled_roots)

        def make(turn: Turn) -> EventBatch:
            turn = replace(turn, before=None, after=None, written=None, beside=())
            own, together = organizer.own_events(remaining, turn), _at(remaining, turn.of)
            sample = sampler.sample(own, turn.draw, int(together[0]))
            return organizer.organize(own, sample, self._whole(turn, together))

        return self._ahead(make, self._turns(remaining, None) if len(remaining) else ())

    def _ahead(self, make: Callable[[_In], _Out], inputs: Iterable[_In]) -> Iterator[_Out]:
        return prefetched(make, inputs, ahead=self.prefetch_batches, workers=self.num_workers)

    def batch(self, turn: Turn) -> EventBatch:
        """Return the batch of a turn.

        Raises:
            InvalidArgumentError: The turn is faulty, or asks for what no store or no epoch drawn ahead can give.
        """
        check_turn(turn, self.schedule, self.layout.copy_of(self.rank)[0], training=self._training)
        own, together = self._organizer.own_events(self.events, turn), _at(self.events, turn.of)
        sample = (
            self._sampler.sample(own, turn.draw, int(together[0]))
            if self._presampled is None
            else self._presampled.batch(turn, own)
        )
        return self._organizer.organize(own, sample, self._whole(turn, together))

    def _passes(self, turns: Sequence[Turn], numbers: Sequence[int]) -> list[EventBatch]:
        """Return the batches of a turn that reads and of those that take what it has read."""
        batches = [self.batch(turns[number]) for number in numbers]
        if len(batches) > 1:
            nodes = torch.cat([batch.nodes for batch in batches[1:]]).unique()
            later = nodes[~torch.isin(nodes, batches[0].nodes)]
            batches[0] = replace(batches[0], shared=replace(batches[0].shared, later=later))
        if self._paddings is not None:  # a last, short batch would have sizes of its own
            batches = [self._paddings.pad(batch) if len(batch) == self.batch_size else batch for batch in batches]
        works_ahead = self.prefetch_batches and self.num_workers  # else training would wait for it
        return [batch.pin_memory() for batch in batches] if self._pins_memory and works_ahead else batches

    def _whole(self, turn: Turn, events: Tensor) -> Whole:
        # Who receives mails from other ranks' events is drawn here once more: cheaper than to be sent it.
        written, draw = (_at(self.events, turn.written), turn.written_draw) if turn.written else (events, turn.draw)
        before = None if turn.before is None else _at(self.events, turn.before)
        return Whole(
            turn,
            events,
            written,
            None if turn.ranks == 1 and not turn.written else mails_of_batch(self._sampler, written, draw),
            before=None if before is None else mails_of_batch(self._sampler, before, turn.draw),
            after=None if turn.after is None else _at(self.events, turn.after),
            beside=torch.cat([_at(self.events, other) for other in turn.beside]) if turn.beside else None,
        )


def _at(events: Tensor, places: range) -> Tensor:
    return events[places.start : places.stop]


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
            ahead = following.shared
            upcoming = torch.cat([following.nodes, ahead.later]) if ahead.reads else None
            shared = replace(batch.shared, upcoming=upcoming, upcoming_announced=ahead.announced)
            batch = replace(batch, shared=shared)
        yield batch
        batch = following


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
