"""The loader of event batches: iterable, sized, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_global_batch_size, refusal
from lightning_tgnn.data.batches import BatchOrganizer, Place
from lightning_tgnn.data.prefetch import prefetched
from lightning_tgnn.data.presample import PresampledEpochs
from lightning_tgnn.data.sampling import EventSampler
from lightning_tgnn.types import EventBatch, SampledRoots

_In = TypeVar("_In")


class EventLoader:
    """Yields the events of one part of a stream in time order, in batches.

    Not a map-style DataLoader, so that Lightning never reshuffles it. `state_dict` holds the exact position, counted
    in batches that were handed out, not in those under way.

    Args:
        events: int64 [E], ascending event ids.
        batch_size: Events per rank and batch.
        sampler: Draws negatives and neighbours.
        organizer: Makes batches.
        training: Draws anew each epoch, and marks the first batch as the start of the stream.
        prefetch_batches: Batches made ahead; 0 makes each when it is asked for.
        num_workers: Threads that make them; 0 as well.
        presampled: Where a whole epoch is drawn ahead, or None.
        history: Loaders of the parts before this one, in time order, for `catch_up`.

    Attributes:
        waited: Seconds for which whoever iterates has stood until there was a batch, made then or ahead.
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
        presampled: PresampledEpochs | None = None,
        history: tuple[EventLoader, ...] = (),
    ) -> None:
        self.events = events
        self.batch_size = batch_size
        self.prefetch_batches = prefetch_batches
        self.num_workers = num_workers
        self.history = history
        self._sampler = sampler
        self._organizer = organizer
        self._training = training
        self._presampled = presampled
        self.rank, self.ranks = 0, 1
        self._epoch = 0
        self._position = 0
        self._resume: dict[str, int] | None = None
        self.waited = 0.0

    def __repr__(self) -> str:
        place = "" if self.ranks == 1 else f", rank {self.rank} of {self.ranks}"
        return f"EventLoader({len(self.events):,} events, {len(self)} batches of {self.global_batch_size}{place})"

    def __len__(self) -> int:
        return -(-len(self.events) // self.global_batch_size)

    @property
    def global_batch_size(self) -> int:
        """Events per step over all ranks."""
        return self.batch_size * self.ranks

    def shard(self, rank: int, ranks: int) -> EventLoader:
        """Return a loader of one rank's part: consecutive events of each global batch, cut as evenly as can be.

        All ranks have as many batches. The last global batch may be too short for everyone to have an event of it.

        Raises:
            InvalidArgumentError: There are fewer events than ranks.
        """
        if len(self.events) < ranks:
            cure = "use fewer devices or a longer stream"
            received = f"{ranks} ranks for {len(self.events)} events"
            raise InvalidArgumentError(refusal("devices", "at most one rank per event", received, cure))
        part = copy(self)
        part.rank, part.ranks = rank, ranks
        part.history = tuple(earlier.shard(rank, ranks) for earlier in self.history)
        return part

    def __iter__(self) -> Iterator[EventBatch]:
        # Runs when the first batch is asked for: Lightning makes the iterator before it tells the epoch, and at times
        # the position. A saved position counts only within its own epoch; a later epoch starts at its beginning.
        resume, self._resume = self._resume, None
        self._position = 0
        if resume is not None and resume["epoch"] == self._epoch:
            check_global_batch_size(resume["batch_size"], self.batch_size, self.ranks)
            self._position = resume["position"]
        epoch = self._epoch if self._training else None
        if self._presampled is not None:
            begin = perf_counter()
            self._presampled.draw(epoch, self.global_batch_size)
            self.waited += perf_counter() - begin
        batches = self._prefetched(lambda number: self._make(number, epoch), range(self._position, len(self)))
        batches = batches if self.ranks == 1 else _with_upcoming(batches)
        while True:
            begin = perf_counter()
            batch = next(batches, None)
            self.waited += perf_counter() - begin
            if batch is None:
                return
            self._position += 1
            yield batch

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
            self._epoch, self._position = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, the number of its batches that have been handed out, and their size."""
        return {"epoch": self._epoch, "position": self._position, "batch_size": self.global_batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict` in the next iteration."""
        self._resume = {name: state[name] for name in ("epoch", "position", "batch_size")}
        self._epoch, self._position = state["epoch"], state["position"]

    def catch_up(self, position: int) -> Iterator[EventBatch]:
        """Yield batches, without negatives, of the events from ``position`` up to where this loader begins."""
        for earlier in self.history:
            yield from earlier.replay(position)

    def replay(self, position: int) -> Iterator[EventBatch]:
        """Yield this loader's events from ``position`` on in batches that only change node state."""
        roots: SampledRoots = "events" if self._sampler.sampled_roots == "events" else "none"
        sampler = replace(self._sampler, negatives=None, num_negatives=0, sampled_roots=roots)
        organizer = replace(self._organizer, sampled_roots=roots)

        def make(events: Tensor) -> EventBatch:
            own = events[self._own(len(events))]
            return organizer.organize(own, sampler.sample(own, None, int(events[0])), self._place(events, None))

        remaining = self.events[int((self.events < position).sum()) :]
        return self._prefetched(make, remaining.split(self.global_batch_size) if len(remaining) else ())

    def _prefetched(self, make: Callable[[_In], EventBatch], inputs: Iterable[_In]) -> Iterator[EventBatch]:
        return prefetched(make, inputs, ahead=self.prefetch_batches, workers=self.num_workers)

    def _make(self, number: int, epoch: int | None) -> EventBatch:
        first = number * self.global_batch_size
        events = self.events[first : first + self.global_batch_size]
        own = self._own(len(events))
        piece = slice(first + own.start, first + own.stop)
        sample = (
            self._sampler.sample(self.events[piece], epoch, int(events[0]))
            if self._presampled is None
            else self._presampled.batch(piece)
        )
        place = self._place(events, epoch, starts_stream=self._training and number == 0)
        return self._organizer.organize(self.events[piece], sample, place)

    def _own(self, count: int) -> slice:
        """Return this rank's part of ``count`` events; the first ranks have one more where it does not divide."""
        base, more = divmod(count, self.ranks)
        start = self.rank * base + min(self.rank, more)
        return slice(start, start + base + int(self.rank < more))

    def _place(self, events: Tensor, epoch: int | None, *, starts_stream: bool = False) -> Place:
        first, position = int(events[0]), int(events[-1]) + 1
        if self.ranks == 1:
            return Place(first, position, starts_stream)
        # Who receives mails from other ranks' events is drawn here once more: cheaper than to be told.
        roots: SampledRoots = "events" if self._organizer.sampled_roots == "events" else "none"
        sampler = replace(self._sampler, negatives=None, num_negatives=0, sampled_roots=roots)
        return Place(first, position, starts_stream, self.ranks, (events, sampler.sample(events, epoch, first)))


def _with_upcoming(batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
    """Tell each batch the nodes of the next."""
    batch = next(batches, None)
    while batch is not None:
        following = next(batches, None)
        yield batch if following is None else replace(batch, upcoming=following.nodes)
        batch = following
