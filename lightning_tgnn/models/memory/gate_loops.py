"""Compiled loops of a GRU's gates for the CPU: one pass where tensor operations take a dozen."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit, prange
from lightning_tgnn.models.memory.encoding_loops import SUMS

_HALF, _ONE = np.float32(0.5), np.float32(1)
# The rational approximation of tanh that Eigen uses for float32: within 4e-7 of it everywhere.
_LIMIT = np.float32(7.90531110763549805)
_N1, _N3, _N5, _N7, _N9, _N11, _N13 = (
    *(np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04), np.float32(1.48572235717979e-05)),
    *(np.float32(5.12229709037114e-08), np.float32(-8.60467152213735e-11), np.float32(2.00018790482477e-13)),
    np.float32(-2.76076847742355e-16),
)
_D0, _D2, _D4, _D6 = (
    *(np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)),
    *(np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)),
)


@njit(inline="always", **SUMS)
def _tanh(x: Any) -> Any:
    x = min(max(x, -_LIMIT), _LIMIT)
    q = x * x
    top = x * (_N1 + q * (_N3 + q * (_N5 + q * (_N7 + q * (_N9 + q * (_N11 + q * _N13))))))
    return top / (_D0 + q * (_D2 + q * (_D4 + q * _D6)))


@njit(inline="always", **SUMS)
def _sigmoid(x: Any) -> Any:
    return _HALF + _HALF * _tanh(_HALF * x)


@njit(parallel=True, **SUMS)
def forward(
    incoming: Any,
    recurrent: Any,
    bias: Any,
    memory: Any,
    arrived: Any,
    reset: Any,
    update: Any,
    proposal: Any,
    result: Any,
) -> None:
    """Write the memory after the mails that have ``arrived`` (bool [U]) to ``result``, and the gates, [U, d] each.

    ``incoming`` [U, 3 d] holds reset, update and proposal, ``recurrent`` [U, 4 d] these and what reset gates; ``bias``
    [4 d] is added to the four. Gates of a row without mail are not written.
    """
    width = np.uintp(memory.shape[1])
    for u in prange(memory.shape[0]):
        if arrived[u]:
            for d in range(width):
                r = _sigmoid(incoming[u, d] + recurrent[u, d] + bias[d])
                z = _sigmoid(incoming[u, width + d] + recurrent[u, width + d] + bias[width + d])
                ahead = incoming[u, width + width + d] + recurrent[u, width + width + d] + bias[width + width + d]
                recalled = recurrent[u, width + width + width + d] + bias[width + width + width + d]
                n = _tanh(ahead + r * recalled)
                # Arrays of their own: of one for all three the compiler does not know that rows do not overlap.
                reset[u, d], update[u, d], proposal[u, d] = r, z, n
                result[u, d] = n + z * (memory[u, d] - n)
        else:
            for d in range(width):
                result[u, d] = memory[u, d]


@njit(parallel=True, **SUMS)
def backward(
    grad: Any,
    recurrent: Any,
    bias: Any,
    memory: Any,
    arrived: Any,
    reset: Any,
    update: Any,
    proposal: Any,
    grad_recurrent: Any,
) -> None:
    """Write the gradient of ``recurrent``, whose first three parts are the gradient of ``incoming``."""
    width = np.uintp(memory.shape[1])
    for u in prange(memory.shape[0]):
        if arrived[u]:
            for d in range(width):
                r, z, n, g = reset[u, d], update[u, d], proposal[u, d], grad[u, d]
                proposal_grad = g * (_ONE - z) * (_ONE - n * n)
                recalled = recurrent[u, width + width + width + d] + bias[width + width + width + d]
                grad_recurrent[u, d] = proposal_grad * recalled * r * (_ONE - r)
                grad_recurrent[u, width + d] = g * (memory[u, d] - n) * z * (_ONE - z)
                grad_recurrent[u, width + width + d] = proposal_grad
                grad_recurrent[u, width + width + width + d] = proposal_grad * r
        else:
            for d in range(np.uintp(grad_recurrent.shape[1])):
                grad_recurrent[u, d] = np.float32(0)
