"""Bytes that leave and reach a rank, by operation."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass


@dataclass
class Flow:
    """Bytes of one operation.

    Attributes:
        sent: Bytes sent to other ranks.
        received: Bytes received from other ranks.
        calls: Exchanges.
        waited: Seconds that the caller stood waiting for them.
        in_flight: Seconds from start to arrival, whether anybody waited or not.
    """

    sent: int = 0
    received: int = 0
    calls: int = 0
    waited: float = 0.0
    in_flight: float = 0.0


class Traffic:
    """Counts per operation since the last `take`; what a rank sends to itself does not count."""

    def __init__(self) -> None:
        self.flows: defaultdict[str, Flow] = defaultdict(Flow)

    def add(self, operation: str, *, sent: int, received: int) -> None:
        """Count an exchange."""
        flow = self.flows[operation]
        flow.sent += sent
        flow.received += received
        flow.calls += 1

    def add_wait(self, operation: str, *, waited: float, in_flight: float) -> None:
        """Count the time of an exchange."""
        flow = self.flows[operation]
        flow.waited += waited
        flow.in_flight += in_flight

    def take(self) -> dict[str, Flow]:
        """Return the counts and start anew."""
        taken, self.flows = dict(self.flows), defaultdict(Flow)
        return taken
