"""States in which ranks differ, as a checkpoint holds them: random states, and gradients accumulated so far."""

from __future__ import annotations

import random
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.compat.loops import accumulates, batches_begun_and_over
from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.tasks.restoring import plain_name

_PYTHON_VERSION = 3  # of what `random.getstate` returns


def random_states(trainer: pl.Trainer) -> dict[str, Tensor | None]:
    """Return the random states of every rank, uint8 [M, n].

    They are torch's of the CPU and, where it trains, of CUDA, and the global ones of Python and NumPy, from which other
    code may draw.
    """
    device = trainer.strategy.root_device
    on_cuda = device.type == "cuda"
    return {
        "cpu": _from_all_ranks(torch.get_rng_state(), trainer).cpu(),
        "cuda": _from_all_ranks(torch.cuda.get_rng_state(device), trainer).cpu() if on_cuda else None,
        "python": _from_all_ranks(_python_state(), trainer).cpu(),
        "numpy": _from_all_ranks(_numpy_state(), trainer).cpu(),
    }


def _python_state() -> Tensor:
    _, words, gauss = random.getstate()
    return _as_bytes(np.array(words, np.uint32), np.array([np.nan if gauss is None else gauss]))


def _numpy_state() -> Tensor:
    state = np.random.get_state(legacy=False)
    words, position = state["state"]["key"], state["state"]["pos"]
    return _as_bytes(words, np.array([position, state["has_gauss"]], np.uint32), np.array([state["gauss"]]))


def _as_bytes(*arrays: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([array.view(np.uint8) for array in arrays]))


def _set_python_state(state: np.ndarray) -> None:
    (gauss,) = state[-8:].view(np.float64).tolist()
    random.setstate((_PYTHON_VERSION, tuple(state[:-8].view(np.uint32).tolist()), None if np.isnan(gauss) else gauss))


def _set_numpy_state(state: np.ndarray) -> None:
    *words, position, has_gauss = state[:-8].view(np.uint32).tolist()
    (gauss,) = state[-8:].view(np.float64).tolist()
    np.random.set_state(("MT19937", np.array(words, np.uint32), position, has_gauss, gauss))


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
    for name, restore in {"python": _set_python_state, "numpy": _set_numpy_state}.items():
        if name in saved and rank < len(saved[name]):  # checkpoints of earlier versions have none
            restore(saved[name][rank].cpu().numpy().copy())


def _from_all_ranks(values: Tensor, trainer: pl.Trainer) -> Tensor:
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
    begun, over = batches_begun_and_over(trainer)
    before = untouched and begun != over  # the batch under way has added nothing yet
    if not (over % trainer.accumulate_grad_batches if before else accumulates(trainer)):
        return {}
    gradients = {}
    for name, parameter in trainer.lightning_module.named_parameters():
        if not parameter.requires_grad:
            continue
        known = torch.tensor(parameter.grad is not None, device=parameter.device)
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        known, gradient = _from_all_ranks(known, trainer), _from_all_ranks(gradient, trainer)
        if known.any():
            gradients[plain_name(name)] = gradient.detach().cpu().clone()
    return gradients


@content_of(*SAVED)
def restore_accumulated_gradients(saved: dict[str, Tensor], trainer: pl.Trainer) -> None:
    """Continue with what `accumulated_gradients` returned; other numbers of ranks take the mean over the ranks."""
    for name, parameter in trainer.lightning_module.named_parameters():
        per_rank = saved.get(plain_name(name))
        if per_rank is not None:
            same = len(per_rank) == trainer.world_size
            parameter.grad = (per_rank[trainer.global_rank] if same else per_rank.mean(0)).to(parameter)
