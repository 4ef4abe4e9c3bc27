"""What sums up compressed gradients over the ranks, and what it keeps from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from lightning_tgnn.comm import Exchange

DENSE = "gradients"
"""Under what name the bytes of gradients are counted."""
KEPT = "residuals of gradients"
"""Under what name those are that a checkpoint gathers."""


class SumUnderWay(Protocol):
    """A sum that is being formed."""

    def wait(self) -> Tensor:
        """Return it, once it is there; the same bits on all ranks."""
        ...


class CompressedSum(Protocol):
    """Sums up gradients over the ranks, step by step."""

    def start(self, values: Tensor) -> SumUnderWay:
        """Begin to sum what a rank has, [n], all weights one after the other."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return what all ranks keep for the next step, on the first one; all have to call it together.

        ``"residuals"`` are those of all ranks, [M, n].
        """
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what `state_dict` returned; other numbers of ranks each take the mean of the residuals."""
        ...


def add_ring(exchange: Exchange, count: int) -> None:
    """Count an all-reduce of so many bytes, as a ring sends them."""
    sent = 2 * (exchange.ranks - 1) * count // exchange.ranks
    exchange.traffic.add(DENSE, sent=sent, received=sent)


def of_rank(residuals: Tensor, exchange: Exchange) -> Tensor:
    """Return the residual [n] of this rank from those of all [M, n]; other numbers of ranks have the same in all."""
    if len(residuals) == exchange.ranks:
        return residuals[exchange.rank]
    return residuals.sum(0) / exchange.ranks
