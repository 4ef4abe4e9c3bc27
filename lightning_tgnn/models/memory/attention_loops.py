"""Compiled loops of the folded attention for the CPU: one pass over the neighbours, which never leave the cache.

The same arithmetic as in tensor operations (see `folded_attention`), without their round trips through memory. A
root's neighbours are put together in a small scratch array ``x`` [K, d] and everything about the root is done there,
four neighbours at a time, so that a sum is read and written once for all four; the places up to a multiple of four
are empty.

Written for the compiler: helpers take whole arrays and indices, since a slice costs its reference counting more than
the work on it, and a position that is a sum is unsigned, since the check for negative ones keeps a loop from using
vector registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit, prange
from lightning_tgnn.models.memory.encoding_loops import EXACT, SUMS, cosine_of_half, sine_of_half, without_turns

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


_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)


@njit(**EXACT)
def _encode(elapsed: Any, weight: Any, bias: Any, x: Any, k: int, first: Any) -> None:
    """Write ``cos(elapsed * weight + bias)`` to ``x[k, first:]``."""
    for d in range(np.uintp(weight.shape[0])):
        sine = sine_of_half(without_turns(elapsed * weight[d] + bias[d]))
        x[k, first + d] = _ONE - _TWO * sine * sine


@njit(**EXACT)
def _encode_with_sine(elapsed: Any, weight: Any, bias: Any, x: Any, sines: Any, k: int, first: Any) -> None:
    """Write the cosine of ``elapsed * weight + bias`` to ``x[k, first:]`` and its sine to ``sines[k]``."""
    for d in range(np.uintp(weight.shape[0])):
        rest = without_turns(elapsed * weight[d] + bias[d])
        sine = sine_of_half(rest)
        x[k, first + d] = _ONE - _TWO * sine * sine
        sines[k, d] = _TWO * sine * cosine_of_half(rest)


@njit(**SUMS)
def _gather(x: Any, k: int, states: Any, features: Any, index: Any, edge: Any) -> None:
    """Write a neighbour's state and edge features to ``x[k]``."""
    for d in range(states.shape[1]):
        x[k, d] = states[index, d]
    first = np.uintp(states.shape[1])
    for d in range(np.uintp(features.shape[1])):
        x[k, first + d] = features[edge, d]


