"""The weights that a rank trains, with their gradients and their optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lightning_tgnn.compat.loops import clip_gradients, ends_epoch

Options = list[dict[str, Any]]
"""The options of each group of an optimizer, its learning rate among them."""


class TrainedWeights:
    """The parameters of a task that are trained, in its order.

    Args:
        task: Whose parameters.

    Attributes:
        names: Of the parameters.
        parameters: The same.
    """

    def __init__(self, task: pl.LightningModule) -> None:
        self._task = task
        named = [(name, value) for name, value in task.named_parameters() if value.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [value for _, value in named]

    @property
    def trainer(self) -> pl.Trainer:
        """The Trainer of the task."""
        return self._task.trainer

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The one optimizer of the Trainer."""
        return self.trainer.strategy.optimizers[0]

    @property
    def ends_epoch(self) -> bool:
        """Whether the step under way is the last one of its epoch."""
        return ends_epoch(self.trainer)

    @property
    def has_accumulated(self) -> bool:
        """Whether there are gradients of earlier batches to which the gradients of the current batch will be added."""
        loop = self.trainer.fit_loop.epoch_loop
        in_window = (loop.batch_progress.current.ready - 1) % self.trainer.accumulate_grad_batches > 0
        return in_window and any(parameter.grad is not None for parameter in self.parameters)

    def room(self) -> Tensor:
        """Return memory for what `packed` returns, with whatever it holds."""
        size = sum(parameter.numel() for parameter in self.parameters) + len(self.parameters)
        return self.parameters[0].new_empty(size)

    def packed(self, *, has_events: bool) -> Tensor:
        """Return the gradients in one row, and behind them for each parameter whether it has one.

        Args:
            has_events: Whether any events have contributed; without them no parameter has a gradient.
        """
        has = [has_events and parameter.grad is not None for parameter in self.parameters]
        values = [
            parameter.grad.flatten() if there and parameter.grad is not None else torch.zeros_like(parameter).flatten()
            for parameter, there in zip(self.parameters, has, strict=True)
        ]
        return torch.cat([*values, values[0].new_tensor(has)])

    def place(self, packed: Tensor) -> bool:
        """Give every parameter its gradient; return whether there is any.

        Args:
            packed: What `packed` returned on some rank.
        """
        count = len(self.parameters)
        values, has = packed[:-count], packed[-count:].bool().tolist()
        pieces = values.split([parameter.numel() for parameter in self.parameters])
        for parameter, piece, there in zip(self.parameters, pieces, has, strict=True):
            parameter.grad = piece.view_as(parameter).to(parameter.dtype, copy=True) if there else None
        return any(has)

    def step_quietly(self) -> None:
        """Clip the gradients and step the optimizer; no hook of Lightning is called."""
        clip_gradients(self.trainer, self._task, self.optimizer)
        self.optimizer.step()

    @torch.no_grad()
    def sizes(self) -> Tensor:
        """Return the sum of the absolute values of each parameter, float64 [P]."""
        return torch.stack([parameter.double().abs().sum() for parameter in self.parameters])

    @torch.no_grad()
    def set(self, weights: Sequence[Tensor]) -> None:
        """Change the weights."""
        for parameter, value in zip(self.parameters, weights, strict=True):
            parameter.copy_(value)


def options_of(optimizer: torch.optim.Optimizer) -> Options:
    """Return a copy of the options of an optimizer; a schedule changes those that are tensors in place."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return tree_map_only(Tensor, lambda value: value.detach().clone(), groups)


def take_options(optimizer: torch.optim.Optimizer, options: Options) -> None:
    """Set options of each parameter group of an optimizer."""
    for group, group_options in zip(optimizer.param_groups, options, strict=True):
        group.update(group_options)
