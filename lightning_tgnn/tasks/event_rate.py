"""Events per second of training, without what happens in between."""

from __future__ import annotations

from time import perf_counter

from lightning.fabric.utilities.throughput import Throughput

_WINDOW = 50


class EventRate:
    """Events per second over the latest steps since the clock was restarted."""

    def __init__(self) -> None:
        self._throughput = Throughput(window_size=_WINDOW)
        self.restart()

    def restart(self) -> None:
        """Forget what was counted; what took time until now does not count."""
        self._throughput.reset()
        self._start = perf_counter()
        self._events = 0
        self._batches = 0

    def add(self, events: int) -> None:
        """Count a step that has just ended."""
        self._events += events
        self._batches += 1
        self._throughput.update(time=perf_counter() - self._start, batches=self._batches, samples=self._events)

    def per_second(self) -> float:
        """Return the rate; NaN before the second step."""
        return self._throughput.compute().get("device/samples_per_sec", float("nan"))
