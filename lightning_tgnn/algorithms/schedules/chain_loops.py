"""The compiled loop that simulates a chain. Letters: P ranks, m groups, n operators.

Part (i, r, 0) is the forward, and part (i, r, 1) the backward, of the snapshots that rank r has of group i.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.algorithms.schedules import open_groups as rule
from lightning_tgnn.compiled import njit

_goes_back = njit(nogil=True, cache=True)(rule.goes_back)


@njit(nogil=True, cache=True)
def run_chain(
    offset: Any, kind: Any, work: Any, device: Any, rates: Any, state_lag: Any, gradient_lag: Any, open_groups: Any
) -> Any:
    """Run the parts of all groups on a chain of ranks, each as early as `goes_back` allows.

    Args:
        offset: int64 [2 m P + 1]; part (i, r, d) has the operators ``offset[k]:offset[k + 1]``, k = 2 (i P + r) + d.
        kind: int64 [n], 0 for a graph operator, 1 for an NN operator.
        work: float64 [n], seconds of each operator alone on its device.
        device: int64 [P], the device of every rank; ranks with the same number share a device.
        rates: float64 [2, 2], the speed of an operator of one kind beside an operator of another; 1 is the speed alone.
        state_lag: float64 [m, P], seconds in which the hidden state of each rank reaches the next one.
        gradient_lag: float64 [m, P], seconds in which the gradient of each rank reaches the one before it.
        open_groups: int64 [P], how many forward parts of a rank may wait for their gradient.

    Returns:
        float64 [n], begin; float64 [n], end; float64 [P], seconds in which a rank computes; float64 [P], seconds in
        which it computes beside an operator of the other kind.
    """
    ranks, groups = len(device), len(state_lag)
    begin, end = np.zeros(len(work)), np.zeros(len(work))
    busy, beside = np.zeros(ranks), np.zeros(ranks)
    before, after = _neighbours(offset, groups, ranks)
    state_at, gradient_at = np.full((groups, ranks), np.inf), np.full((groups, ranks), np.inf)
    for group in range(groups):
        for rank in range(ranks):
            if before[group, rank] < 0:
                state_at[group, rank] = 0.0
    forward, backward = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)  # the next group of each
    waiting = np.zeros(ranks, np.int64)  # groups that wait for their gradient
    part, place = np.full(ranks, -1), np.zeros(ranks, np.int64)
    left, speed, wakes = np.zeros(ranks), np.ones(ranks), np.zeros(ranks)
    now = 0.0
    while True:
        moved = True
        while moved:  # what takes no time may let another rank begin at the same moment
            moved = False
            for rank in range(ranks):
                while part[rank] >= 0 and left[rank] <= 0.0:
                    moved = True
                    if left[rank] == 0.0:
                        end[place[rank]] = now
                        place[rank] += 1
                    if place[rank] < offset[part[rank] + 1]:
                        begin[place[rank]] = now
                        left[rank] = work[place[rank]]
                        continue
                    group, is_backward = part[rank] // (2 * ranks), part[rank] % 2
                    ends_here = after[group, rank] < 0
                    if is_backward:
                        part[rank] = -1
                        if not ends_here:
                            backward[rank] = group + 1
                            waiting[rank] -= 1
                        if before[group, rank] >= 0:
                            gradient_at[group, before[group, rank]] = now + gradient_lag[group, rank]
                        continue
                    forward[rank] = group + 1
                    if ends_here:  # its backward comes at once
                        part[rank] += 1
                        place[rank] = offset[part[rank]]
                        left[rank] = -1.0
                    else:
                        part[rank] = -1
                        waiting[rank] += 1
                        state_at[group, after[group, rank]] = now + state_lag[group, rank]
            if moved:
                continue
            for rank in range(ranks - 1, -1, -1):  # a gradient of this moment comes before the choice of those ahead
                if part[rank] >= 0:
                    continue
                forward[rank] = _next_with_part(offset, forward[rank], rank, groups, ranks)
                backward[rank] = _next_handed_on(after, backward[rank], rank, groups)
                part[rank], wakes[rank] = _choose(
                    now, rank, ranks, forward[rank], backward[rank], waiting[rank], open_groups[rank], groups,
                    state_at, gradient_at,
                )  # fmt: skip
                if part[rank] >= 0:
                    place[rank] = offset[part[rank]]
                    left[rank] = -1.0  # its first operator has not begun
                    moved = True
                    break
        step, active = np.inf, False
        for rank in range(ranks):
            if part[rank] < 0:
                step = min(step, wakes[rank] - now)
                continue
            active = True
            own, speed[rank] = kind[place[rank]], 1.0
            for other in range(ranks):
                if other != rank and part[other] >= 0 and device[other] == device[rank]:
                    speed[rank] *= rates[own, kind[place[other]]]
            step = min(step, left[rank] / speed[rank])
        if not active and step == np.inf:
            return begin, end, busy, beside
        for rank in range(ranks):
            if part[rank] < 0:
                continue
            busy[rank] += step
            for other in range(ranks):
                shares = part[other] >= 0 and device[other] == device[rank]
                if shares and kind[place[other]] != kind[place[rank]]:
                    beside[rank] += step
                    break
            if left[rank] / speed[rank] <= step:
                left[rank] = 0.0
            else:
                left[rank] -= step * speed[rank]
        now += step


@njit(nogil=True, cache=True)
def _choose(
    now: Any, rank: Any, ranks: Any, forward: Any, backward: Any, waiting: Any, limit: Any, groups: Any,
    state_at: Any, gradient_at: Any,
) -> Any:  # fmt: skip
    """Return the part that an idle rank begins, or -1 and the moment at which it may begin a part."""
    if _goes_back(waiting, limit, forward < groups):
        part, moment = 2 * (backward * ranks + rank) + 1, gradient_at[backward, rank]
    elif forward < groups:
        part, moment = 2 * (forward * ranks + rank), state_at[forward, rank]
    else:
        return -1, np.inf
    return (part, now) if moment <= now else (-1, moment)


@njit(nogil=True, cache=True)
def _next_with_part(offset: Any, group: Any, rank: Any, groups: Any, ranks: Any) -> Any:
    """Return the first group from ``group`` on of which a rank has snapshots."""
    while group < groups and offset[2 * (group * ranks + rank)] == offset[2 * (group * ranks + rank) + 1]:
        group += 1
    return group


@njit(nogil=True, cache=True)
def _next_handed_on(after: Any, group: Any, rank: Any, groups: Any) -> Any:
    """Return the first group from ``group`` on that a rank hands on to another."""
    while group < groups and after[group, rank] < 0:
        group += 1
    return group


@njit(nogil=True, cache=True)
def _neighbours(offset: Any, groups: Any, ranks: Any) -> Any:
    """Return which ranks have the snapshots before and after a rank's own in each group, int64 [m, P], -1 for none."""
    before, after = np.full((groups, ranks), -1), np.full((groups, ranks), -1)
    for group in range(groups):
        last = -1
        for rank in range(ranks):
            part = 2 * (group * ranks + rank)
            if offset[part] < offset[part + 1]:
                if last >= 0:
                    before[group, rank] = last
                    after[group, last] = rank
                last = rank
    return before, after
