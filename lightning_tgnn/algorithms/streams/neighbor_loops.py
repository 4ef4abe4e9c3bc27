"""Compiled loops that find the past entries of nodes and take some of them.

Entries are as in `lightning_tgnn.data.streams.temporal_adjacency.TemporalAdjacency`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.algorithms.streams.random_loops import LOW_62_BITS, mixed
from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def past_end(indptr: Any, keys: Any, span: int, node: int, before: int) -> Any:
    """Return where the entries of a node end whose event is below ``before``."""
    low, high, key = indptr[node], indptr[node + 1], node * span + min(before, span)
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def past_ends(indptr: Any, keys: Any, span: int, nodes: Any, before: Any, ends: Any) -> None:
    """Write `past_end` of every root to ``ends``, int64 [R]."""
    for root in range(len(nodes)):
        ends[root] = past_end(indptr, keys, span, nodes[root], before[root])


@njit(nogil=True, cache=True)
def take_recent(
    indptr: Any, keys: Any, neighbors: Any, span: int, nodes: Any, before: Any, found: Any, events: Any, mask: Any
) -> None:
    """Write the K most recent past entries of every root.

    Args:
        indptr: int64 [N + 1].
        keys: int64 [entries].
        neighbors: int64 [entries].
        span: Larger than every event.
        nodes: int64 [R].
        before: int64 [R].
        found: int64 [R, K], becomes the neighbours; 0 in empty places.
        events: int64 [R, K], becomes their events; -1 in empty places.
        mask: bool [R, K], becomes where there is a neighbour.
    """
    for root in range(len(nodes)):
        node = nodes[root]
        first, place = indptr[node], past_end(indptr, keys, span, node, before[root])
        for slot in range(mask.shape[1]):
            place -= 1
            is_there = place >= first
            mask[root, slot] = is_there
            found[root, slot] = neighbors[place] if is_there else 0
            events[root, slot] = keys[place] - node * span if is_there else -1


@njit(nogil=True, cache=True)
def take_uniform(
    indptr: Any,
    keys: Any,
    neighbors: Any,
    span: int,
    nodes: Any,
    before: Any,
    seeds: Any,
    found: Any,
    events: Any,
    mask: Any,
) -> None:
    """Write K distinct past entries of every root, most recent first, or all if there are no more than K.

    Args:
        indptr: As of `take_recent`, and so are the others.
        keys: Likewise.
        neighbors: Likewise.
        span: Likewise.
        nodes: Likewise.
        before: Likewise.
        seeds: int64 [R], of the draws.
        found: Likewise.
        events: Likewise.
        mask: Likewise.
    """
    k = mask.shape[1]
    chosen = np.empty(k, np.int64)
    for root in range(len(nodes)):
        node = nodes[root]
        first = indptr[node]
        count = past_end(indptr, keys, span, node, before[root]) - first
        if count > k:
            _choose(count, seeds[root], chosen)
        for slot in range(k):
            rank = chosen[k - 1 - slot] if count > k else count - 1 - slot
            is_there = rank >= 0
            mask[root, slot] = is_there
            found[root, slot] = neighbors[first + rank] if is_there else 0
            events[root, slot] = keys[first + rank] - node * span if is_there else -1


@njit(nogil=True, cache=True)
def mail_past(
    indptr: Any,
    keys: Any,
    neighbors: Any,
    span: int,
    ends: Any,
    before: Any,
    k: int,
    seeds: Any,
    table: Any,
    nodes: Any,
    source: Any,
) -> int:
    """Write the nodes that events mail, and return their number: K past neighbours of the ends, then the ends.

    Args:
        indptr: As of `take_recent`, and so are the three that follow.
        keys: Likewise.
        neighbors: Likewise.
        span: Likewise.
        ends: int64 [B, 2].
        before: int64 [B].
        k: Past neighbours of each end.
        seeds: int64 [B, 2], as of `take_uniform`; [0, 2] takes the most recent neighbours.
        table: int32 [N], zeros; overwritten.
        nodes: int64 [min(N, 2 B (K + 1))], becomes the distinct receivers in first-seen order, as far as they go.
        source: int64 of that shape, becomes ``event + side * B`` of the latest event that mails each; likewise.
    """
    chosen, mailed = np.empty(k, np.int64), np.empty(2 * k + 2, np.int64)
    found, events = 0, len(ends)
    for event in range(events):
        for side in range(2):
            node = ends[event, side]
            first = indptr[node]
            count = past_end(indptr, keys, span, node, before[event]) - first
            is_drawn = len(seeds) > 0 and count > k
            if is_drawn:
                _choose(count, seeds[event, side], chosen)
            for slot in range(k):
                rank = chosen[k - 1 - slot] if is_drawn else count - 1 - slot
                mailed[side * k + slot] = neighbors[first + rank] if rank >= 0 else node
            mailed[2 * k + side] = node
        # Not a function of its own: counting references to its arrays would take longer.
        for column in range(2 * k + 2):
            node = mailed[column]
            place = table[node] - 1
            if place < 0:
                place = found
                nodes[place] = node
                found += 1
                table[node] = found
            from_destination = k <= column < 2 * k or column == 2 * k + 1
            source[place] = event + events if from_destination else event
    return found


@njit(nogil=True, cache=True)
def _choose(count: int, seed: int, chosen: Any) -> None:
    """Write distinct numbers below ``count``, ascending, one for each place; there are fewer than ``count`` places.

    Robert Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM 1987), with the draws of `counter_hash`
    for each place.
    """
    k, state = len(chosen), mixed(np.uint64(seed))
    for slot in range(k):
        top = count - k + slot
        bits = mixed(np.uint64(slot) ^ state) & LOW_62_BITS
        drawn: Any = np.int64(bits) % (top + 1)
        # Kept ascending. `top` is above all before it, so what stands in for a repeated draw comes last.
        place = slot
        while place > 0 and chosen[place - 1] > drawn:
            place -= 1
        if place > 0 and chosen[place - 1] == drawn:
            place, drawn = slot, top
        for later in range(slot, place, -1):
            chosen[later] = chosen[later - 1]
        chosen[place] = drawn
