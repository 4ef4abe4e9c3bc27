"""Compiled loops of the folded attention for the CPU: one pass over the neighbours, which never leave the cache.

The same arithmetic as in tensor operations (see `folded_attention`), without their round trips through memory. A
root's neighbours are put together in a small scratch array ``x`` [K, d] and everything about the root is done there.
Helpers take whole arrays and indices: a slice costs the compiler's reference counting more than the work on it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange

# Reassociation lets sums use vector registers. The range reduction of `_encode` must not be reassociated.
_SUMS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "nogil": True, "cache": True}
_EXACT: dict[str, Any] = {"fastmath": {"contract"}, "nogil": True, "cache": True}

_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_INVERSE_PI = np.float32(1 / math.pi)
# pi = _PI + _PI_REST; the first part has few enough bits that `half_turns * _PI` is exact.
_PI = np.float32(3.140625)
_PI_REST = np.float32(math.pi - 3.140625)
# Taylor series on [-pi/2, pi/2]: the first terms left out are below float32's resolution.
_C2, _C4, _C6, _C8, _C10, _C12 = (np.float32((-1) ** (n // 2) / math.factorial(n)) for n in (2, 4, 6, 8, 10, 12))
_S3, _S5, _S7, _S9, _S11 = (np.float32((-1) ** (n // 2) / math.factorial(n)) for n in (3, 5, 7, 9, 11))


@njit(**_EXACT)
def _encode(elapsed: Any, weight: Any, bias: Any, x: Any, k: int, first: int) -> None:
    """Write ``cos(elapsed * weight + bias)`` to ``x[k, first:]``."""
    for d in range(weight.shape[0]):
        angle = elapsed * weight[d] + bias[d]
        half_turns = np.rint(angle * _INVERSE_PI)
        rest = (angle - half_turns * _PI) - half_turns * _PI_REST
        sign = _ONE - _TWO * (half_turns - _TWO * np.floor(half_turns * _HALF))
        q = rest * rest
        x[k, first + d] = sign * (_ONE + q * (_C2 + q * (_C4 + q * (_C6 + q * (_C8 + q * (_C10 + q * _C12))))))


@njit(**_EXACT)
def _encode_with_sine(elapsed: Any, weight: Any, bias: Any, x: Any, sine: Any, k: int, first: int) -> None:
    """Write the cosine of ``elapsed * weight + bias`` to ``x[k, first:]`` and its sine to ``sine[k]``."""
    for d in range(weight.shape[0]):
        angle = elapsed * weight[d] + bias[d]
        half_turns = np.rint(angle * _INVERSE_PI)
        rest = (angle - half_turns * _PI) - half_turns * _PI_REST
        sign = _ONE - _TWO * (half_turns - _TWO * np.floor(half_turns * _HALF))
        q = rest * rest
        x[k, first + d] = sign * (_ONE + q * (_C2 + q * (_C4 + q * (_C6 + q * (_C8 + q * (_C10 + q * _C12))))))
        sine[k, d] = sign * rest * (_ONE + q * (_S3 + q * (_S5 + q * (_S7 + q * (_S9 + q * _S11)))))


@njit(**_SUMS)
def _gather(x: Any, k: int, states: Any, features: Any, index: Any, edge: Any) -> None:
    """Write a neighbour's state and edge features to ``x[k]``."""
    state_dim = states.shape[1]
    for d in range(state_dim):
        x[k, d] = states[index, d]
    for d in range(features.shape[1]):
        x[k, state_dim + d] = features[edge, d]


@njit(**_SUMS)
def _dot(rows: Any, i: int, h: int, x: Any, k: int) -> Any:
    """Return ``rows[i, h] . x[k]``."""
    total = _ZERO
    for d in range(x.shape[1]):
        total += rows[i, h, d] * x[k, d]
    return total


@njit(**_SUMS)
def _add_scaled(rows: Any, i: int, h: int, factor: Any, x: Any, k: int) -> None:
    """Add ``factor * x[k]`` to ``rows[i, h]``."""
    for d in range(x.shape[1]):
        rows[i, h, d] += factor * x[k, d]


@njit(**_SUMS)
def _softmax(scores: Any, s: int, h: int, count: int) -> None:
    """Turn the first ``count`` of ``scores[s, h]`` into weights, and the rest into 0."""
    highest = np.float32(-np.inf)
    for k in range(count):
        highest = max(highest, scores[s, h, k])
    total = _ZERO
    for k in range(count):
        scores[s, h, k] = np.exp(scores[s, h, k] - highest)
        total += scores[s, h, k]
    for k in range(count):
        scores[s, h, k] /= total
    for k in range(count, scores.shape[2]):
        scores[s, h, k] = _ZERO


