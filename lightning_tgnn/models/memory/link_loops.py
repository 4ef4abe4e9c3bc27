"""Compiled loops of the link predictor's scores for the CPU: no hidden row is written down, each way."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit, prange
from lightning_tgnn.models.memory.encoding_loops import SUMS

_ZERO = np.float32(0)


@njit(inline="always", **SUMS)
def _place(event: int, candidate: int, events: int, width: int, beside: bool) -> int:
    """Return the row of a candidate of an event, of which 0 is the true one."""
    if beside:
        return event * width + candidate
    return event if candidate == 0 else events + event * (width - 1) + candidate - 1


@njit(inline="always", **SUMS)
def _score(source: Any, event: int, others: Any, row: int, weight: Any) -> Any:
    """Return ``w . relu(s + d)`` of an event and of the destination in a row."""
    total = _ZERO
    for d in range(weight.shape[1]):
        hidden = source[event, d] + others[row, d]
        total += weight[0, d] * (_ZERO if hidden < _ZERO else hidden)  # NaN stays
    return total


@njit(parallel=True, **SUMS)
def forward(source: Any, others: Any, weight: Any, bias: Any, beside: bool, true: Any, negatives: Any) -> None:
    """Write the logits of the true destinations [B] and of the negatives [B, Q]; see `link_scores`."""
    events, width = negatives.shape[0], negatives.shape[1] + 1
    for number in prange(events):
        event = np.int64(number)  # unsigned and signed make a float
        true[event] = _score(source, event, others, _place(event, 0, events, width, beside), weight) + bias[0]
        for q in range(width - 1):
            row = _place(event, q + 1, events, width, beside)
            negatives[event, q] = _score(source, event, others, row, weight) + bias[0]


@njit(inline="always", **SUMS)
def _add_pair(
    grad: Any,
    source: Any,
    event: int,
    others: Any,
    row: int,
    weight: Any,
    grad_source: Any,
    grad_others: Any,
    weight_grad: Any,
) -> None:
    """Write a destination's gradient, and add the gradients of source and weights, given a score's gradient."""
    for d in range(weight.shape[1]):
        hidden = source[event, d] + others[row, d]
        change = _ZERO if hidden <= _ZERO else grad * weight[0, d]
        grad_others[row, d] = change
        grad_source[event, d] += change
        weight_grad[d] += _ZERO if hidden <= _ZERO else grad * hidden


@njit(parallel=True, **SUMS)
def backward(
    grad_true: Any,
    grad_negatives: Any,
    source: Any,
    others: Any,
    weight: Any,
    beside: bool,
    grad_source: Any,
    grad_others: Any,
    grad_weight: Any,
) -> None:
    """Write the gradients of what the scores are made of, [B, d] and [B (1 + Q), d], given the gradients of the scores.

    Each of as many threads as ``grad_weight`` [threads, d] has rows writes its own.
    """
    events, width, parts = grad_negatives.shape[0], grad_negatives.shape[1] + 1, grad_weight.shape[0]
    for part in prange(parts):
        weight_grad = np.zeros(weight.shape[1], np.float32)
        for event in range(part * events // parts, (part + 1) * events // parts):
            for d in range(weight.shape[1]):
                grad_source[event, d] = _ZERO
            row = _place(event, 0, events, width, beside)
            _add_pair(grad_true[event], source, event, others, row, weight, grad_source, grad_others, weight_grad)
            for q in range(width - 1):
                row = _place(event, q + 1, events, width, beside)
                grad = grad_negatives[event, q]
                _add_pair(grad, source, event, others, row, weight, grad_source, grad_others, weight_grad)
        for d in range(weight.shape[1]):
            grad_weight[part, d] = weight_grad[d]
