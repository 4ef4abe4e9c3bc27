"""Sums up compressed gradients over the ranks, and keeps residuals from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_tgnn.comm import Exchange
from lightning_tgnn.types import OwnRows

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

    def state_dict(self, *, sharded: bool = False) -> dict[str, Any]:
        """Return what all ranks keep for the next step, on the first one; all have to call it together.

        ``"residuals"`` are the residuals of all ranks, [M, n].

        Args:
            sharded: Return what this rank keeps, as `OwnRows`, on all of them.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` returned; other numbers of ranks each take the mean of the residuals."""
        ...


def add_ring(exchange: Exchange, count: int) -> None:
    """Count an all-reduce of so many bytes, as a ring sends them."""
    sent = 2 * (exchange.ranks - 1) * count // exchange.ranks
    exchange.traffic.add(DENSE, sent=sent, received=sent)


def own_of(residual: Tensor, exchange: Exchange) -> OwnRows:
    """Return the residual [n] of this rank as its row of the residuals of all ranks [M, n]."""
    return OwnRows(residual.unsqueeze(0), exchange.rank, exchange.ranks)


def for_rank(residuals: Tensor, exchange: Exchange) -> Tensor:
    """Return this rank's residual [n] from all residuals [M, n]; other numbers of ranks have the same in all."""
    if len(residuals) == exchange.ranks:
        return residuals[torch.tensor([exchange.rank])][0]
    return residuals[:].sum(0) / exchange.ranks
