"""Compiled draws that equal the draws of `lightning_tgnn.algorithms.streams.counter_random`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
LOW_62_BITS = np.uint64((1 << 62) - 1)


@njit(nogil=True, cache=True)
def mixed(state: Any) -> Any:
    """Return the output of SplitMix64 that follows ``state``, uint64."""
    bits = state + _INCREMENT
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST_FACTOR
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND_FACTOR
    return bits ^ (bits >> np.uint64(31))


@njit(nogil=True, cache=True)
def draw_others(state: int, last: int, events: Any, true: Any, candidates: Any, drawn: Any) -> None:
    """Draw candidates other than an event's own, with `random_below` of a `counter_hash` of event and place.

    Args:
        state: State of the chain of counters before the event.
        last: The counter of `random_below` after that hash.
        events: int64 [B].
        true: int64 [B], the candidate that is not drawn for each event.
        candidates: int64 [C], ascending, at least 2.
        drawn: int64 [B, Q], written.
    """
    limit = np.uint64(len(candidates) - 1)
    for row in range(len(events)):
        # Drawn among all but one and shifted past the true one: uniform over the others, never a second try.
        own, event_key = np.searchsorted(candidates, true[row]), mixed(np.uint64(events[row]) ^ np.uint64(state))
        for place in range(drawn.shape[1]):
            key = mixed(np.uint64(place) ^ event_key) & LOW_62_BITS
            index = np.int64((mixed(np.uint64(last) ^ mixed(key)) & LOW_62_BITS) % limit)
            drawn[row, place] = candidates[index + (index >= own)]
