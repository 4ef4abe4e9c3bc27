"""Which destinations every source has had an event with."""

from __future__ import annotations

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
        self._new: list[Tensor] = []
        self._num_new = 0

    @classmethod
    def of_stream(cls, store: EventStore, end: int) -> SeenPairs:
        """Return the pairs of the first ``end`` events."""
        seen = cls(store.num_nodes)
        for start in range(0, end, _EVENTS_AT_ONCE):
            piece = slice(start, min(start + _EVENTS_AT_ONCE, end))
            seen.add(store.src[piece], store.dst[piece])
        return seen

    def add(self, src: Tensor, dst: Tensor) -> None:
        """Take in new events, int64 [B] each."""
        self._new.append(src * self._num_nodes + dst)
        self._num_new += len(src)
        if self._num_new > max(_EVENTS_AT_ONCE, len(self._keys)):
            self.keys()

    def clear(self) -> None:
        """Return to the state before the first event."""
        self._keys = self._keys[:0]
        self._new, self._num_new = [], 0

    def keys(self) -> Tensor:
        """Return the keys of all pairs, int64 [P], strictly ascending."""
        if self._new:
            self._keys = torch.cat([self._keys, *self._new]).unique()
            self._new, self._num_new = [], 0
        return self._keys

    def of_sources(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """Return what some sources have seen.

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
