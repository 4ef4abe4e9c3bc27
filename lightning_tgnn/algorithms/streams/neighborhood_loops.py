"""Compiled loops that number the nodes and the events of a batch's neighbourhood, each once, in first-seen order.

As in `dedup_loops`, the loops write their results to given arrays.
"""

from __future__ import annotations

from typing import Any

from lightning_tgnn.algorithms.streams.dedup_loops import empty_table, number
from lightning_tgnn.compiled import njit


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
        index: int64 [S, K], becomes the number of every neighbour, and of the root itself in empty places.
        when: float64 [S, K], becomes the time of ``found`` since the first event; 0 in empty places.
        mask: bool [S, K], becomes where there is a neighbour.
    """
    table, count = empty_table(len(nodes)), 0
    for root in range(len(roots)):
        root_index[root], count = number(roots[root], table, nodes, count)
    for root in range(found.shape[0]):
        for slot in range(found.shape[1]):
            event = found[root, slot]
            mask[root, slot] = event >= 0
            if event >= 0:
                neighbor = dst[event] if src[event] == roots[root] else src[event]  # a node, whatever the event is
                index[root, slot], count = number(neighbor, table, nodes, count)
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
        distinct: int64 [B + S K], begins afterwards with the distinct events.
        index: int64 [S, K], becomes the number of every found event, 0 in empty places.
    """
    table, count = empty_table(len(distinct)), 0
    for place in range(len(events)):
        _, count = number(events[place], table, distinct, count)
    for root in range(found.shape[0]):
        for slot in range(found.shape[1]):
            index[root, slot] = 0
            if found[root, slot] >= 0:
                index[root, slot], count = number(found[root, slot], table, distinct, count)
    return count
