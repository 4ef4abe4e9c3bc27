"""Which device trains which snapshot groups, and which groups all devices train together."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from lightning_tgnn.checks import InvalidArgumentError, check_int, refusal


def groups_by_load(seconds: Sequence[float], devices: int) -> tuple[tuple[int, ...], ...]:
    """Give each group, the longest first, to the device that has least to do (LPT; Graham, 1969).

    The busiest device takes at most 4/3 of the shortest possible time. Ties go to the lowest number.

    Args:
        seconds: Of each group.
        devices: How many.

    Returns:
        For each device, the places of its groups in ``seconds``, ascending.

    Raises:
        InvalidArgumentError: Seconds are negative or not finite, or there is no device.

    >>> groups_by_load([1.0, 2.0, 4.0, 1.0], 2)
    ((2,), (0, 1, 3))
    """
    check_int("devices", devices, minimum=1, cure="give the number of devices")
    lengths = np.asarray(seconds, dtype=np.float64)
    check_seconds("seconds", lengths)
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
    check_int("count", count, minimum=0, cure="give the number of groups")
    check_int("devices", devices, minimum=1, cure="give the number of devices")
    return tuple(tuple(places.tolist()) for places in np.array_split(np.arange(count), devices))


def groups_to_cut(
    seconds: Sequence[float],
    exchange: Sequence[float],
    devices: int,
    processes: int,
    *,
    must: Sequence[int] = (),
) -> tuple[int, ...]:
    """Choose the groups of an update that all ranks compute together, each rank some of the vertices.

    A group that is cut takes its seconds over the number of ranks, plus what cutting it costs. `groups_by_load` deals
    out the other groups to devices, and the processes of a device share each of its groups. Groups are cut one after
    the other, the longest first. The result is the choice with which the update ends first; of equal choices, the one
    that cuts fewer groups.

    Args:
        seconds: Of each group, in one process.
        exchange: Additional seconds of each group if it is cut: exchanges, unequal shares, products that are not kept.
        devices: How many.
        processes: Processes of each device.
        must: Places of groups that have to be cut.

    Returns:
        Places of the groups that are cut, ascending.

    >>> groups_to_cut([8.0, 1.0, 1.0], [0.1, 0.1, 0.1], devices=2, processes=1)
    (0,)
    """
    lengths, costs = np.asarray(seconds, dtype=np.float64), np.asarray(exchange, dtype=np.float64)
    check_seconds("seconds", lengths)
    own = np.isin(np.arange(len(lengths)), must)
    together = lengths / (devices * processes) + costs
    free = [place for place in np.argsort(-lengths, kind="stable").tolist() if not own[place]]

    def ends(count: int) -> float:
        cut, rest = free[:count], free[count:]
        dealt = groups_by_load(lengths[rest].tolist(), devices)
        longest = max((lengths[rest][list(places)].sum() for places in dealt), default=0.0)
        return float(together[cut].sum() + longest / processes)

    best = min(range(len(free) + 1), key=lambda count: (ends(count), count))
    return tuple(sorted([*np.flatnonzero(own).tolist(), *free[:best]]))


def check_seconds(argument: str, seconds: np.ndarray) -> None:
    """Refuse seconds that are negative or not finite.

    Raises:
        InvalidArgumentError: Some seconds are negative or not finite.
    """
    wrong = ~(np.isfinite(seconds) & (seconds >= 0))
    if wrong.any():
        received = float(seconds[wrong][0])
        cure = "give what was measured or predicted"
        raise InvalidArgumentError(refusal(argument, "finite and at least 0", received, cure))
