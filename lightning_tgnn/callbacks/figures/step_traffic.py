"""What is exchanged within training steps, without validation and checkpoints in between."""

from __future__ import annotations

from lightning_tgnn.comm import Flow, Traffic


class StepTraffic:
    """Adds up, per operation, what comes between `begin` and `end`.

    Args:
        traffic: Which others may read as well.

    Attributes:
        flows: Of every operation.
        steps: Steps that they are of.
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
