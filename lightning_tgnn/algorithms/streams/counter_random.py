"""Random integers that are a function of counters, not of a generator's state.

A draw for (seed, epoch, event, slot) is the same on every rank, in every worker and for every batch size, which no
sequential generator can give. The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014), chained over the counters.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW_62_BITS = (1 << 62) - 1
_FEISTEL_ROUNDS = 6


def _as_int64(value: int) -> int:
    """Return ``value`` modulo 2^64 as the signed integer of the same 64 bits."""
    return ((value + (1 << 63)) % (1 << 64)) - (1 << 63)


_INCREMENT = _as_int64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = _as_int64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = _as_int64(0x94D049BB133111EB)


def splitmix64(state: Tensor) -> Tensor:
    """Return the output of SplitMix64 that follows ``state``.

    Args:
        state: int64, any shape, read as 64 unsigned bits.

    Returns:
        int64 of the same shape, 64 unsigned bits.
    """
    bits = state + _INCREMENT
    # One scratch buffer for all steps: fresh memory costs more here than the arithmetic.
    scratch = torch.empty_like(bits)
    _xor_shifted_(bits, 30, scratch).mul_(_FIRST_FACTOR)
    _xor_shifted_(bits, 27, scratch).mul_(_SECOND_FACTOR)
    return _xor_shifted_(bits, 31, scratch)


def _splitmix64_of_int(state: int) -> int:
    bits = (state + _INCREMENT) % (1 << 64)
    bits = (bits ^ (bits >> 30)) * _FIRST_FACTOR % (1 << 64)
    bits = (bits ^ (bits >> 27)) * _SECOND_FACTOR % (1 << 64)
    return _as_int64(bits ^ (bits >> 31))


def chained(*counters: int) -> int:
    """Return the state of `counter_hash` after integers, before those that follow; a signed integer of 64 bits."""
    state = 0
    for counter in counters:
        state = _splitmix64_of_int(state ^ _as_int64(counter))
    return state


def counter_hash(*counters: Tensor | int) -> Tensor:
    """Return a random-looking integer for every combination of ``counters``.

    Put the counters that vary least first, because the chain is only as wide as the counters seen so far.

    Args:
        counters: int64 tensors that broadcast together, or integers (taken modulo 2^64).

    Returns:
        int64 of the broadcast shape, in [0, 2^62).
    """
    state: Tensor | int = 0
    for counter in counters:
        if isinstance(state, int) and isinstance(counter, int):
            state = _splitmix64_of_int(state ^ _as_int64(counter))  # without the calls of tensor operations
        else:
            mixed = counter ^ state if isinstance(counter, Tensor) else state ^ _as_int64(counter)
            state = splitmix64(torch.as_tensor(mixed))
    return torch.as_tensor(state).bitwise_and(_LOW_62_BITS)


def random_below(limit: Tensor | int, *counters: Tensor | int) -> Tensor:
    """Return an integer in [0, ``limit``), uniform over the values of ``counters``.

    The remainder favours small values by less than ``limit`` / 2^62.

    Args:
        limit: int64 that broadcasts with the counters, or an integer; at least 1.
        counters: As in `counter_hash`.

    Returns:
        int64 of the broadcast shape.
    """
    return counter_hash(*counters).remainder(limit)


def shuffled(places: Tensor, size: int, *counters: int) -> Tensor:
    """Return where ``places`` stand in a random order of ``0 .. size - 1``, without making the whole order.

    A Feistel network over the next power of 4, walked until it ends within (Black and Rogaway, "Ciphers with arbitrary
    finite domains", CT-RSA 2002, method 2).

    Args:
        places: int64, any shape, in [0, ``size``).
        size: How many numbers the order has.
        counters: As in `counter_hash`; each combination has its own order.

    Returns:
        int64 of the same shape; different places have different results.
    """
    half = max((max(size - 1, 1).bit_length() + 1) // 2, 1)
    mask = (1 << half) - 1
    found = places.clone()
    outside = torch.ones_like(found, dtype=torch.bool)
    while outside.any():
        left, right = found[outside] >> half, found[outside] & mask
        for turn in range(_FEISTEL_ROUNDS):
            left, right = right, left ^ (counter_hash(*counters, turn, right) & mask)
        found[outside] = (left << half) | right
        outside = found >= size
    return found


def _xor_shifted_(bits: Tensor, shift: int, scratch: Tensor) -> Tensor:
    # torch shifts signed integers arithmetically; the mask clears the copies of the sign bit.
    torch.bitwise_right_shift(bits, shift, out=scratch).bitwise_and_((1 << (64 - shift)) - 1)
    return bits.bitwise_xor_(scratch)
