"""Times of events and questions, in the unit of the stream or as dates, and since its first event."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, RowError, refusal
from lightning_tgnn.data.readers.frame_columns import Times, time_column


class StreamClock:
    """Knows when the stream began and when its latest event was.

    Args:
        origin: Time of the first event.
        latest: Time of the latest event taken in, -inf before the first.
    """

    def __init__(self, origin: float, latest: float) -> None:
        self.origin = origin
        self.latest = latest

    def event_times(self, time: Times, count: int) -> tuple[Tensor, float]:
        """Return the times of new events since the origin, float64 [count], and the last one as it was given.

        Raises:
            InvalidArgumentError: ``time`` does not hold ``count`` times.
            DataError: A time is not finite, or before the time ahead of it.
        """
        times = self._times(time, count)
        previous = np.concatenate([[self.latest], times[:-1]])
        self._refuse_earlier(times, previous, "sort events by time, and leave out what has been observed")
        return torch.from_numpy(times - self.origin), float(times[-1]) if count else self.latest

    def query_times(self, time: Times | None, count: int) -> Tensor:
        """Return the times of questions since the origin, float64 [count].

        Raises:
            InvalidArgumentError: ``time`` does not hold ``count`` times, or is None before the first event.
            DataError: A time is not finite, or before the latest event.
        """
        if time is None and math.isinf(self.latest):
            raise InvalidArgumentError(refusal("time", "given before the first event", None, "give a time"))
        times = np.full(count, self.latest) if time is None else self._times(time, count)
        self._refuse_earlier(times, np.full(count, self.latest), "the state has moved on: ask about later times")
        return torch.from_numpy(times - self.origin)

    def _times(self, time: Times, count: int) -> np.ndarray:
        times = time_column("time", time)
        if len(times) == 1:
            times = times.repeat(count)
        if len(times) != count:
            raise InvalidArgumentError(refusal("time", f"one, or {count}", len(times), "give one value per row"))
        return times

    def _refuse_earlier(self, times: np.ndarray, least: np.ndarray, cure: str) -> None:
        early = times < least
        if early.any():
            where = int(np.argmax(early))
            raise RowError("time", where, f"at least {least[where]}", float(times[where]), cure)
