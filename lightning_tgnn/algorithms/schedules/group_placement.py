"""Which device trains which snapshot groups."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


def groups_by_load(seconds: Sequence[float], devices: int) -> tuple[tuple[int, ...], ...]:
    """Give each group, the longest first, to the device that has least to do (LPT; Graham, 1969).

    The busiest device takes at most 4/3 of the shortest possible time. Ties go to the lowest number.

    Args:
        seconds: Of each group.
        devices: How many.

    Returns:
        For each device, the places of its groups in ``seconds``, ascending.

    >>> groups_by_load([1.0, 2.0, 4.0, 1.0], 2)
    ((2,), (0, 1, 3))
    """
    lengths = np.asarray(seconds, dtype=np.float64)
    loads = [(0.0, device) for device in range(devices)]
    found: list[list[int]] = [[] for _ in range(devices)]
    for place in np.argsort(-lengths, kind="stable").tolist():
        load, device = loads[0]
        found[device].append(place)
        heapq.heapreplace(loads, (load + float(lengths[place]), device))
    return tuple(tuple(sorted(places)) for places in found)


def groups_by_count(count: int, devices: int) -> tuple[tuple[int, ...], ...]:
    """Give each device consecutive groups, as many as the other devices have or one more.

    >>> groups_by_count(5, 2)
    ((0, 1, 2), (3, 4))
    """
    return tuple(tuple(places.tolist()) for places in np.array_split(np.arange(count), devices))
