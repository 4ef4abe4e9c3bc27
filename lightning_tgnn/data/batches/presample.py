"""A whole epoch drawn ahead, into memory-mapped files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.data.batches.sampling import EventSampler, Sample
from lightning_tgnn.files.npy_file import allocate_npy
from lightning_tgnn.files.scratch_folder import ScratchFolder
from lightning_tgnn.files.whole import writing_to
from lightning_tgnn.types import RankLayout, Schedule, Turn

_EVENTS_PER_CHUNK = 65_536
_PLACES_PER_CHUNK = 1 << 24


class PresampledEpochs:
    """Draws all of an epoch in large pieces when its first batch is asked for; batches are then slices of the files.

    The files live in a temporary folder, which goes with this object. What a killed process has left there is removed.

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
            self._folder = ScratchFolder(place, "lightning_tgnn-presample")
        self._kind: tuple[int | None, int] | None = None
        self._files: Sample | None = None
        self._drawn: Sample | None = None

    @staticmethod
    def check(schedule: Schedule, layout: RankLayout) -> None:
        """Refuse several sets of negatives an epoch.

        Raises:
            InvalidArgumentError: A schedule draws several, for copies of node state or for passes over a batch.
        """
        if len(layout.copies) > 1 or "passes" in schedule.needs:
            cure = "set presample='off', or take one copy of node state and one pass over a batch"
            requirement = "'off' where an epoch has several sets of negatives"
            raise InvalidArgumentError(refusal("presample", requirement, "epoch", cure))

    @staticmethod
    def check_turn(turn: Turn, epoch: int | None, batch_size: int) -> None:
        """Refuse turns that `draw` does not draw for.

        Raises:
            InvalidArgumentError: It is one.
        """
        is_regular = turn.of.start % batch_size == 0 and len(turn.of) <= batch_size
        if turn.draw != epoch or not is_regular:
            requirement = "turns that draw by epoch, on global batches of one size, where an epoch is drawn ahead"
            raise InvalidArgumentError(refusal("schedule", requirement, turn, "set presample='off'"))

    def draw(self, epoch: int | None, batch_size: int) -> None:
        """Draw the epoch, unless it is there.

        Args:
            epoch: Its number; None in evaluation.
            batch_size: Events of a global batch.

        Raises:
            InvalidArgumentError: The files do not fit.
        """
        if self._drawn is not None and self._kind == (epoch, batch_size):
            return
        sampler, count = self._sampler, len(self._events)
        if self._files is None:
            negatives = self._file("negatives", (count, sampler.num_negatives if sampler.negatives else 0))
            neighbors = self._file("neighbors", (count, sampler.roots_per_event, sampler.num_neighbors))
            self._files = Sample(negatives, neighbors)
        places = sampler.roots_per_event * sampler.num_neighbors
        at_once = min(_EVENTS_PER_CHUNK, max(_PLACES_PER_CHUNK // max(places, 1), 1))
        self._drawn = None
        for start in range(0, count, at_once):
            piece = slice(start, start + at_once)
            events = self._events[piece]
            batch = torch.arange(start, start + len(events)) // batch_size
            sample = sampler.sample(events, epoch, self._events[batch * batch_size])
            self._files.negatives[piece] = sample.negatives
            self._files.neighbor_events[piece] = sample.neighbor_events
        self._kind, self._drawn = (epoch, batch_size), self._files

    def batch(self, piece: slice) -> Sample:
        """Return a copy of what `draw` drew for a run of the epoch's events: the next epoch overwrites the files."""
        assert self._drawn is not None, "draw first"
        return Sample(self._drawn.negatives[piece].clone(), self._drawn.neighbor_events[piece].clone())

    def _file(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if 0 in shape:
            return torch.empty(shape, dtype=torch.int64)
        path = self._folder.path / f"{name}.npy"
        with writing_to(path):
            return torch.from_numpy(allocate_npy(path, shape))
