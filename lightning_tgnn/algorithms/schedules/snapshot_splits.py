"""Where the two processes of a device cut each snapshot group: BLAD's load scheduler."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from lightning_tgnn.algorithms.schedules.open_groups import OPEN_GROUPS

_STEPS = 100_000  # of simulated groups, from each start: about 2 ms


@lru_cache(maxsize=1024)
def even_bounds(length: int, processes: int) -> tuple[int, ...]:
    """Return where the parts of a group begin, cut as evenly as can be, and where the last part ends.

    If there are more processes than snapshots, the first processes have none, because the last one has the loss.

    >>> even_bounds(5, 2), even_bounds(1, 2), even_bounds(2, 3)
    ((0, 2, 5), (0, 0, 1), (0, 0, 1, 2))
    """
    working = min(length, processes)
    starts = np.arange(working + 1) * length // working
    return (0,) * (processes - working) + tuple(int(start) for start in starts)


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


def best_splits(
    forward: Sequence[np.ndarray],
    backward: Sequence[np.ndarray],
    *,
    open_groups: int = OPEN_GROUPS,
    hand_over: float = 0.0,
    limits: Sequence[tuple[int, int]] | None = None,
) -> tuple[int, ...]:
    """Choose how many leading snapshots of each group the first process of a device takes, from none to all.

    The process that has a group's last snapshot also has its head and its loss. Whole groups on either process
    therefore balance a head that is too heavy for the second process alone, and keep both busy from the start.

    The search begins with three choices. The first gives whole groups, the longest first, to the process that has least
    to do, so that equal groups alternate. The second is the dynamic programme of BLAD (Equation 2), and the third the
    even split. One group or two at a time get another split as long as the simulated pair ends earlier, up to a fixed
    number of trials. In the simulation the result is therefore never slower than any of the three. The programme alone
    can be slower: it assumes that both processes end each stage at once, while a process of the pipeline moves on to
    its own work. With few groups it lacks a fifth or more of the possible speed.

    Args:
        forward: float64 [len_i] for each group of the device in order, seconds l(i, j) of each snapshot; the seconds of
            the last one include the head.
        backward: float64 [len_i], seconds b(i, j), likewise.
        open_groups: The most groups whose forward the first process may have run without their backward.
        hand_over: Seconds until a hidden state, or its gradient, has gone from one process to the other.
        limits: For each group the fewest and the most leading snapshots that the first process may have; None allows
            any number. The three choices take the nearest split within the limits.

    >>> best_splits([np.array([1.0, 1.0, 2.0])] * 2, [np.zeros(3)] * 2)
    (0, 3)
    """
    from lightning_tgnn.algorithms.schedules.split_loops import improved, least_cost  # numba, which takes a second

    if not len(forward):
        return ()
    ahead, back, lengths = _sums(forward, backward)
    bounds = _limits(limits, lengths)
    first_half = groups_by_load((ahead[:, -1] + back[:, -1]).tolist(), 2)[1]  # the first group is the second process's
    whole = np.where(np.isin(np.arange(len(lengths)), first_half), lengths, 0)
    starts = whole, least_cost(ahead, back, lengths, bounds), lengths // 2
    found = [
        improved(ahead, back, lengths, bounds, start.clip(*bounds.T), open_groups, float(hand_over), _STEPS)
        for start in starts
    ]
    return tuple(min(found, key=lambda one: one[1])[0].tolist())


def splits_that_fit(kept: np.ndarray, open_groups: int) -> tuple[int, int]:
    """Return the fewest and the most leading snapshots that the first process of a device can keep of a group.

    The first process keeps its snapshots of up to ``open_groups`` groups at once for the backward pass. The second
    process keeps its snapshots of one group.

    Args:
        kept: float64 [l], memory that each snapshot keeps for the backward pass, as a share of what a process can keep.
        open_groups: As of `best_splits`.

    >>> splits_that_fit(np.full(4, 0.25), 2), splits_that_fit(np.full(4, 0.3), 1)
    ((0, 2), (1, 3))
    """
    first_half = np.concatenate([[0.0], np.cumsum(kept)])
    fewest = int(np.argmax(first_half[-1] - first_half <= 1))
    most = int(np.flatnonzero(open_groups * first_half <= 1)[-1])
    return fewest, max(fewest, most)  # a group that fits in no way has been refused


def planned_splits(
    forward: Sequence[np.ndarray], backward: Sequence[np.ndarray], limits: Sequence[tuple[int, int]] | None = None
) -> tuple[int, ...]:
    """Return the splits of least cost by the dynamic programme of BLAD (Equation 2), O(groups snapshots²).

    In stage i the first process runs the forward of its part of group i and the backward of its part of group i - 1.
    Beside it the second process runs its part of group i - 1, forward and backward. The stage takes as long as the
    longer of the two: ``OPT(i, p) = min over q of OPT(i - 1, q) + max(T1, T2)``, where ``T1 = sum of l(i, j) for j <= p
    + sum of b(i - 1, j) for j <= q`` and ``T2 = sum of l(i - 1, j) + b(i - 1, j) for j > q``. The paper prints j = q as
    the lower limit of T2, which counts a snapshot twice. It also leaves out the work after the last stage: the second
    process's part of the last group and the first one's backward. Both count here. A split is between 0, where the
    paper begins at 1, and the group's length.

    Args:
        forward: As of `best_splits`.
        backward: Likewise.
        limits: Likewise.
    """
    from lightning_tgnn.algorithms.schedules.split_loops import least_cost

    if not len(forward):
        return ()
    sums = _sums(forward, backward)
    return tuple(least_cost(*sums, _limits(limits, sums[2])).tolist())


def pair_seconds(
    forward: Sequence[np.ndarray],
    backward: Sequence[np.ndarray],
    splits: Sequence[int],
    *,
    open_groups: int = OPEN_GROUPS,
    hand_over: float = 0.0,
) -> float:
    """Return the seconds of groups on the two processes of a device, if neither slows the other down.

    The simulation is `simulate_chain` with one operator for each part of a group.

    Args:
        forward: As of `best_splits`.
        backward: Likewise.
        splits: How many leading snapshots of each group the first process has, from none to all.
        open_groups: As of `best_splits`.
        hand_over: Likewise.

    >>> one = np.ones(2)
    >>> pair_seconds([one, one], [one, one], [1, 1]), pair_seconds([one, one], [one, one], [0, 2])
    (6.0, 4.0)
    """
    from lightning_tgnn.algorithms.schedules.split_loops import pair_end

    if not len(forward):
        return 0.0
    sums, given = _sums(forward, backward), np.asarray(splits, dtype=np.int64)
    return float(pair_end(*sums, given, open_groups, float(hand_over)))


def _sums(forward: Sequence[np.ndarray], backward: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return forward and backward seconds of 0, 1, ... leading snapshots, [groups, longest + 1], and the lengths."""
    lengths = np.array([len(own) for own in forward], dtype=np.int64)
    ahead, back = (np.zeros((len(lengths), lengths.max() + 1)) for _ in range(2))
    for group, length in enumerate(lengths.tolist()):
        ahead[group, 1 : length + 1] = forward[group]
        back[group, 1 : length + 1] = backward[group]
    return ahead.cumsum(axis=1), back.cumsum(axis=1), lengths


def _limits(given: Sequence[tuple[int, int]] | None, lengths: np.ndarray) -> np.ndarray:
    """Return the fewest and the most leading snapshots of the first process, int64 [groups, 2]."""
    if given is None:
        return np.stack([np.zeros_like(lengths), lengths], axis=1)
    return np.asarray(given, dtype=np.int64)
