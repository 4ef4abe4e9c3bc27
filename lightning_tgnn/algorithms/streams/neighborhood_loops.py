"""Compiled loops that number the nodes and the events of a batch's neighbourhood, each once, in first-seen order.

As in `dedup_loops`, what they find is written to arrays that they are given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.algorithms.streams.distinct_loops import FACTOR, HALF
from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def _empty_table(entries: int) -> Any:
    """Return a hash table for at most ``entries`` values that is never more than half full."""
    size = 1
    while size < 2 * entries:
        size *= 2
    return np.full(size, -1, np.int32)


@njit(nogil=True, cache=True)
def _number(value: int, table: Any, values: Any, count: int) -> Any:
    """Return the number of a value, which is ``count`` where it is new and then listed in ``values``, and the count.

    A hash table with linear probing (Knuth, "The Art of Computer Programming" 3, 6.4, algorithm L).
    """
    last = np.uint64(len(table) - 1)
    key = np.uint64(value) * FACTOR
    slot = (key ^ (key >> HALF)) & last
    while table[slot] >= 0 and values[table[slot]] != value:
        slot = (slot + np.uint64(1)) & last
    if table[slot] < 0:
        table[slot], values[count] = count, value
        return count, count + 1
    return table[slot], count


@njit(nogil=True, cache=True)
def place_nodes(
    roots: Any,
    found: Any,
    src: Any,
    dst: Any,
    time: Any,
    nodes: Any,
    root_index: Any,
    index: Any,
    when: Any,
    mask: Any,
) -> int:
    """Number roots and their neighbours, and return how many distinct nodes there are.

    Args:
        roots: int64 [R].
        found: int64 [S, K], the event that makes each neighbour one, -1 in empty places; S = R or 0.
        src: int64 [E], of the stream.
        dst: int64 [E], likewise.
        time: float64 [E], likewise.
        nodes: int64 [R + S K], begins afterwards with the distinct nodes.
        root_index: int64 [R], becomes the number of every root.
        index: int64 [S, K], becomes that of every neighbour, and of the root itself in empty places.
        when: float64 [S, K], becomes the time of ``found`` since the first event; 0 in empty places.
        mask: bool [S, K], becomes where there is a neighbour.
    """
    table, count = _empty_table(len(nodes)), 0
    for root in range(len(roots)):
        root_index[root], count = _number(roots[root], table, nodes, count)
    for root in range(found.shape[0]):
        for slot in range(found.shape[1]):
            event = found[root, slot]
            mask[root, slot] = event >= 0
            if event >= 0:
                neighbor = src[event] + dst[event] - roots[root]
                index[root, slot], count = _number(neighbor, table, nodes, count)
                when[root, slot] = time[event] - time[0]
            else:
                index[root, slot], when[root, slot] = root_index[root], 0.0
    return count


@njit(nogil=True, cache=True)
def place_events(events: Any, found: Any, distinct: Any, index: Any) -> int:
    """Number distinct events, and return how many there are.

    Args:
        events: int64 [B], distinct; their numbers are their places.
        found: int64 [S, K], other events, -1 in empty places.
        distinct: int64 [B + S K], begins afterwards with all of them.
        index: int64 [S, K], becomes the number of every one, 0 in empty places.
    """
    table, count = _empty_table(len(distinct)), 0
    for place in range(len(events)):
        _, count = _number(events[place], table, distinct, count)
    for root in range(found.shape[0]):
        for slot in range(found.shape[1]):
            index[root, slot] = 0
            if found[root, slot] >= 0:
                index[root, slot], count = _number(found[root, slot], table, distinct, count)
    return count
