"""The folded attention on the CPU: compiled loops, the roots shared out over threads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.models.memory import attention_loops
from lightning_tgnn.models.memory.attention_places import Neighborhood
from lightning_tgnn.models.memory.loop_threads import use_torch_threads


def forward(
    query: Tensor, states: Tensor, weight: Tensor, bias: Tensor, places: Neighborhood, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of neighbours and the attention weights.

    Args:
        query: float32 [H, D, d], folded queries, already scaled; ``d = d_state + d_edge + d_time``.
        states: float32 [U, d_state], node states.
        weight: float32 [d_time], of the time encoding.
        bias: float32 [d_time], of the time encoding.
        places: Which roots attend to which rows.
        keep: float32 [S, H, K], dropout factors of the attention weights.

    Returns:
        float32 [H, S, d], zeros for a root without neighbours, and float32 [S, H, K].
    """
    heads, _, width = query.shape
    mixed = torch.empty(heads, len(places.root), width)
    attention = torch.empty(len(places.root), heads, places.mask.shape[1])
    given = _arrays(query, states, weight, bias, places, keep)
    attention_loops.forward(use_torch_threads(), *given, attention.numpy(), mixed.numpy())
    return mixed, attention


def backward(
    grad: Tensor,
    query: Tensor,
    states: Tensor,
    weight: Tensor,
    bias: Tensor,
    places: Neighborhood,
    keep: Tensor | None,
    attention: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, states, weight and bias, given the gradient of the weighted sums, [H, S, d]."""
    given = _arrays(query, states, weight, bias, places, keep)
    to_query, to_states, to_weight, to_bias = (torch.empty(tensor.shape) for tensor in (query, states, weight, bias))
    gradients = to_query, to_states, to_weight, to_bias
    threads, results = use_torch_threads(), (tensor.numpy() for tensor in gradients)
    attention_loops.backward(threads, *given, attention.numpy(), grad.contiguous().numpy(), *results)
    return gradients


def add_rows(rows: Tensor, places: Tensor, table: Tensor) -> None:
    """Add rows [S, d] to a table [D, d] at their places, int64 [S]."""
    if table.dtype != torch.float32:  # the loops compute in float32
        table.index_add_(0, places, rows)
    else:
        attention_loops.add_rows(rows.contiguous().numpy(), places.contiguous().numpy(), table.numpy())


def _arrays(
    query: Tensor, states: Tensor, weight: Tensor, bias: Tensor, places: Neighborhood, keep: Tensor | None
) -> tuple[np.ndarray, ...]:
    """Return what both loops take first."""
    kept = torch.empty(0, 0, 0) if keep is None else keep
    place_arrays = places.edge_features, places.root, places.index, places.edge, places.elapsed, places.mask
    tensors = query, states, weight, bias, *place_arrays, kept
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)
