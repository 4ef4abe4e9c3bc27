"""Gradients that ranks of a pipeline apply in turn, each with the options of its own step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lightning_tgnn.types.exchange import RowHandle


@dataclass
class LateGradient:
    """What one rank contributes to a step of all ranks.

    Attributes:
        options: Of the optimizer's groups at that step.
        message: On its way; None where it is this rank's own, or has arrived.
        values: Gradients in the order of the parameters, then for each parameter whether there is one.
    """

    options: list[dict[str, Any]]
    message: RowHandle | None = None
    values: Tensor | None = None

    def wait(self) -> Tensor:
        """Return the values, once they are here."""
        if self.message is not None:
            self.values, self.message = self.message.wait(), None
        assert self.values is not None
        return self.values


@dataclass
class HeldWeights:
    """What is set aside while other weights are shown."""

    weights: list[Tensor]
    optimizer: dict[str, Any]


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each group of an optimizer, its learning rate among them."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


@dataclass
class OptionsOf:
    """Has an optimizer take the options of another step, as long as it lasts."""

    optimizer: torch.optim.Optimizer
    options: list[dict[str, Any]]
    _now: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> None:
        self._now = options_of(self.optimizer)
        take_options(self.optimizer, self.options)

    def __exit__(self, *_: object) -> None:
        take_options(self.optimizer, self._now)


def take_options(optimizer: torch.optim.Optimizer, options: list[dict[str, Any]]) -> None:
    """Have each group of an optimizer take options."""
    for group, of_group in zip(optimizer.param_groups, options, strict=True):
        group.update(of_group)


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an optimizer's state, with tensors on the CPU."""
    return tree_map_only(Tensor, lambda value: value.detach().cpu().clone(), state)
