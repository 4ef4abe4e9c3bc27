"""The ends of all events, sorted by node and then by event, at once or a range of nodes at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def ends_by_node(src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return node and event of both ends of all events, int64 [2E] each, sorted by node and then by event."""
    nodes = np.stack([src, dst], axis=1).ravel()
    order = np.argsort(nodes, kind="stable")
    return nodes[order], order // 2


def node_ranges(indptr: np.ndarray, at_once: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of nodes with at most ``at_once`` entries together, or a single node that has more.

    Args:
        indptr: int64 [N + 1], the entries of node v are ``indptr[v] .. indptr[v + 1] - 1``.
        at_once: At least 1.

    >>> list(node_ranges(np.array([0, 2, 3, 9, 9]), 4))
    [(0, 2), (2, 3), (3, 4)]
    """
    first, nodes = 0, len(indptr) - 1
    while first < nodes:
        end = int(np.searchsorted(indptr, indptr[first] + at_once, side="right")) - 1
        end = min(max(end, first + 1), nodes)
        yield first, end
        first = end


def ends_in_pieces(
    src: np.ndarray, dst: np.ndarray, degree: np.ndarray, at_once: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the result of `ends_by_node` piece by piece; the stream is read once for every piece.

    Args:
        src: int64 [E], below N.
        dst: int64 [E], below N.
        degree: int64 [N], the ends of every node.
        at_once: The most ends in a piece, at least 2.
    """
    from lightning_tgnn.algorithms.streams.statistics_loops import place_ends  # imports the compiler

    indptr = np.concatenate([[0], np.cumsum(degree)])
    for first, end in node_ranges(indptr, at_once):
        count = int(indptr[end] - indptr[first])
        whole = count <= at_once
        # Ends of a node follow each other: one that has too many is sorted in pieces of the stream.
        step = len(src) if whole else at_once // 2
        for begin in range(0, len(src), step):
            events = np.empty(min(count, at_once), np.int64)
            cursor = indptr[first:end] - indptr[first] if whole else np.zeros(1, np.int64)
            place_ends(src[begin : begin + step], dst[begin : begin + step], begin, first, cursor, events)
            nodes = np.arange(first, end).repeat(degree[first:end] if whole else cursor)
            yield nodes, events[: len(nodes)]


def consecutive_ends(
    src: np.ndarray, dst: np.ndarray, degree: np.ndarray, at_once: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield nodes, events and next events: every end but a node's last, in order, piece by piece; see `ends_in_pieces`.

    A self loop is also its own next event.
    """
    last = np.empty(0, np.int64), np.empty(0, np.int64)
    for piece in ends_in_pieces(src, dst, degree, at_once):
        nodes, events = (np.concatenate(columns) for columns in zip(last, piece, strict=True))
        last = nodes[-1:], events[-1:]
        same = nodes[1:] == nodes[:-1]
        yield nodes[1:][same], events[:-1][same], events[1:][same]
