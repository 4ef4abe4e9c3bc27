"""The destinations with which every source has had an event."""

from __future__ import annotations

import threading
from array import array

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.data import EventStore

_EVENTS_AT_ONCE = 1 << 22


class SeenPairs:
    """Distinct pairs of source and destination, kept up to date as events come.

    Args:
        num_nodes: N.
        keys: int64 [P], ``source * N + destination`` of every pair, strictly ascending; none if None.
    """

    def __init__(self, num_nodes: int, keys: Tensor | None = None) -> None:
        self._num_nodes = num_nodes
        self._keys = torch.empty(0, dtype=torch.int64) if keys is None else keys
        self._new = array("q")  # one buffer: a tensor for each event would take seventy times the memory
        self._merging = threading.Lock()

    @classmethod
    def from_stream(cls, store: EventStore, end: int) -> SeenPairs:
        """Return the pairs of the first ``end`` events."""
        seen = cls(store.num_nodes)
        for start in range(0, end, _EVENTS_AT_ONCE):
            piece = slice(start, min(start + _EVENTS_AT_ONCE, end))
            seen.add(store.src[piece], store.dst[piece])
        return seen

    def add(self, src: Tensor, dst: Tensor) -> None:
        """Take in new events, int64 [B] each."""
        self._new.frombytes((src * self._num_nodes + dst).numpy().tobytes())
        if len(self._new) > max(_EVENTS_AT_ONCE, len(self._keys)):
            self.keys()

    def put_back(self, keys: Tensor, new: array[int], count: int) -> None:
        """Return to what there was: the pairs, the buffer of new ones and its length."""
        del new[count:]
        self._keys, self._new = keys, new

    def mark(self) -> tuple[Tensor, array[int], int]:
        """Return what `put_back` takes."""
        return self._keys, self._new, len(self._new)

    def clear(self) -> None:
        """Return to the state before the first event."""
        self._keys, self._new = self._keys[:0], array("q")

    def keys(self) -> Tensor:
        """Return the keys of all pairs, int64 [P], strictly ascending."""
        with self._merging:  # of several readers one does it
            if self._new:
                # Put in where they belong: to sort all again would take far longer than the question that asks.
                old, new = self._keys.numpy(), np.unique(np.array(self._new))
                if len(old):
                    new = new[old[np.searchsorted(old, new).clip(max=len(old) - 1)] != new]
                self._keys = torch.from_numpy(np.insert(old, np.searchsorted(old, new), new))
                self._new = array("q")
            return self._keys

    def for_sources(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of some sources.

        Args:
            src: int64 [S].

        Returns:
            Position among the sources, int64 [Z], and destination, int64 [Z], of every pair.
        """
        keys = self.keys()
        first = torch.searchsorted(keys, src * self._num_nodes)
        count = torch.searchsorted(keys, (src + 1) * self._num_nodes) - first
        rows = torch.arange(len(src)).repeat_interleave(count)
        within = torch.arange(len(rows)) - (count.cumsum(0) - count)[rows]
        return rows, keys[first[rows] + within] % self._num_nodes
