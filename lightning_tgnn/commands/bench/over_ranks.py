"""What one rank has measured, over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lightning_tgnn.comm import Flow
from lightning_tgnn.strategies.runner import PlanRunner

_SUMMED = ("sent", "received", "calls", "waited", "in_flight")


def finish(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reduced(strategy: PlanRunner, values: Sequence[float], operation: str) -> list[float]:
    """Return the sum or the maximum of each value over the ranks."""
    figures = torch.tensor(values, dtype=torch.float64, device=strategy.root_device)
    return strategy.reduce(figures, reduce_op=operation).tolist()


def summed_flows(strategy: PlanRunner, flows: Mapping[str, Flow]) -> dict[str, Flow]:
    """Return the exchanges of all ranks, added up by operation."""
    names = sorted(flows)  # the same on all ranks, which exchange in the same order
    values = reduced(strategy, [getattr(flows[name], key) for name in names for key in _SUMMED], "sum")
    width = len(_SUMMED)
    return {name: _flow(*values[place * width :][:width]) for place, name in enumerate(names)}


def plain_flows(flows: Mapping[str, Flow]) -> dict[str, Any]:
    """Return flows as plain values."""
    return {name: {key: getattr(flow, key) for key in _SUMMED} for name, flow in flows.items()}


def _flow(sent: float, received: float, calls: float, waited: float, in_flight: float) -> Flow:
    return Flow(sent=int(sent), received=int(received), calls=int(calls), waited=waited, in_flight=in_flight)
