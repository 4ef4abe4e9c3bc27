"""A whole epoch drawn ahead, into memory-mapped files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.data.sampling import EventSampler, Sample

_EVENTS_PER_CHUNK = 65_536


class PresampledEpochs:
    """Draws all of an epoch in large pieces when its first batch is asked for; batches are then slices of the files.

    The files live in a temporary folder, which goes with this object.

    Args:
        sampler: Draws.
        events: int64 [E], the events of an epoch, in order.
        folder: Where the temporary folder is made; the system's default if None.
    """

    def __init__(self, sampler: EventSampler, events: Tensor, folder: str | Path | None = None) -> None:
        self._sampler = sampler
        self._events = events
        self._folder = tempfile.TemporaryDirectory(prefix="lightning_tgnn-presample-", dir=folder)
        self._epoch: int | None = None
        self._drawn: Sample | None = None

    def draw(self, epoch: int | None) -> None:
        """Draw the epoch, unless it is there."""
        if self._drawn is not None and self._epoch == epoch:
            return
        sampler, count = self._sampler, len(self._events)
        negatives = self._file("negatives", (count, sampler.num_negatives if sampler.negatives else 0))
        neighbors = self._file("neighbors", (count, sampler.roots_per_event, sampler.num_neighbors))
        for start in range(0, count, _EVENTS_PER_CHUNK):
            piece = slice(start, start + _EVENTS_PER_CHUNK)
            sample = sampler.sample(self._events[piece], epoch)
            negatives[piece] = sample.negatives
            neighbors[piece] = sample.neighbor_events
        self._epoch, self._drawn = epoch, Sample(negatives, neighbors)

    def batch(self, piece: slice) -> Sample:
        """Return a copy of what `draw` drew for a run of the epoch's events: the next epoch overwrites the files."""
        assert self._drawn is not None, "draw first"
        return Sample(self._drawn.negatives[piece].clone(), self._drawn.neighbor_events[piece].clone())

    def _file(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if 0 in shape:
            return torch.empty(shape, dtype=torch.int64)
        path = Path(self._folder.name) / f"{name}.npy"
        return torch.from_numpy(np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=shape))
