"""The compiled loops of the operator order. Letters: n operators of one process.

The operators of a process are ``kind`` (int64 [n], 0 for graph, 1 for NN) and ``seconds`` (float64 [n]) as listed;
``pair`` (bool [n]) is true at the first of two that commute, and ``exchanged`` (float64 [n]) holds the seconds of an
operator whose pair has changed places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def reward(own: Any, begin: Any, end: Any, kind: Any, ends: Any, count: Any) -> Any:
    """Return the seconds between two moments in which the first ``count`` operators of a schedule have another kind."""
    found = 0.0
    for place in range(count - 1, -1, -1):
        if ends[place] <= begin:
            break
        start = ends[place - 1] if place else 0.0
        if kind[place] != own:
            found += max(min(end, ends[place]) - max(begin, start), 0.0)
    return found


@njit(nogil=True, cache=True)
def greedy_order(first: Any, second: Any, worth: Any) -> Any:
    """Return which pairs Algorithm 1 exchanges, bool [n] of each process, true at the first operator of such a pair.

    Args:
        first: ``(kind, seconds, pair, exchanged)`` of one process.
        second: The same of the other process.
        worth: Seconds that a second of overlap is worth.
    """
    given = (first, second)
    found = (np.zeros(len(first[0]), np.bool_), np.zeros(len(second[0]), np.bool_))
    kinds = (np.zeros(len(first[0]), np.int64), np.zeros(len(second[0]), np.int64))
    ends = (np.zeros(len(first[0])), np.zeros(len(second[0])))
    taken, now = np.zeros(2, np.int64), np.zeros(2)
    while taken[0] < len(first[0]) or taken[1] < len(second[0]):
        own = 0 if taken[1] >= len(second[0]) or (taken[0] < len(first[0]) and now[0] <= now[1]) else 1
        kind, seconds, pair, exchanged = given[own]
        place, begin, other = taken[own], now[own], 1 - own
        exchange = False
        if pair[place]:
            one, two = seconds[place], seconds[place + 1]
            listed = reward(kind[place], begin, begin + one, kinds[other], ends[other], taken[other])
            listed += reward(kind[place + 1], begin + one, begin + one + two, kinds[other], ends[other], taken[other])
            last, head = exchanged[place], exchanged[place + 1]
            turned = reward(kind[place + 1], begin, begin + head, kinds[other], ends[other], taken[other])
            turned += reward(kind[place], begin + head, begin + head + last, kinds[other], ends[other], taken[other])
            longer = head + last - one - two
            gain = turned - listed if worth == np.inf else worth * (turned - listed) - longer
            slack = 1e-12 * (one + two + head + last)  # what rounding leaves is no gain
            exchange = gain > slack or (gain >= -slack and longer < -slack)
        found[own][place] = exchange
        if exchange:
            kinds[own][place], kinds[own][place + 1] = kind[place + 1], kind[place]
            now[own] += exchanged[place + 1]
            ends[own][place] = now[own]
            now[own] += exchanged[place]
            ends[own][place + 1] = now[own]
            taken[own] += 2
            continue
        for _ in range(2 if pair[place] else 1):
            kinds[own][taken[own]] = kind[taken[own]]
            now[own] += seconds[taken[own]]
            ends[own][taken[own]] = now[own]
            taken[own] += 1
    return found


@njit(nogil=True, cache=True)
def together(first_kind: Any, first_seconds: Any, second_kind: Any, second_seconds: Any, rates: Any) -> Any:
    """Return when each of two processes ends, if they begin at once and slow each other down.

    Args:
        first_kind: int64 [n], as it runs.
        first_seconds: float64 [n], alone.
        second_kind: int64 [n'].
        second_seconds: float64 [n'].
        rates: float64 [2, 2], the speed of one kind beside another.
    """
    one, two, now = 0, 0, 0.0
    left_one = first_seconds[0] if len(first_kind) else 0.0
    left_two = second_seconds[0] if len(second_kind) else 0.0
    while one < len(first_kind) and two < len(second_kind):
        kind, other = first_kind[one], second_kind[two]
        until_one, until_two = left_one / rates[kind, other], left_two / rates[other, kind]
        step = min(until_one, until_two)
        now += step
        left_one -= step * rates[kind, other]
        left_two -= step * rates[other, kind]
        if until_one <= step:
            one += 1
            left_one = first_seconds[one] if one < len(first_kind) else 0.0
        if until_two <= step:
            two += 1
            left_two = second_seconds[two] if two < len(second_kind) else 0.0
    return now + left_one + first_seconds[one + 1 :].sum(), now + left_two + second_seconds[two + 1 :].sum()


@njit(nogil=True, cache=True)
def descend(first: Any, second: Any, start: Any, rates: Any) -> Any:
    """Exchange one pair at a time as long as the two processes end earlier together.

    Args:
        first: As of `greedy_order`.
        second: As well.
        start: Two bool [n], as `greedy_order` returns them.
        rates: As of `together`.

    Returns:
        The choice in the form of ``start``, when the later process ends, and the sum of both ends.
    """
    chosen = (start[0].copy(), start[1].copy())
    kinds = (first[0].copy(), second[0].copy())
    seconds = (first[1].copy(), second[1].copy())
    for own in range(2):
        for place in range(len(kinds[own])):
            if chosen[own][place]:
                _exchange((first, second)[own], kinds[own], seconds[own], place, True)
    ends = together(kinds[0], seconds[0], kinds[1], seconds[1], rates)
    latest, total = max(ends), ends[0] + ends[1]
    slack = 1e-12 * total
    better = True
    while better:
        better = False
        for own in range(2):
            given = (first, second)[own]
            for place in range(len(kinds[own])):
                if not given[2][place]:
                    continue
                _exchange(given, kinds[own], seconds[own], place, not chosen[own][place])
                ends = together(kinds[0], seconds[0], kinds[1], seconds[1], rates)
                late, summed = max(ends), ends[0] + ends[1]
                if late < latest - slack or (late <= latest + slack and summed < total - slack):
                    chosen[own][place] = not chosen[own][place]
                    latest, total, better = late, summed, True
                else:
                    _exchange(given, kinds[own], seconds[own], place, chosen[own][place])
    return chosen, latest, total


@njit(nogil=True, cache=True)
def exhaust(first: Any, second: Any, rates: Any) -> Any:
    """Try all choices, each one exchange away from the one before it (Gray's code).

    Args:
        first: As of `greedy_order`.
        second: As well.
        rates: As of `together`.

    Returns:
        As `descend`.
    """
    chosen = (np.zeros(len(first[0]), np.bool_), np.zeros(len(second[0]), np.bool_))
    found = (chosen[0].copy(), chosen[1].copy())
    kinds = (first[0].copy(), second[0].copy())
    seconds = (first[1].copy(), second[1].copy())
    owners = np.concatenate((np.zeros(first[2].sum(), np.int64), np.ones(second[2].sum(), np.int64)))
    places = np.concatenate((np.flatnonzero(first[2]), np.flatnonzero(second[2])))
    ends = together(kinds[0], seconds[0], kinds[1], seconds[1], rates)
    latest, total = max(ends), ends[0] + ends[1]
    slack = 1e-12 * total
    for code in range(1, 1 << len(owners)):
        bit = 0
        while not (code >> bit) & 1:
            bit += 1
        own, place = owners[bit], places[bit]
        chosen[own][place] = not chosen[own][place]
        _exchange((first, second)[own], kinds[own], seconds[own], place, chosen[own][place])
        ends = together(kinds[0], seconds[0], kinds[1], seconds[1], rates)
        late, summed = max(ends), ends[0] + ends[1]
        if late < latest - slack or (late <= latest + slack and summed < total - slack):
            latest, total = late, summed
            found[0][:], found[1][:] = chosen[0], chosen[1]
    return found, latest, total


@njit(nogil=True, cache=True)
def _exchange(given: Any, kinds: Any, seconds: Any, place: Any, exchanged: Any) -> None:
    """Put the two operators of a pair in the one order or the other."""
    if exchanged:
        kinds[place], kinds[place + 1] = given[0][place + 1], given[0][place]
        seconds[place], seconds[place + 1] = given[3][place + 1], given[3][place]
    else:
        kinds[place], kinds[place + 1] = given[0][place], given[0][place + 1]
        seconds[place], seconds[place + 1] = given[1][place], given[1][place + 1]
