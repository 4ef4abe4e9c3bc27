"""The compiled loop over the times between consecutive events of a node."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_tgnn.compiled import njit


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
