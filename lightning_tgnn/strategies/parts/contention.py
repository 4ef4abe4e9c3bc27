"""How much two operators slow each other down on a device, as measured there (BLAD, section 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from statistics import median
from time import perf_counter

import numpy as np
import torch

from lightning_tgnn.algorithms.schedules.operator_order import KINDS
from lightning_tgnn.strategies.stage_recorder import wait_for_device

_SECONDS = 0.02  # that operators run for, alone and beside each other; nine such spells a round
_ROUNDS = 3


def rates_of_processes(
    operators: Mapping[str, Callable[[], object]],
    meet: Callable[[], object],
    place: int,
    device: torch.device,
) -> np.ndarray:
    """Return the speeds of this process's operators beside the other process's, float64 [2, 2], 1 for alone.

    Both processes of a device call it. Rows are kinds of this process's operators and columns kinds of the other's, in
    the order of `KINDS`. Speeds are at most 1.

    Args:
        operators: Runs one operator, by kind.
        meet: Returns when both processes have called it.
        place: 0 of the first process, 1 of the second.
        device: Where operators run.
    """
    found: dict[tuple[str, str | None], list[float]] = {}
    for _ in range(_ROUNDS):
        for at, kind in product((0, 1), KINDS):
            meet()
            if at == place:
                found.setdefault((kind, None), []).append(_speed(operators[kind], device))
        for kinds in product(KINDS, KINDS):
            meet()
            found.setdefault((kinds[place], kinds[1 - place]), []).append(_speed(operators[kinds[place]], device))
    meet()
    speeds = [[median(found[own, other]) / median(found[own, None]) for other in KINDS] for own in KINDS]
    return np.minimum(speeds, 1.0)


def rates_of_streams(operators: Mapping[str, Callable[[], object]], device: torch.device) -> np.ndarray:
    """Return the speeds of operators on one CUDA stream beside operators on another, as `rates_of_processes` does.

    Args:
        operators: Enqueues one operator, by kind.
        device: The GPU.
    """
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    calls = {kind: max(round(_SECONDS * _speed(operators[kind], device)), 1) for kind in KINDS}

    def seconds(*kinds: str) -> float:
        wait_for_device(device)
        begin = perf_counter()
        left = [calls[kind] for kind in kinds]
        while any(left):
            for own, (kind, stream) in enumerate(zip(kinds, streams, strict=False)):
                if left[own]:
                    with torch.cuda.stream(stream):
                        operators[kind]()
                    left[own] -= 1
        wait_for_device(device)
        return perf_counter() - begin

    def rate(*kinds: str) -> float:
        return median(max(map(seconds, kinds)) / seconds(*kinds) for _ in range(_ROUNDS))

    return np.minimum([[rate(own, other) for other in KINDS] for own in KINDS], 1.0)


def _speed(operator: Callable[[], object], device: torch.device) -> float:
    """Return how often an operator runs in a second."""
    wait_for_device(device)
    begin, calls = perf_counter(), 0
    while (passed := perf_counter() - begin) < _SECONDS or not calls:
        operator()
        wait_for_device(device)
        calls += 1
    return calls / passed