@njit(**SUMS)
def _clear(x: Any, count: int) -> None:
    """Empty the places of ``x`` that are counted with the first ``count``."""
    for k in range(count, (count + 3) // 4 * 4):
        for d in range(x.shape[1]):
            x[k, d] = _ZERO


@njit(**SUMS)
def _dot4(rows: Any, h: int, i: int, x: Any, k: int) -> Any:
    """Return ``rows[h, i] . x[k]`` and the same for the next three."""
    dot0, dot1, dot2, dot3 = _ZERO, _ZERO, _ZERO, _ZERO
    for d in range(x.shape[1]):
        value = rows[h, i, d]
        dot0 += value * x[k, d]
        dot1 += value * x[k + 1, d]
        dot2 += value * x[k + 2, d]
        dot3 += value * x[k + 3, d]
    return dot0, dot1, dot2, dot3


@njit(**SUMS)
def _dots(rows: Any, h: int, i: int, x: Any, count: int, dots: Any) -> None:
    """Write ``rows[h, i] . x[k]`` to ``dots[h, k]`` for the first ``count``."""
    for k in range(0, count, 4):
        dots[h, k], dots[h, k + 1], dots[h, k + 2], dots[h, k + 3] = _dot4(rows, h, i, x, k)


@njit(**SUMS)
def _add4(rows: Any, h: int, i: int, f0: Any, f1: Any, f2: Any, f3: Any, x: Any, k: int) -> None:
    for d in range(x.shape[1]):
        rows[h, i, d] += f0 * x[k, d] + f1 * x[k + 1, d] + f2 * x[k + 2, d] + f3 * x[k + 3, d]


@njit(**SUMS)
def _add_weighted(rows: Any, h: int, i: int, factors: Any, x: Any, count: int) -> None:
    """Add the sum over k of ``factors[h, k] * x[k]`` to ``rows[h, i]``; factors past ``count`` have to be 0."""
    for k in range(0, count, 4):
        _add4(rows, h, i, factors[h, k], factors[h, k + 1], factors[h, k + 2], factors[h, k + 3], x, k)


@njit(**SUMS)
def _softmax(scores: Any, h: int, count: int) -> None:
    """Turn the first ``count`` of ``scores[h]`` into weights, and the rest into 0."""
    highest = np.float32(-np.inf)
    for k in range(count):
        highest = max(highest, scores[h, k])
    total = _ZERO
    for k in range(count):
        scores[h, k] = np.exp(scores[h, k] - highest)
        total += scores[h, k]
    for k in range(count):
        scores[h, k] /= total
    for k in range(count, scores.shape[1]):
        scores[h, k] = _ZERO


@njit(parallel=True, **SUMS)
def forward(
    threads: int,
    query: Any,
    states: Any,
    weight: Any,
    bias: Any,
    features: Any,
    root: Any,
    index: Any,
    edge: Any,
    elapsed: Any,
    mask: Any,
    keep: Any,
    attention: Any,
    mixed: Any,
) -> None:
    """Write ``attention`` [S, H, K] and ``mixed`` [H, S, d], the roots shared out over ``threads``.

    Shapes as in `attention_cpu.forward`; ``edge`` and ``keep`` may be empty.
    """
    heads, width, slots = query.shape[0], query.shape[2], index.shape[1]
    lengths, each = lengths_of(mask), np.arange(len(root) + 1)
    bounds = cut(lengths, each, each, threads)
    edge_end = np.uintp(states.shape[1] + features.shape[1])
    padded = (slots + 3) // 4 * 4
    for part in prange(bounds.shape[0] - 1):
        x = np.zeros((padded, width), np.float32)
        scores = np.zeros((heads, padded), np.float32)
        for s in range(bounds[part], bounds[part + 1]):
            count = lengths[s]
            for k in range(count):
                _gather(x, k, states, features, index[s, k], edge[s, k] if edge.size else 0)
                _encode(elapsed[s, k], weight, bias, x, k, edge_end)
            _clear(x, count)
            for h in range(heads):
                _dots(query, h, root[s], x, count, scores)
                _softmax(scores, h, count)
                for k in range(slots):
                    attention[s, h, k] = scores[h, k]
                    if keep.size:
                        scores[h, k] *= keep[s, h, k]
                for d in range(width):
                    mixed[h, s, d] = _ZERO
                _add_weighted(mixed, h, s, scores, x, count)


@njit(**SUMS)
def _add_to_state(grad_states: Any, part: int, neighbor: int, vectors: Any, j: int, factors: Any, k: int) -> None:
    """Add four of ``factors[j, k] * vectors[j]``, as wide as a state, to ``grad_states[part, neighbor]``."""
    f0, f1, f2, f3 = factors[j, k], factors[j + 1, k], factors[j + 2, k], factors[j + 3, k]
    for d in range(grad_states.shape[2]):
        grad_states[part, neighbor, d] += (
            f0 * vectors[j, d] + f1 * vectors[j + 1, d] + f2 * vectors[j + 2, d] + f3 * vectors[j + 3, d]
        )


@njit(**SUMS)
def _add_to_slope(slope: Any, vectors: Any, j: int, factors: Any, k: int, first: Any) -> None:
    """Add four of ``factors[j, k] * vectors[j, first:]`` to ``slope``."""
    f0, f1, f2, f3 = factors[j, k], factors[j + 1, k], factors[j + 2, k], factors[j + 3, k]
    for d in range(np.uintp(slope.shape[0])):
        slope[d] += (
            f0 * vectors[j, first + d]
            + f1 * vectors[j + 1, first + d]
            + f2 * vectors[j + 2, first + d]
            + f3 * vectors[j + 3, first + d]
        )


@njit(**SUMS)
def _take_slope(weight_grad: Any, bias_grad: Any, slope: Any, sines: Any, k: int, elapsed: Any) -> None:
    """Add what a neighbour's encoding asks of weight and bias, and clear ``slope``."""
    for d in range(slope.shape[0]):
        change = slope[d] * sines[k, d]
        bias_grad[d] -= change
        weight_grad[d] -= change * elapsed
        slope[d] = _ZERO


@njit(**SUMS)
def add_rows(rows: Any, places: Any, table: Any) -> None:
    """Add rows [S, d] to a table [D, d] at their places, int64 [S]."""
    for s in range(rows.shape[0]):
        for d in range(rows.shape[1]):
            table[places[s], d] += rows[s, d]


@njit(**SUMS)
def _add_up(own: Any, node: int, total: Any) -> None:
    """Write the sum of ``own[:, node]`` to ``total[node]``."""
    for d in range(total.shape[1]):
        total[node, d] = own[0, node, d]
    for part in range(1, own.shape[0]):
        for d in range(total.shape[1]):
            total[node, d] += own[part, node, d]


@njit(parallel=True, **SUMS)
def backward(
    threads: int,
    query: Any,
    states: Any,
    weight: Any,
    bias: Any,
    features: Any,
    root: Any,
    index: Any,
    edge: Any,
    elapsed: Any,
    mask: Any,
    keep: Any,
    attention: Any,
    grad: Any,
    grad_query: Any,
    grad_states: Any,
    grad_weight: Any,
    grad_bias: Any,
) -> None:
    """Write the gradients of query, states, weight and bias, given ``grad`` [H, S, d].

    Shapes as in `forward`. The roots are shared out by query: no two threads then write to the same row of its
    gradient. Of the rest every thread adds up its own, so that the sums do not depend on who comes first.
    """
    heads, width, slots = query.shape[0], query.shape[2], index.shape[1]
    lengths = lengths_of(mask)
    order, starts = by_query(root, query.shape[1])
    bounds = cut(lengths, order, starts, threads)
    parts, nodes = bounds.shape[0] - 1, states.shape[0]
    own_states = np.empty((parts, nodes, states.shape[1]), np.float32)
    own_weight, own_bias = np.empty((parts, len(weight)), np.float32), np.empty((parts, len(weight)), np.float32)
    edge_end = np.uintp(states.shape[1] + features.shape[1])
    padded, rows = (slots + 3) // 4 * 4, (2 * heads + 3) // 4 * 4
    for part in prange(parts):
        for node in range(nodes):
            for d in range(states.shape[1]):
                own_states[part, node, d] = _ZERO
        x = np.zeros((padded, width), np.float32)
        sines = np.empty((slots, weight.shape[0]), np.float32)
        # A neighbour's gradient is the sum of these vectors, a query and a gradient per head, by these factors.
        vectors = np.zeros((rows, width), np.float32)
        factors = np.zeros((rows, padded), np.float32)
        slope = np.zeros(weight.shape[0], np.float32)
        weight_grad, bias_grad = np.zeros_like(slope), np.zeros_like(slope)
        for own in range(bounds[part], bounds[part + 1]):
            for h in range(heads):
                for d in range(width):
                    grad_query[h, own, d] = _ZERO
            for place in range(starts[own], starts[own + 1]):
                s = order[place]
                count = lengths[s]
                for k in range(count):
                    _gather(x, k, states, features, index[s, k], edge[s, k] if edge.size else 0)
                    _encode_with_sine(elapsed[s, k], weight, bias, x, sines, k, edge_end)
                _clear(x, count)
                for h in range(heads):
                    _dots(grad, h, s, x, count, factors)
                    shared = _ZERO
                    for k in range(count):
                        if keep.size:
                            factors[h, k] *= keep[s, h, k]
                        shared += factors[h, k] * attention[s, h, k]
                    for k in range(count):
                        factors[h, k] = (factors[h, k] - shared) * attention[s, h, k]
                        factors[heads + h, k] = attention[s, h, k] * keep[s, h, k] if keep.size else attention[s, h, k]
                    for k in range(count, padded):
                        factors[h, k] = _ZERO
                    _add_weighted(grad_query, h, own, factors, x, count)
                    for d in range(width):
                        vectors[h, d] = query[h, own, d]
                        vectors[heads + h, d] = grad[h, s, d]
                for k in range(count):
                    for j in range(0, rows, 4):
                        _add_to_state(own_states, part, index[s, k], vectors, j, factors, k)
                        _add_to_slope(slope, vectors, j, factors, k, edge_end)
                    _take_slope(weight_grad, bias_grad, slope, sines, k, elapsed[s, k])
        for d in range(weight.shape[0]):
            own_weight[part, d], own_bias[part, d] = weight_grad[d], bias_grad[d]
    for node in prange(nodes):
        _add_up(own_states, node, grad_states)
    for d in range(weight.shape[0]):
        grad_weight[d], grad_bias[d] = own_weight[0, d], own_bias[0, d]
        for part in range(1, parts):
            grad_weight[d] += own_weight[part, d]
            grad_bias[d] += own_bias[part, d]
