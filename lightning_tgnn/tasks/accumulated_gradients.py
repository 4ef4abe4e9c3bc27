"""Gradients summed so far where a checkpoint falls between two steps of the optimizer."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor


def accumulated_gradients(trainer: pl.Trainer) -> dict[str, Tensor]:
    """Return the gradients that each rank has accumulated, [M, ...], by parameter; nothing after an optimizer step.

    All ranks have to call it.
    """
    if not trainer.fit_loop._should_accumulate():
        return {}
    strategy: Any = trainer.strategy
    gradients = {}
    for name, parameter in trainer.lightning_module.named_parameters():
        if not parameter.requires_grad:
            continue
        known = torch.tensor(parameter.grad is not None, device=parameter.device)
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if strategy.world_size == 1:
            known, gradient = known.unsqueeze(0), gradient.unsqueeze(0)
        else:
            known, gradient = strategy.all_gather(known), strategy.all_gather(gradient)
        if known.any():
            gradients[name] = gradient.detach().cpu().clone()
    return gradients


def restore_accumulated_gradients(saved: dict[str, Tensor], trainer: pl.Trainer) -> None:
    """Go on with what `accumulated_gradients` returned; other numbers of ranks go on with the mean over the ranks."""
    for name, parameter in trainer.lightning_module.named_parameters():
        if name in saved:
            of_ranks = saved[name]
            same = len(of_ranks) == trainer.world_size
            parameter.grad = (of_ranks[trainer.global_rank] if same else of_ranks.mean(0)).to(parameter)
