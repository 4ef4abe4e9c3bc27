"""Where the snapshots of an event stream begin and end: by time, by number of events, by life time of edges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.checks import (
    DataError,
    InvalidArgumentError,
    check_fraction,
    check_int,
    check_positive,
)

_WAYS = ("num_snapshots", "window", "events_per_snapshot")


@dataclass(frozen=True)
class Cut:
    """How a stream is cut into snapshots.

    Attributes:
        num_snapshots: So many windows of time, of one length.
        window: Or windows of this length, in the unit of the stream's times.
        events_per_snapshot: Or windows of so many events.
        overlap: Share of a window that it has in common with the one before.
        lifetime: How long an edge stays after its event: a snapshot then has the edges that are there at the end of its
            window; ``inf`` lets them stay for good. None gives it the events of its window.

    Raises:
        InvalidArgumentError: A value cannot work, or not one of the first three is given.
    """

    num_snapshots: int | None = None
    window: float | None = None
    events_per_snapshot: int | None = None
    overlap: float = 0.0
    lifetime: float | None = None

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _WAYS if getattr(self, name) is not None}
        if len(given) != 1:
            cure = "say how an event stream is cut into snapshots, for example num_snapshots=100"
            raise InvalidArgumentError(", ".join(_WAYS), "one of them given", given or None, cure)
        if self.num_snapshots is not None:
            check_int("num_snapshots", self.num_snapshots, minimum=1, cure="give a number of windows, for example 100")
        if self.events_per_snapshot is not None:
            cure = "give a number of events, for example 1000"
            check_int("events_per_snapshot", self.events_per_snapshot, minimum=1, cure=cure)
        if self.window is not None:
            check_positive("window", self.window, cure="give its length in the unit of the stream's times")
        check_fraction("overlap", self.overlap, cure="give a share, for example 0.5; 0 is usual")
        if self.lifetime is None:
            return
        if self.lifetime != math.inf:
            check_positive("lifetime", self.lifetime, cure="give a time in the stream's unit, or inf")
        if self.overlap:
            cure = "leave out one: edges that stay longer than a window make snapshots that overlap"
            raise InvalidArgumentError("overlap", "0 with a lifetime", self.overlap, cure)

    def ranges(self, time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return where each snapshot's events begin and end, int64 [T] each, and its time, float64 [T].

        Args:
            time: Of the events, float64 [E], ascending.

        Raises:
            InvalidArgumentError: There would be more snapshots than events.
        """
        begins, ends, until = (
            self._by_time(time) if self.events_per_snapshot is None else self._by_count(time, self.events_per_snapshot)
        )
        if self.lifetime == math.inf:
            begins = torch.zeros_like(begins)
        elif self.lifetime is not None:
            begins = torch.searchsorted(time, until - self.lifetime, side="right")
            begins = torch.minimum(begins, ends)
        return begins, ends, until

    def _by_count(self, time: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        step = max(round(size * (1 - self.overlap)), 1)
        number = 1 + max(-(-(len(time) - size) // step), 0)
        begins = torch.arange(number) * step
        ends = (begins + size).clamp_(max=len(time))
        return begins, ends, _ascending(time[ends - 1])

    def _by_time(self, time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        start, span = float(time[0]), float(time[-1] - time[0])
        if self.window is None:
            assert self.num_snapshots is not None
            number = self.num_snapshots
            if number > 1 and not span:
                raise DataError("the stream", "events of several times", start, "give events_per_snapshot")
            length = span / (1 + (number - 1) * (1 - self.overlap))
        else:
            length = float(self.window)
            # The last window ends after the last event, not with it.
            number = 1 if span < length else math.floor((span - length) / (length * (1 - self.overlap))) + 2
        if number > len(time):
            name = "num_snapshots" if self.window is None else "window"
            received = f"{number:,} snapshots of {len(time):,} events"
            requirement = "such that there are no more snapshots than events"
            raise InvalidArgumentError(name, requirement, received, "take longer windows")
        first = start + torch.arange(number, dtype=torch.float64) * (length * (1 - self.overlap))
        until = first + length
        ends = torch.searchsorted(time, until)
        ends[-1] = len(time)
        # Windows that meet share a bound, whatever rounding makes of it.
        begins = torch.searchsorted(time, first) if self.overlap else torch.cat([ends.new_zeros(1), ends[:-1]])
        return begins, ends, until


def _ascending(times: Tensor) -> Tensor:
    """Return times with the next larger number where one is as large as the one before."""
    previous = -math.inf
    found = []
    for value in times.tolist():
        previous = value if value > previous else math.nextafter(previous, math.inf)
        found.append(previous)
    return torch.tensor(found, dtype=torch.float64)
