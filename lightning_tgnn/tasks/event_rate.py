"""How fast a run trains, as its progress bar and loggers show it."""

from __future__ import annotations

from collections import deque
from time import perf_counter

_STEPS = 50


class EventRate:
    """Events per second over the latest steps since the clock was restarted."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=_STEPS + 1)
        self.restart()

    def restart(self) -> None:
        """Forget what was counted; what took time until now does not count."""
        self._marks.clear()
        self._marks.append((perf_counter(), 0))

    def add(self, events: int) -> None:
        """Count a step that has just ended."""
        self._marks.append((perf_counter(), self._marks[-1][1] + events))

    def per_second(self) -> float:
        """Return the rate; 0 before the first step."""
        (first_time, first), (last_time, last) = self._marks[0], self._marks[-1]
        return (last - first) / (last_time - first_time) if last > first else 0.0
