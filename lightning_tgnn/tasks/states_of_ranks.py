"""States in which ranks differ, as a checkpoint holds them: random states, and gradients accumulated so far."""

from __future__ import annotations

from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.progress import _ProcessedTracker
from torch import Tensor

from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.tasks.restorable_task import plain_name


def random_states(trainer: pl.Trainer) -> dict[str, Tensor | None]:
    """Return torch's random states of every rank, uint8 [M, n], of the CPU and, where it trains, of CUDA."""
    device = trainer.strategy.root_device
    on_cuda = device.type == "cuda"
    return {
        "cpu": _of_all_ranks(torch.get_rng_state(), trainer).cpu(),
        "cuda": _of_all_ranks(torch.cuda.get_rng_state(device), trainer).cpu() if on_cuda else None,
    }


def checked_states(saved: dict[str, Any]) -> dict[str, Any]:
    """Return random states of a checkpoint if they have the form of what `random_states` returns.

    Raises:
        ValueError: A table of states is missing, or has another form.
    """
    for device, states in saved.items():
        is_table = isinstance(states, Tensor) and states.dtype == torch.uint8 and states.dim() == 2
        if not is_table and (states is not None or device != "cuda"):
            raise ValueError(f"random states of {device} that are no table of bytes")
    if "cpu" not in saved:
        raise ValueError("no random states of the CPU")
    return saved


@content_of(*SAVED)
def restore_random_states(saved: dict[str, Any], trainer: pl.Trainer) -> None:
    """Go on with what `random_states` returned; a rank that was not among them keeps its own."""
    rank, device = trainer.global_rank, trainer.strategy.root_device
    if rank < len(saved["cpu"]):
        torch.set_rng_state(saved["cpu"][rank].cpu().clone())  # of a view, torch would read the whole storage
    if device.type == "cuda" and saved["cuda"] is not None and rank < len(saved["cuda"]):
        torch.cuda.set_rng_state(saved["cuda"][rank].cpu().clone(), device)


def _of_all_ranks(values: Tensor, trainer: pl.Trainer) -> Tensor:
    """Return the values of every rank, [M, ...]."""
    if trainer.world_size == 1:
        return values.unsqueeze(0)
    return trainer.strategy.all_gather(values.to(trainer.strategy.root_device))


def accumulated_gradients(trainer: pl.Trainer, *, untouched: bool) -> dict[str, Tensor]:
    """Return the gradients that each rank has accumulated, [M, ...], by parameter; nothing after an optimizer step.

    All ranks have to call it.

    Args:
        trainer: In a fit.
        untouched: Whether a batch that is under way, which Lightning counts, has not added to them yet.
    """
    count = cast(_ProcessedTracker, trainer.fit_loop.epoch_loop.batch_progress.current)
    if count.ready == count.processed or not untouched:
        accumulates = trainer.fit_loop._should_accumulate()
    else:
        accumulates = count.processed % trainer.accumulate_grad_batches != 0
    if not accumulates:
        return {}
    gradients = {}
    for name, parameter in trainer.lightning_module.named_parameters():
        if not parameter.requires_grad:
            continue
        known = torch.tensor(parameter.grad is not None, device=parameter.device)
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        known, gradient = _of_all_ranks(known, trainer), _of_all_ranks(gradient, trainer)
        if known.any():
            gradients[plain_name(name)] = gradient.detach().cpu().clone()
    return gradients


@content_of(*SAVED)
def restore_accumulated_gradients(saved: dict[str, Tensor], trainer: pl.Trainer) -> None:
    """Go on with what `accumulated_gradients` returned; other numbers of ranks go on with the mean over the ranks."""
    for name, parameter in trainer.lightning_module.named_parameters():
        of_ranks = saved.get(plain_name(name))
        if of_ranks is not None:
            same = len(of_ranks) == trainer.world_size
            parameter.grad = (of_ranks[trainer.global_rank] if same else of_ranks.mean(0)).to(parameter)
