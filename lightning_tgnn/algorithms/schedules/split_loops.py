"""The compiled loops of the splits. Letters: m groups of at most L snapshots.

``ahead`` and ``back``, float64 [m, L + 1], are the forward and the backward seconds of 0, 1, ... leading snapshots;
``lengths`` is int64 [m], ``splits`` int64 [m]. ``limits``, int64 [m, 2], are the fewest and the most leading snapshots
that the first process may have of each group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.algorithms.schedules import open_groups as rule
from lightning_tgnn.compiled import njit

_goes_back = njit(nogil=True, cache=True)(rule.goes_back)


@njit(nogil=True, cache=True)
def least_cost(ahead: Any, back: Any, lengths: Any, limits: Any) -> Any:
    """Return the splits of least cost by Equation 2, int64 [m]; see `snapshot_splits.planned_splits`."""
    groups, longest = len(lengths), ahead.shape[1]
    cost, came_from = np.zeros((groups, longest)), np.zeros((groups, longest), np.int64)
    cost[0] = ahead[0]
    for group in range(1, groups):
        before = group - 1
        length = lengths[before]
        whole = ahead[before, length] + back[before, length]
        for split in range(limits[group, 0], limits[group, 1] + 1):
            least = np.inf
            for earlier in range(limits[before, 0], limits[before, 1] + 1):
                first = ahead[group, split] + back[before, earlier]
                second = whole - ahead[before, earlier] - back[before, earlier]
                found = cost[before, earlier] + max(first, second)
                if found < least:
                    least, came_from[group, split] = found, earlier
            cost[group, split] = least
    last = groups - 1
    # Behind the last stage: all of its group that the first process has not done forward, and both backwards.
    rest = ahead[last, lengths[last]] - ahead[last] + back[last, lengths[last]]
    splits = np.zeros(groups, np.int64)
    fewest, most = limits[last]
    splits[last] = fewest + (cost[last] + rest)[fewest : most + 1].argmin()
    for group in range(last, 0, -1):
        splits[group - 1] = came_from[group, splits[group]]
    return splits


@njit(nogil=True, cache=True)
def pair_end(ahead: Any, back: Any, lengths: Any, splits: Any, open_groups: Any, hand_over: Any) -> Any:
    """Return when the two processes of a device have trained all groups, if neither slows the other down.

    `goes_back` decides what the first process does next. The backward of a whole group follows its forward at once. The
    second process takes the groups in order, so when a forward of the first ends, it is known when its gradient comes.
    """
    groups = len(lengths)
    gradient_at = np.zeros(groups)
    first = second = 0.0
    opened = closed = served = 0  # groups of which the first process has begun, has ended, and the second has ended
    waiting = 0
    while closed < groups:
        if closed < opened and (splits[closed] == 0 or splits[closed] == lengths[closed]):
            closed += 1
            continue
        if opened < groups and splits[opened] == 0:
            opened += 1
        elif _goes_back(waiting, open_groups, opened < groups):
            first = max(first, gradient_at[closed]) + back[closed, splits[closed]]
            closed += 1
            waiting -= 1
        elif splits[opened] == lengths[opened]:
            first += ahead[opened, lengths[opened]] + back[opened, lengths[opened]]
            opened += 1
        else:
            first += ahead[opened, splits[opened]]
            opened += 1
            waiting += 1
        while served < opened:
            own, length = splits[served], lengths[served]
            if own == length:
                served += 1
                continue
            begin = max(second, first + hand_over) if own > 0 else second
            second = begin + ahead[served, length] - ahead[served, own] + back[served, length] - back[served, own]
            gradient_at[served] = second + hand_over
            served += 1
    return max(first, second)


@njit(nogil=True, cache=True)
def improved(
    ahead: Any, back: Any, lengths: Any, limits: Any, splits: Any, open_groups: Any, hand_over: Any, steps: Any
) -> Any:
    """Try every split of one group, then every two splits of two groups, as long as the pair ends earlier.

    Args:
        ahead: As above, and so the next three.
        back: As above.
        lengths: As above.
        limits: As above.
        splits: The splits to begin with.
        open_groups: The most groups for whose gradient the first process may wait.
        hand_over: Seconds each way.
        steps: The most steps before the search ends; a simulation takes one step for each group.

    Returns:
        The splits, and when the pair ends.
    """
    groups, found = len(lengths), splits.copy()
    best = pair_end(ahead, back, lengths, found, open_groups, hand_over)
    left = steps // groups
    for distance in range(groups):
        since, place = 0, 0
        while since < groups and left > 0:
            since += 1
            other = (place + distance) % groups
            own, their = found[place], found[other]
            for split in range(limits[place, 0], limits[place, 1] + 1):
                for second in range(limits[other, 0], limits[other, 1] + 1 if distance else limits[other, 0] + 1):
                    found[place] = split
                    if distance:
                        found[other] = second
                    seconds = pair_end(ahead, back, lengths, found, open_groups, hand_over)
                    left -= 1
                    if seconds < best * (1 - 1e-12):
                        best, own, their, since = seconds, split, found[other], 0
            found[other] = their
            found[place] = own
            place = (place + 1) % groups
    return found, best
