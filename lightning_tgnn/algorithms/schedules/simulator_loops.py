"""The compiled loops of the simulator. Letters: n actions, e edges from what is awaited to what waits."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def earliest(source: Any, target: Any, lag: Any, duration: Any) -> Any:
    """Return when each action begins if each begins as early as it can, what held it up, and how many begin at all.

    Args:
        source: int64 [e].
        target: int64 [e].
        lag: float64 [e], seconds between the end of one and the beginning of the other.
        duration: float64 [n].

    Returns:
        float64 [n], begin; int64 [n], the last awaited action, -1 for none; and a count, less than n where actions wait
        in a circle.
    """
    actions = len(duration)
    first, followers, waits = _followers(source, target, actions)
    begin, held_up = np.zeros(actions), np.full(actions, -1)
    ready = np.empty(actions, np.int64)
    known = 0
    for action in range(actions):
        if waits[action] == 0:
            ready[known] = action
            known += 1
    done = 0
    while done < known:
        action = ready[done]
        done += 1
        end = begin[action] + duration[action]
        for position in range(first[action], first[action + 1]):
            edge = followers[position]
            other = target[edge]
            moment = end + lag[edge]
            if moment > begin[other] or held_up[other] < 0:
                begin[other] = moment
                held_up[other] = action
            waits[other] -= 1
            if waits[other] == 0:
                ready[known] = other
                known += 1
    return begin, held_up, done


@njit(nogil=True, cache=True)
def earliest_beside(source: Any, target: Any, lag: Any, duration: Any, kind: Any, rates: Any) -> Any:
    """Return when actions that slow each other down begin and end if each begins as early as it can.

    Args:
        source: int64 [e].
        target: int64 [e].
        lag: float64 [e], seconds between the end of one and the beginning of the other.
        duration: float64 [n], seconds of each action alone.
        kind: int64 [n], the row of an action in ``rates``; -1 slows down nothing and is slowed down by nothing.
        rates: float64 [k, k], the speed of an action of one kind beside an action of another.

    Returns:
        float64 [n], begin; float64 [n], end; and float64 [n], seconds beside an action of another kind.
    """
    actions = len(duration)
    first, followers, waits = _followers(source, target, actions)
    begin, end, beside = np.zeros(actions), np.zeros(actions), np.zeros(actions)
    left, speed = duration.copy(), np.ones(actions)
    ready, running = np.empty(actions, np.int64), np.empty(actions, np.int64)
    waiting, active = 0, 0
    for action in range(actions):
        if waits[action] == 0:
            ready[waiting] = action
            waiting += 1
    now = 0.0
    while waiting or active:
        step = np.inf
        place = 0
        while place < waiting:
            action = ready[place]
            if begin[action] > now:
                step = min(step, begin[action] - now)
                place += 1
                continue
            begin[action] = now
            running[active] = action
            active += 1
            waiting -= 1
            ready[place] = ready[waiting]
        for place in range(active):
            action = running[place]
            speed[action] = 1.0
            for other in range(active):
                if other != place and kind[action] >= 0 and kind[running[other]] >= 0:
                    speed[action] *= rates[kind[action], kind[running[other]]]
            step = min(step, left[action] / speed[action])
        for place in range(active):
            action = running[place]
            for other in range(active):
                if kind[action] >= 0 and kind[running[other]] >= 0 and kind[running[other]] != kind[action]:
                    beside[action] += step
                    break
            left[action] = 0.0 if left[action] / speed[action] <= step else left[action] - step * speed[action]
        now += step
        place = 0
        while place < active:
            action = running[place]
            if left[action] > 0.0:
                place += 1
                continue
            end[action] = now
            active -= 1
            running[place] = running[active]
            for position in range(first[action], first[action + 1]):
                edge = followers[position]
                other = target[edge]
                begin[other] = max(begin[other], now + lag[edge])
                waits[other] -= 1
                if waits[other] == 0:
                    ready[waiting] = other
                    waiting += 1
    return begin, end, beside


@njit(nogil=True, cache=True)
def _followers(source: Any, target: Any, actions: Any) -> Any:
    """Return the edges that leave each action, and for how many actions each waits.

    Returns:
        int64 [n + 1], the first edge of each action in the next; int64 [e], edges by what is awaited; int64 [n].
    """
    edges = len(source)
    first, waits = np.zeros(actions + 1, np.int64), np.zeros(actions, np.int64)
    for edge in range(edges):
        first[source[edge] + 1] += 1
        waits[target[edge]] += 1
    for action in range(actions):
        first[action + 1] += first[action]
    place, followers = first[:-1].copy(), np.empty(edges, np.int64)
    for edge in range(edges):
        followers[place[source[edge]]] = edge
        place[source[edge]] += 1
    return first, followers, waits


@njit(nogil=True, cache=True)
def path_to(last: Any, held_up: Any) -> Any:
    """Return the actions that held up each other until ``last``, the first of them first."""
    count, action = 0, last
    while action >= 0:
        count += 1
        action = held_up[action]
    path = np.empty(count, np.int64)
    action = last
    for position in range(count - 1, -1, -1):
        path[position] = action
        action = held_up[action]
    return path
