"""Compiled loops that sort the entries of a stream by node: by counting, for outputs that are mapped files."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(nogil=True, cache=True)
def count_entries(src: Any, dst: Any, counts: Any) -> None:
    """Add the entries of every node to ``counts``; a self loop is one.

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
def place_entries(src: Any, dst: Any, cursor: Any, keys: Any, neighbors: Any) -> None:
    """Write the entries (node, event, neighbour) of a stream, sorted by node and event.

    Args:
        src: int64 [E], below N.
        dst: int64 [E], below N.
        cursor: int64 [N], where the entries of every node begin; afterwards where they end.
        keys: int64 [entries], becomes ``node * E + event``.
        neighbors: int64 [entries].
    """
    span = len(src)
    for event in range(span):
        u, v = src[event], dst[event]
        keys[cursor[u]] = u * span + event
        neighbors[cursor[u]] = v
        cursor[u] += 1
        if u != v:
            keys[cursor[v]] = v * span + event
            neighbors[cursor[v]] = u
            cursor[v] += 1
