"""Compiled loops that sort the entries of a stream by node, by counting, a range of nodes at a time."""

from __future__ import annotations

from typing import Any

from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def count_entries(src: Any, dst: Any, counts: Any) -> None:
    """Add the entries of every node to ``counts``; a self loop is one entry.

    Args:
        src: int64 [E], below N.
        dst: int64 [E], below N.
        counts: int64 [N].
    """
    for event in range(len(src)):
        counts[src[event]] += 1
        if dst[event] != src[event]:
            counts[dst[event]] += 1


@njit(nogil=True, cache=True)
def place_entries(
    src: Any, dst: Any, begin: int, span: int, first: int, cursor: Any, keys: Any, neighbors: Any
) -> None:
    """Write the entries (node, event, neighbour) of a range of nodes, sorted by node and event.

    Args:
        src: int64 [L], of consecutive events.
        dst: int64 [L].
        begin: The first event.
        span: E, the events of the stream.
        first: The first node of the range.
        cursor: int64 [n], where in the outputs the entries of every node of the range begin; afterwards where they end.
        keys: int64 [entries of the range], becomes ``node * E + event``.
        neighbors: int64 [entries of the range].
    """
    end = first + len(cursor)
    for row in range(len(src)):
        u, v = src[row], dst[row]
        if first <= u < end:
            place = cursor[u - first]
            keys[place] = u * span + begin + row
            neighbors[place] = v
            cursor[u - first] = place + 1
        if u != v and first <= v < end:
            place = cursor[v - first]
            keys[place] = v * span + begin + row
            neighbors[place] = u
            cursor[v - first] = place + 1
