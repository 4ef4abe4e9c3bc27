"""How often, and when last, a key had an event before another event: what untrained baselines are made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.types import TensorFields


@dataclass(frozen=True, repr=False)
class PastEvents(TensorFields):
    """Events by key: by pair, or by destination. Build one with `build`.

    Attributes:
        keys: int64 [P], ascending, the distinct keys.
        entries: int64 [n], ascending, ``position of the key * E + event``.
        event_time: float64 [E], time of every event of the stream.
    """

    keys: Tensor
    entries: Tensor
    event_time: Tensor

    @classmethod
    def build(cls, key: Tensor, events: Tensor, event_time: Tensor) -> PastEvents:
        """Sort events by key.

        Args:
            key: int64 [n].
            events: int64 [n], ascending, the events that count, of all E.
            event_time: float64 [E].
        """
        keys, position = torch.unique(key, return_inverse=True)
        return cls(keys, (position * len(event_time) + events).sort().values, event_time)

    def before(self, key: Tensor, event: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many events a key had before an event, int64 [R], and when the last was, float64 [R].

        Args:
            key: int64 [R].
            event: int64 [R].

        Returns:
            0 and minus infinity where a key had none.
        """
        total = len(self.event_time)
        if not len(self.keys):
            return torch.zeros_like(key), self.event_time.new_full(key.shape, -torch.inf)
        position = torch.searchsorted(self.keys, key).clamp_(max=len(self.keys) - 1)
        first = torch.searchsorted(self.entries, position * total)
        count = torch.searchsorted(self.entries, position * total + event) - first
        count = torch.where(self.keys[position] == key, count, 0)
        last = self.event_time[self.entries[(first + count - 1).clamp(min=0)] % total]
        return count, torch.where(count > 0, last, -torch.inf)
