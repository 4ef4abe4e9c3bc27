"""Random states of all ranks, so that a resumed run draws what the broken-off one would have drawn."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor


def random_states(trainer: pl.Trainer) -> dict[str, Tensor | None]:
    """Return torch's random states of every rank, uint8 [M, n], of the CPU and, where it trains, of CUDA."""
    strategy = trainer.strategy
    on_cuda = strategy.root_device.type == "cuda"
    return {
        "cpu": _of_all_ranks(torch.get_rng_state(), strategy),
        "cuda": _of_all_ranks(torch.cuda.get_rng_state(strategy.root_device), strategy) if on_cuda else None,
    }


def restore_random_states(saved: dict[str, Any], trainer: pl.Trainer) -> None:
    """Go on with what `random_states` returned; a rank that was not among them keeps its own."""
    rank, device = trainer.global_rank, trainer.strategy.root_device
    if rank < len(saved["cpu"]):
        torch.set_rng_state(saved["cpu"][rank].cpu().clone())  # of a view, torch would read the whole storage
    if device.type == "cuda" and saved["cuda"] is not None and rank < len(saved["cuda"]):
        torch.cuda.set_rng_state(saved["cuda"][rank].cpu().clone(), device)


def _of_all_ranks(state: Tensor, strategy: Any) -> Tensor:
    if strategy.world_size == 1:
        return state.unsqueeze(0)
    return strategy.all_gather(state.to(strategy.root_device)).cpu()
