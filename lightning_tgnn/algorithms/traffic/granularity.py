"""The number of micro-batches into which a batch is cut (Sven, section 3.3.2 and appendix D)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_tgnn.checks import InvalidArgumentError, check_int, check_positive, check_share, refusal


def fit_redundancy(batch_sizes: Sequence[int], rates: Sequence[float]) -> tuple[float, float]:
    """Fit eta = A + B / bs by least squares (Eq. 22).

    Args:
        batch_sizes: Events per batch, each at least 1, with at least two different values.
        rates: Redundancy rate eta for each batch size, in [0, 1].

    Returns:
        A and B. B is negative if larger batches repeat more, as is usual.

    Raises:
        InvalidArgumentError: The lengths differ, a value is out of range, or no line can be fitted.

    >>> fit_redundancy([100, 200], [0.5, 0.75])
    (1.0, -50.0)
    """
    if len(batch_sizes) != len(rates):
        cure = "give one rate per batch size"
        raise InvalidArgumentError(refusal("rates", f"as many as batch sizes, {len(batch_sizes)}", len(rates), cure))
    for size, rate in zip(batch_sizes, rates, strict=True):
        check_int("batch_sizes", size, minimum=1, cure="give events per batch")
        check_share("rates", rate, cure="give the share of entries that repeat another")
    if len(set(batch_sizes)) < 2:
        cure = "profile a second batch size"
        raise InvalidArgumentError(refusal("batch_sizes", "at least two different ones", list(batch_sizes), cure))
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

    Raises:
        InvalidArgumentError: A value is out of its range.

    >>> choose_granularity(0.9, -40.0, batch_size=1200, speed=300.0)
    3
    """
    check_int("batch_size", batch_size, minimum=1, cure="give events per batch")
    check_positive("speed", speed, cure="measure the transfer rate first")
    for name, value in {"a": a, "b": b}.items():
        if not math.isfinite(value):
            raise InvalidArgumentError(refusal(name, "a finite number", value, "take it from fit_redundancy"))
    return max(1, math.floor((a * batch_size + b) / speed))
