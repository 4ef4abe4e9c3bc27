"""The sets of negatives and neighbours that a rank needs in an epoch, drawn ahead into memory-mapped files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from copy import copy
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.batches.sampling import EventSampler, Sample
from lightning_tgnn.files.npy_file import allocate_npy
from lightning_tgnn.files.unfinished import OwnedFolder
from lightning_tgnn.files.whole import writing_to
from lightning_tgnn.types import Turn

_EVENTS_PER_CHUNK = 65_536
_PLACES_PER_CHUNK = 1 << 24


class PresampledEpochs:
    """Draws what a rank plays of an epoch in large pieces when it begins; batches are then rows of the files.

    A set that a later epoch takes again, as one of several at random, is drawn once. The most recent neighbours of an
    event's ends are the same in all sets, and are there once.

    The files live in a temporary folder, which goes with this object. What a killed process has left there is removed.
    `release` gives back their room before.

    Args:
        sampler: Draws.
        events: int64 [E], the events of an epoch, in order.
        folder: Where the temporary folder is made; the system's default if None.

    Raises:
        InvalidArgumentError: Nothing can be written there.
    """

    def __init__(self, sampler: EventSampler, events: Tensor, folder: str | Path | None = None) -> None:
        self._sampler = sampler
        self._events = events
        place = Path(folder or tempfile.gettempdir())
        with writing_to(place):
            place.mkdir(parents=True, exist_ok=True)
            self._folder = OwnedFolder(place / "presample")
        self._numbers = count()  # no file takes the name of an earlier one, which a batch under way may still read
        self._begin()
        self._common = min(sampler.roots_per_event, 2) if sampler.neighbor_sampler == "most_recent" else 0

    def follower(self) -> PresampledEpochs:
        """Return another with files of its own in the same folder, for another rank."""
        other = copy(self)
        other._begin()
        return other

    def release(self) -> None:
        """Remove the files; what is needed later is drawn anew."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._begin()

    def _begin(self) -> None:
        self._batch_size = 0
        self._own = self._events[:0]  # what the files have rows for
        self._paths: list[Path] = []
        self._files: list[Sample] = []  # a place for a set; with as many neighbours as differ between sets
        self._drawn: dict[int | None, int] = {}  # the place of each set that is there
        self._ends: Tensor | None = None

    def draw(self, draws: Sequence[int | None], batch_size: int, own: Tensor) -> None:
        """Draw the sets that are not there.

        Args:
            draws: Their numbers; None for the draw of evaluation. Others make room.
            batch_size: Events of a global batch.
            own: int64 [L], ascending, the events of the rank's turns.

        Raises:
            InvalidArgumentError: The files do not fit.
        """
        if batch_size != self._batch_size:  # which may decide what is past
            self._drawn, self._batch_size = {}, batch_size
        if not torch.equal(own, self._own):
            self.release()
            self._own, self._batch_size = own, batch_size
        wanted = [draw for draw in draws if draw not in self._drawn]
        kept = {draw: place for draw, place in self._drawn.items() if draw in draws}
        free = [place for place in range(len(self._files)) if place not in kept.values()]
        self._drawn = kept
        for draw in wanted:
            place = free.pop() if free else self._allocate()
            self._draw(draw, self._files[place], with_ends=not self._drawn)
            self._drawn[draw] = place

    def _allocate(self) -> int:
        sampler, rows, number = self._sampler, len(self._own), len(self._files)
        negatives = self._file("negatives", (rows, sampler.num_negatives if sampler.negatives else 0))
        others = (rows, sampler.roots_per_event - self._common, sampler.neighbors_per_root)
        self._files.append(Sample(negatives, self._file("neighbors", others)))
        if self._ends is None:
            self._ends = self._file("ends", (rows, self._common, sampler.neighbors_per_root))
        return number

    def _draw(self, draw: int | None, files: Sample, *, with_ends: bool) -> None:
        sampler, rows, size = self._sampler, len(self._own), self._batch_size
        assert self._ends is not None
        places = sampler.roots_per_event * sampler.neighbors_per_root
        at_once = min(_EVENTS_PER_CHUNK, max(_PLACES_PER_CHUNK // max(places, 1), 1))
        for start in range(0, rows, at_once):
            piece = slice(start, start + at_once)
            events = self._own[piece]
            first = torch.searchsorted(self._events, events) // size * size
            sample = sampler.sample(events, draw, self._events[first])
            files.negatives[piece] = sample.negatives
            files.neighbor_events[piece] = sample.neighbor_events[:, self._common :]
            if with_ends:
                self._ends[piece] = sample.neighbor_events[:, : self._common]

    def batch(self, turn: Turn, events: Tensor) -> Sample:
        """Return a copy of what `draw` drew for the events of a turn: a later epoch overwrites the files.

        Args:
            turn: What the schedule says.
            events: int64 [B], ascending, the rank's own.

        Raises:
            InvalidArgumentError: No epoch has been drawn for the turn's draw, or its global batch has another size.
        """
        size = self._batch_size
        if turn.draw not in self._drawn or turn.of.start % size or len(turn.of) > size:
            requirement = "turns of the sets that it says, on global batches of one size, where an epoch is drawn ahead"
            raise InvalidArgumentError("schedule", requirement, turn, "set presample='off'")
        assert self._ends is not None
        places, files = torch.searchsorted(self._own, events), self._files[self._drawn[turn.draw]]
        neighbors = torch.cat([self._ends[places], files.neighbor_events[places]], dim=1)
        return Sample(files.negatives[places], neighbors, sources=self._sampler.sources_of(events))

    def _file(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if 0 in shape:
            return torch.empty(shape, dtype=torch.int64)
        path = self._folder.path / f"{name}-{next(self._numbers)}.npy"
        self._paths.append(path)
        with writing_to(path):
            return torch.from_numpy(allocate_npy(path, shape))
