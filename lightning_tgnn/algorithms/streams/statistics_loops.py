"""Compiled loops over a stream of any size, which keep a few numbers per node or per value in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit


@njit(nogil=True, cache=True)
def count_events(src: Any, dst: Any, as_source: Any, as_destination: Any) -> Any:
    """Count the events of every node.

    Args:
        src: int64 [E], below N.
        dst: int64 [E], below N.
        as_source: int64 [N], zeros, becomes the events of every node as a source.
        as_destination: int64 [N], likewise.

    Returns:
        Events that go where their source's last event went, events with a node that had no event before, self loops.
    """
    went = np.full(len(as_source), -1, np.int64)
    returns, news, loops = 0, 0, 0
    for event in range(len(src)):
        u, v = src[event], dst[event]
        returns += went[u] == v
        news += as_source[u] + as_destination[u] == 0 or as_source[v] + as_destination[v] == 0
        loops += u == v
        went[u] = v
        as_source[u] += 1
        as_destination[v] += 1
    return returns, news, loops


@njit(nogil=True, cache=True)
def count_ties(time: Any) -> Any:
    """Return the number of distinct times, of events at the time of another event, and the most events at one time.

    The times are float64 [E], non-decreasing, E at least 1.
    """
    distinct, tied, most, begin = 1, 0, 0, 0
    for event in range(1, len(time) + 1):
        if event == len(time) or time[event] != time[event - 1]:
            size = event - begin
            most = max(most, size)
            tied += size if size > 1 else 0
            distinct += event < len(time)
            begin = event
    return distinct, tied, most


@njit(nogil=True, cache=True)
def place_ends(src: Any, dst: Any, begin: int, first: int, cursor: Any, events: Any) -> None:
    """Write the event of each end of a range of nodes, sorted by node and event; a self loop is two ends.

    Args:
        src: int64 [L], of consecutive events.
        dst: int64 [L].
        begin: The first event.
        first: The first node of the range.
        cursor: int64 [n], where in ``events`` the ends of every node of the range begin; afterwards where they end.
        events: int64, large enough.
    """
    end = first + len(cursor)
    for row in range(len(src)):
        u, v = src[row], dst[row]
        if first <= u < end:
            events[cursor[u - first]] = begin + row
            cursor[u - first] += 1
        if first <= v < end:
            events[cursor[v - first]] = begin + row
            cursor[v - first] += 1


@njit(nogil=True, cache=True)
def add_lost(distances: Any, kinds: Any, sizes: Any, lost: Any) -> None:
    """Add ``size - distance``, where it is above 0, for every pair of events and every size of batches.

    Args:
        distances: int64 [D].
        kinds: int64 [D], the row of ``lost`` in which a pair counts.
        sizes: int64 [S], sizes of batches, in events.
        lost: int64 [kinds, S].
    """
    for pair in range(len(distances)):
        for place in range(len(sizes)):
            if distances[pair] < sizes[place]:
                lost[kinds[pair], place] += sizes[place] - distances[pair]


@njit(nogil=True, cache=True)
def lost_to(distances: Any, size: int) -> Any:
    """Return the sum of ``size - distance`` over the integer distances below ``size``."""
    total = np.int64(0)
    for distance in distances:
        near = np.int64(distance)
        if near < size:
            total += size - near
    return total


@njit(nogil=True, cache=True)
def count_digits(values: Any, shift: int, prefixes: Any, counts: Any) -> None:
    """Count the 16-bit digits at ``shift`` of the values that have one of the prefixes above the digit.

    Args:
        values: uint64 [n].
        shift: At most 48.
        prefixes: uint64 [P], distinct.
        counts: int64 [P, 65536].
    """
    for value in values:
        above = (value >> np.uint64(shift)) >> np.uint64(16)
        for place in range(len(prefixes)):
            if prefixes[place] == above:
                counts[place, (value >> np.uint64(shift)) & np.uint64(0xFFFF)] += 1


@njit(nogil=True, cache=True)
def gap_moments(src: Any, dst: Any, time: Any, events: Any, num_nodes: int) -> Any:
    """Return count, mean and sum of squared deviations of the gaps, with one number per node in memory.

    Welford's recurrence (Technometrics 4, 1962). A self loop is two events of its node, with a gap of 0.

    Args:
        src: int64 [E], below ``num_nodes``.
        dst: int64 [E], below ``num_nodes``.
        time: float64 [E], non-decreasing.
        events: int64, ascending positions that count.
        num_nodes: N.
    """
    last = np.full(num_nodes, np.nan)
    count, mean, squares = 0, 0.0, 0.0
    for event in events:
        for node in (src[event], dst[event]):
            gap = time[event] - last[node]
            last[node] = time[event]
            if not np.isnan(gap):
                count += 1
                deviation = gap - mean
                mean += deviation / count
                squares += deviation * (gap - mean)
    return count, mean, squares
