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
    actions, edges = len(duration), len(source)
    first = np.zeros(actions + 1, np.int64)
    waits = np.zeros(actions, np.int64)
    for edge in range(edges):
        first[source[edge] + 1] += 1
        waits[target[edge]] += 1
    for action in range(actions):
        first[action + 1] += first[action]
    place = first[:-1].copy()
    followers = np.empty(edges, np.int64)
    for edge in range(edges):
        followers[place[source[edge]]] = edge
        place[source[edge]] += 1
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
