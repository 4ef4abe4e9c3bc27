"""The number of micro-batches into which a batch is cut (Sven, section 3.3.2 and appendix D)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def fit_redundancy(batch_sizes: Sequence[int], rates: Sequence[float]) -> tuple[float, float]:
    """Fit eta = A + B / bs by least squares (Eq. 22).

    Args:
        batch_sizes: Events per batch, each at least 1, with at least two different values.
        rates: Redundancy rate eta for each batch size, in [0, 1].

    Returns:
        A and B. B is negative if larger batches repeat more, as is usual.

    >>> fit_redundancy([100, 200], [0.5, 0.75])
    (1.0, -50.0)
    """
    inverse = [1 / size for size in batch_sizes]
    mean_inverse, mean_rate = math.fsum(inverse) / len(inverse), math.fsum(rates) / len(rates)
    spread = math.fsum((x - mean_inverse) ** 2 for x in inverse)
    common = math.fsum((x - mean_inverse) * (y - mean_rate) for x, y in zip(inverse, rates, strict=True))
    b = common / spread
    return mean_rate - b * mean_inverse, b


def choose_granularity(a: float, b: float, batch_size: int, speed: float) -> int:
    """Return the number of micro-batches, n = max(1, floor((A bs + B) / S)) (Eq. 12).

    A bs + B is eta times bs, the entries that repeat. The longer a transfer takes, the more pieces hide it.

    Args:
        a: A of `fit_redundancy`.
        b: B of `fit_redundancy`.
        batch_size: bs, events per batch, at least 1.
        speed: S, above 0; `transfer_speed` measures it.

    >>> choose_granularity(0.9, -40.0, batch_size=1200, speed=300.0)
    3
    """
    return max(1, math.floor((a * batch_size + b) / speed))
