"""Bytes that leave and reach a rank, by operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from threading import Lock
from typing import Any


@dataclass
class Flow:
    """Bytes of one operation.

    Attributes:
        sent: Bytes sent to other ranks.
        received: Bytes received from other ranks.
        calls: Exchanges.
        waited: Seconds that the caller waited for them.
        in_flight: Seconds from start to arrival, whether or not the caller waited.
        waits: Number of exchanges that the two times cover.
        sent_to: Bytes sent to every rank, 0 to the own rank; empty if the exchange did not report them.
    """

    sent: int = 0
    received: int = 0
    calls: int = 0
    waited: float = 0.0
    in_flight: float = 0.0
    waits: int = 0
    sent_to: list[int] = field(default_factory=list)

    def __add__(self, other: Flow) -> Flow:
        return self._with(other, 1)

    def __sub__(self, other: Flow) -> Flow:
        return self._with(other, -1)

    def _with(self, other: Flow, sign: int) -> Flow:
        return Flow(
            self.sent + sign * other.sent,
            self.received + sign * other.received,
            self.calls + sign * other.calls,
            self.waited + sign * other.waited,
            self.in_flight + sign * other.in_flight,
            self.waits + sign * other.waits,
            [own + sign * others for own, others in zip_longest(self.sent_to, other.sent_to, fillvalue=0)],
        )


class Traffic:
    """Counts bytes per operation; bytes that a rank sends to itself do not count.

    Any number of readers can use it side by side. Each keeps a `snapshot` and asks for the counts `since`. One reader
    may use `take`.

    Attributes:
        flows: Counts from the start on.
    """

    def __init__(self) -> None:
        self.flows: defaultdict[str, Flow] = defaultdict(Flow)
        self._taken: dict[str, Flow] = {}
        self._lock = Lock()  # threads of a rank count side by side

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}  # which no process can send

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    def add(self, operation: str, *, sent: int, received: int, sent_to: Sequence[int] | None = None) -> None:
        """Count an exchange; ``sent_to`` are the bytes for each rank, 0 for the own."""
        with self._lock:
            flow = self.flows[operation]
            flow.sent += sent
            flow.received += received
            flow.calls += 1
            if sent_to is not None:
                flow.sent_to = [before + more for before, more in zip_longest(flow.sent_to, sent_to, fillvalue=0)]

    def add_wait(self, operation: str, *, waited: float, in_flight: float) -> None:
        """Count the time of an exchange."""
        with self._lock:
            flow = self.flows[operation]
            flow.waited += waited
            flow.in_flight += in_flight
            flow.waits += 1

    @property
    def waited(self) -> float:
        """Seconds that the caller has waited, over all operations from the start on."""
        with self._lock:
            return sum((flow.waited for flow in self.flows.values()), 0.0)

    def snapshot(self) -> dict[str, Flow]:
        """Return the counts from the start on, for `since`."""
        with self._lock:
            return {operation: flow + Flow() for operation, flow in self.flows.items()}

    def since(self, snapshot: Mapping[str, Flow]) -> dict[str, Flow]:
        """Return the counts since a snapshot, for the operations that took place."""
        none = Flow()
        flows = {operation: flow - snapshot.get(operation, none) for operation, flow in self.snapshot().items()}
        return {operation: flow for operation, flow in flows.items() if flow.calls or flow.waits}

    def take(self) -> dict[str, Flow]:
        """Return the counts since the last `take`."""
        before, self._taken = self._taken, self.snapshot()
        return self.since(before)


class StepTraffic:
    """Adds up, per operation, the counts between `begin` and `end`.

    Args:
        traffic: The counts, which others may read as well.

    Attributes:
        flows: Flow of every operation.
        steps: Number of steps that the flows cover.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._mark: dict[str, Flow] = {}
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self.flows: dict[str, Flow] = {}
        self.steps = 0

    def begin(self) -> None:
        """Begin a step."""
        self._mark = self._traffic.snapshot()

    def end(self) -> None:
        """End a step."""
        self.steps += 1
        for operation, flow in self._traffic.since(self._mark).items():
            self.flows[operation] = self.flows[operation] + flow if operation in self.flows else flow