@njit(parallel=True, **_SUMS)
def forward(
    bounds: Any,
    query: Any,
    states: Any,
    weight: Any,
    bias: Any,
    features: Any,
    root: Any,
    index: Any,
    edge: Any,
    elapsed: Any,
    lengths: Any,
    keep: Any,
    attention: Any,
    mixed: Any,
) -> None:
    """Write ``attention`` [S, H, K] and ``mixed`` [S, H, d], the parts between ``bounds`` side by side.

    Shapes as in `folded_attention`; ``bounds`` int64 [parts + 1] cut the roots, ``lengths`` int64 [S] are their
    numbers of neighbours, ``edge`` and ``keep`` may be empty.
    """
    heads, width = query.shape[1], query.shape[2]
    edge_end = states.shape[1] + features.shape[1]
    for part in prange(bounds.shape[0] - 1):
        x = np.empty((index.shape[1], width), np.float32)
        for s in range(bounds[part], bounds[part + 1]):
            count = lengths[s]
            for k in range(count):
                _gather(x, k, states, features, index[s, k], edge[s, k] if edge.size else 0)
                _encode(elapsed[s, k], weight, bias, x, k, edge_end)
            for h in range(heads):
                for k in range(count):
                    attention[s, h, k] = _dot(query, root[s], h, x, k)
                _softmax(attention, s, h, count)
                for d in range(width):
                    mixed[s, h, d] = _ZERO
                for k in range(count):
                    factor = attention[s, h, k] * keep[s, h, k] if keep.size else attention[s, h, k]
                    _add_scaled(mixed, s, h, factor, x, k)


@njit(parallel=True, **_SUMS)
def backward(
    bounds: Any,
    order: Any,
    query: Any,
    states: Any,
    weight: Any,
    bias: Any,
    features: Any,
    root: Any,
    index: Any,
    edge: Any,
    elapsed: Any,
    lengths: Any,
    keep: Any,
    attention: Any,
    grad: Any,
    grad_query: Any,
    grad_states: Any,
    grad_weight: Any,
    grad_bias: Any,
) -> None:
    """Add the gradients, given ``grad`` [S, H, d], to the last four arrays, the parts between ``bounds`` side by side.

    ``order`` int64 [S] lists the roots by query, and ``bounds`` cuts it between queries; of the last three arrays each
    part has its own, [parts, ...].
    """
    heads, width, slots = query.shape[1], query.shape[2], index.shape[1]
    state_dim, time_dim = states.shape[1], weight.shape[0]
    edge_end = state_dim + features.shape[1]
    for part in prange(bounds.shape[0] - 1):
        x = np.empty((slots, width), np.float32)
        sine = np.empty((slots, time_dim), np.float32)
        slope = np.empty(time_dim, np.float32)
        scores = np.empty((heads, slots), np.float32)
        for place in range(bounds[part], bounds[part + 1]):
            s = order[place]
            count, own = lengths[s], root[s]
            for k in range(count):
                _gather(x, k, states, features, index[s, k], edge[s, k] if edge.size else 0)
                _encode_with_sine(elapsed[s, k], weight, bias, x, sine, k, edge_end)
            for h in range(heads):
                shared = _ZERO
                for k in range(count):
                    scores[h, k] = _dot(grad, s, h, x, k)
                    if keep.size:
                        scores[h, k] *= keep[s, h, k]
                    shared += scores[h, k] * attention[s, h, k]
                for k in range(count):
                    scores[h, k] = (scores[h, k] - shared) * attention[s, h, k]
                    _add_scaled(grad_query, own, h, scores[h, k], x, k)
            for k in range(count):
                neighbor = index[s, k]
                for d in range(time_dim):
                    slope[d] = _ZERO
                for h in range(heads):
                    score = scores[h, k]
                    kept = attention[s, h, k] * keep[s, h, k] if keep.size else attention[s, h, k]
                    for d in range(state_dim):
                        grad_states[part, neighbor, d] += score * query[own, h, d] + kept * grad[s, h, d]
                    for d in range(time_dim):
                        slope[d] += score * query[own, h, edge_end + d] + kept * grad[s, h, edge_end + d]
                for d in range(time_dim):
                    change = slope[d] * sine[k, d]
                    grad_bias[part, d] -= change
                    grad_weight[part, d] -= change * elapsed[s, k]
