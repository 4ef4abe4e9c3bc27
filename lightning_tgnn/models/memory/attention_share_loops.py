"""Compiled loops that share the roots of an attention out over threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit

_MIN_ENTRIES_PER_THREAD = 500


@njit(nogil=True, cache=True)
def lengths_of(mask: Any) -> Any:
    """Return how many neighbours each root has, int64 [S]: they fill its first places."""
    lengths = np.zeros(mask.shape[0], np.int64)
    for s in range(mask.shape[0]):
        for k in range(mask.shape[1]):
            lengths[s] += mask[s, k]
    return lengths


@njit(nogil=True, cache=True)
def by_query(root: Any, queries: int) -> Any:
    """Return the roots in the order of their queries, int64 [S], and where the roots of each query start, [D + 1]."""
    starts = np.zeros(queries + 1, np.int64)
    for s in range(len(root)):
        starts[root[s] + 1] += 1
    for own in range(queries):
        starts[own + 1] += starts[own]
    order, following = np.empty(len(root), np.int64), starts.copy()
    for s in range(len(root)):
        order[following[root[s]]] = s
        following[root[s]] += 1
    return order, starts


@njit(nogil=True, cache=True)
def cut(lengths: Any, order: Any, starts: Any, threads: int) -> Any:
    """Cut queries into a part per thread, or fewer, with about as many neighbours each.

    Args:
        lengths: int64 [S], neighbours of every root. A root without neighbours is some work, too.
        order: int64 [S], the roots in the order of their queries.
        starts: int64 [D + 1], where the roots of each query start in ``order``.
        threads: The most parts.

    Returns:
        int64 [parts + 1], queries at which parts begin, and D.
    """
    queries, total = len(starts) - 1, lengths.sum() + len(lengths)
    parts = max(1, min(threads, total // _MIN_ENTRIES_PER_THREAD))
    bounds = np.full(parts + 1, queries)
    bounds[0] = 0
    part, before = 1, 0
    for own in range(queries):
        while part < parts and before >= total * part / parts:
            bounds[part] = own
            part += 1
        for place in range(starts[own], starts[own + 1]):
            before += lengths[order[place]] + 1
    return bounds
