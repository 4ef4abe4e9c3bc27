"""When the stages of training steps begin and end, on the host's clock or a device's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch

from lightning_tgnn.algorithms.schedules.stage_times import segments, stage_seconds


class Clock(Protocol):
    """Takes moments now and makes seconds of them later."""

    def now(self) -> Any:
        """Return the moment."""
        ...

    def seconds(self, moments: Sequence[Any]) -> list[float]:
        """Return the seconds of moments since the first of them."""
        ...


class HostClock:
    """The clock of the process."""

    def now(self) -> float:
        """Return the moment."""
        return perf_counter()

    def seconds(self, moments: Sequence[float]) -> list[float]:
        """Return the seconds of moments since the first of them."""
        return [moment - moments[0] for moment in moments]


class DeviceClock:
    """The clock of a CUDA device: moments are events on its stream, so that nothing waits for it but `seconds`."""

    def now(self) -> torch.cuda.Event:
        """Return the moment at which the device gets here."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, moments: Sequence[torch.cuda.Event]) -> list[float]:
        """Return the seconds of moments since the first of them, once the device has got to the last."""
        moments[-1].synchronize()
        return [moments[0].elapsed_time(moment) / 1e3 for moment in moments]


def clock_of(device: torch.device) -> Clock:
    """Return the clock that tells when work on a device is done."""
    return DeviceClock() if device.type == "cuda" else HostClock()


def wait_for_device(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class StageRecorder:
    """Records the stages of training steps; outside a step it records nothing.

    Args:
        clock: What the time is.
        waited: Returns the seconds that this rank has stood waiting for others.
    """

    def __init__(self, clock: Clock, waited: Callable[[], float]) -> None:
        self._clock, self._waited = clock, waited
        self._steps: list[tuple[int, float]] = []  # of each step: its first mark, and the seconds its batch took
        self._marks: list[tuple[str | None, Any, float]] = []
        self._depth = 0

    @property
    def steps(self) -> int:
        """Steps since `take`."""
        return len(self._steps)

    def begin(self, sampling: float) -> None:
        """Begin a step.

        Args:
            sampling: Seconds for which the host stood until it had the batch.
        """
        self._steps.append((len(self._marks), sampling))
        self._depth = 1
        self._mark("other")

    def end(self) -> None:
        """End the step, and the stages that it is in."""
        while self._depth:
            self._depth -= 1
            self._mark(None)

    def enter(self, stage: str, turn: int = 0) -> None:
        """Begin a stage, inside of the one that is under way; the step is the turn."""
        if self._depth:
            self._depth += 1
            self._mark(stage)

    def leave(self, stage: str = "", turn: int = 0) -> None:
        """End the innermost stage, but not the step."""
        if self._depth > 1:
            self._depth -= 1
            self._mark(None)

    def take(self) -> Mapping[str, float]:
        """Return the seconds of each stage since the last call, of finished steps.

        A batch that was made while the device was still at work has cost only what the device then stood still.
        """
        if not self._steps:
            return {}
        stages, recorded, waited = zip(*self._marks, strict=True)
        moments = self._clock.seconds(recorded)
        seconds = stage_seconds(zip(stages, moments, waited, strict=True))
        first, *others = self._steps
        idle = [moments[begin] - moments[begin - 1] for begin, _ in others]
        seconds["sample"] = first[1] + sum(min(step[1], gap) for step, gap in zip(others, idle, strict=True))
        self._steps, self._marks = [], []
        return seconds

    def take_bars(self) -> list[tuple[str, int, float, float]]:
        """Return when which stage of which finished step ran, since the last call.

        Returns:
            Of each bar its stage, the number of its step among them, and its beginning and end, seconds since the first
            step's. The time for which a step has stood until it had its batch lies before it, but for the first.
        """
        if not self._steps:
            return []
        stages, recorded, waited = zip(*self._marks, strict=True)
        moments = self._clock.seconds(recorded)
        marks = list(zip(stages, moments, waited, strict=True))
        bars = []
        ends = [first for first, _ in self._steps[1:]] + [len(marks)]
        for step, ((first, sampling), last) in enumerate(zip(self._steps, ends, strict=True)):
            if step:
                idle = min(sampling, moments[first] - moments[first - 1])
                bars.append(("sample", step, moments[first] - idle, moments[first]))
            bars += [(stage, step, begin, end) for stage, begin, end in segments(marks[first:last])]
        self._steps, self._marks = [], []
        return bars

    def _mark(self, stage: str | None) -> None:
        self._marks.append((stage, self._clock.now(), self._waited()))
