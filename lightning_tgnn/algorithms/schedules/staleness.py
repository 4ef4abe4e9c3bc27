"""The smallest staleness at which nothing stalls (MSPipe's rule)."""

from __future__ import annotations

from collections.abc import Callable

from lightning_tgnn.algorithms.schedules.simulator import Costs, simulate
from lightning_tgnn.checks import check_int, check_not_negative
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import Outline

SMALLEST = "smallest"
"""In the place of a number: that of `smallest_staleness`."""


def smallest_staleness(
    outline_at: Callable[[int], Outline],
    layout: RankLayout,
    costs: Costs,
    *,
    largest: int,
    turns: int = 24,
    tolerance: float = 0.01,
) -> int:
    """Return the smallest staleness whose turns take as long, in steady state, as turns of the largest staleness.

    The largest staleness waits least for gradients. No staleness takes away the waits that remain. For a pipeline of M
    ranks the outline is ``PipeTGLOutline(staleness=k).of(M)`` and the largest M - 1.

    Args:
        outline_at: Returns the outline of a staleness.
        layout: The ranks.
        costs: What stages take.
        largest: The largest possible staleness.
        turns: Turns to simulate.
        tolerance: The share by which a turn may take longer.

    Raises:
        InvalidArgumentError: A number is out of range.
    """
    check_int("largest", largest, minimum=0, cure="give M - 1 for a pipeline of M ranks")
    check_not_negative("tolerance", tolerance, cure="0.01 is usual")
    best = simulate(outline_at(largest), layout, costs, turns).period
    periods = (simulate(outline_at(staleness), layout, costs, turns).period for staleness in range(largest))
    return next((at for at, period in enumerate(periods) if period <= best * (1 + tolerance)), largest)
