"""Compiled sine and cosine for the CPU's loops, and the time encoding with its gradient.

A cosine is ``1 - 2 sin^2`` of half the angle: whole turns of the angle are half turns of its half, whose square does
not change with them, so no sign has to be looked after.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit, prange

# Reassociation lets sums use vector registers. The range reduction of an angle must not be reassociated.
SUMS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "nogil": True, "cache": True}
EXACT: dict[str, Any] = {"fastmath": {"contract"}, "nogil": True, "cache": True}

_ONE, _TWO = np.float32(1), np.float32(2)
_HALF_TURN = np.float32(math.pi)
_INVERSE_TURN = np.float32(1 / (2 * math.pi))
# 2 pi = _TURN + _TURN_REST; the first part has few enough bits that `turns * _TURN` is exact.
_TURN = np.float32(6.28125)
_TURN_REST = np.float32(2 * math.pi - 6.28125)
# Taylor series of sin(r / 2) and cos(r / 2) on [-pi, pi]: the first terms left out are below float32's resolution.
_S1, _S3, _S5, _S7, _S9, _S11 = (np.float32((-1) ** (n // 2) / math.factorial(n) / 2**n) for n in (1, 3, 5, 7, 9, 11))
_C2, _C4, _C6, _C8, _C10, _C12 = (np.float32((-1) ** (n // 2) / math.factorial(n) / 2**n) for n in (2, 4, 6, 8, 10, 12))


@njit(inline="always", **EXACT)
def without_turns(angle: Any) -> Any:
    """Return ``angle`` less its whole turns, in [-pi, pi].

    Beyond some 1e7 float32 does not know where in its turn an angle stands; the bounds keep the series finite there.
    """
    turns = np.rint(angle * _INVERSE_TURN)
    rest = (angle - turns * _TURN) - turns * _TURN_REST
    return min(max(rest, -_HALF_TURN), _HALF_TURN)


@njit(inline="always", **EXACT)
def sine_of_half(angle: Any) -> Any:
    """Return ``sin(angle / 2)`` for an angle in [-pi, pi]."""
    q = angle * angle
    return angle * (_S1 + q * (_S3 + q * (_S5 + q * (_S7 + q * (_S9 + q * _S11)))))


@njit(inline="always", **EXACT)
def cosine_of_half(angle: Any) -> Any:
    """Return ``cos(angle / 2)`` for an angle in [-pi, pi]."""
    q = angle * angle
    return _ONE + q * (_C2 + q * (_C4 + q * (_C6 + q * (_C8 + q * (_C10 + q * _C12)))))


@njit(parallel=True, **EXACT)
def encode(elapsed: Any, weight: Any, bias: Any, encoding: Any) -> None:
    """Write ``cos(elapsed * weight + bias)`` of float32 [n] to ``encoding`` [n, d]."""
    for i in prange(elapsed.shape[0]):
        for d in range(weight.shape[0]):
            sine = sine_of_half(without_turns(elapsed[i] * weight[d] + bias[d]))
            encoding[i, d] = _ONE - _TWO * sine * sine


@njit(parallel=True, **EXACT)
def encode_backward(grad: Any, elapsed: Any, weight: Any, bias: Any, grad_weight: Any, grad_bias: Any) -> None:
    """Add the gradients of weight and bias, given the gradient of the encoding [n, d].

    Each of as many threads as ``grad_weight`` and ``grad_bias`` [threads, d] have rows adds up its own.
    """
    rows, parts = elapsed.shape[0], grad_weight.shape[0]
    for part in prange(parts):
        for i in range(part * rows // parts, (part + 1) * rows // parts):
            for d in range(weight.shape[0]):
                rest = without_turns(elapsed[i] * weight[d] + bias[d])
                change = grad[i, d] * _TWO * sine_of_half(rest) * cosine_of_half(rest)
                grad_bias[part, d] -= change
                grad_weight[part, d] -= change * elapsed[i]
