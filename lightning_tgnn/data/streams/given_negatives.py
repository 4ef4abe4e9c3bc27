"""Negative destinations that come with a data set."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class GivenNegatives:
    """Negatives of the events from ``first`` on; takes the place of a `NegativeSampler` in evaluation.

    Attributes:
        first: The first event that has some.
        table: int32 or int64 [events, Q], -1 where an event has fewer than others.
    """

    first: int
    table: Tensor

    def sample(self, events: Tensor, num: int, *, epoch: int | None) -> Tensor:
        """Return the first ``num`` negatives of each of ``events`` (int64 [B]), int64 [B, num]."""
        return self.table[events - self.first, :num].long()
