"""The folded attention on the CPU: compiled loops, the roots shared out over threads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.models.memory import attention_loops
from lightning_tgnn.models.memory.attention_places import Neighborhood
from lightning_tgnn.models.memory.loop_threads import use_torch_threads

_MIN_ENTRIES_PER_THREAD = 500


def forward(
    query: Tensor, states: Tensor, weight: Tensor, bias: Tensor, places: Neighborhood, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums [H, S, d] and the attention weights [S, H, K]; arguments as in `folded_attention`."""
    heads, _, width = query.shape
    mixed = torch.empty(heads, len(places.root), width)
    attention = torch.empty(len(places.root), heads, places.mask.shape[1])
    arrays, lengths = _arrays(query, states, weight, bias, places, keep)
    attention_loops.forward(_bounds(lengths), *arrays, attention.numpy(), mixed.numpy())
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
    """Return the gradients of query, states, weight and bias, given that of the weighted sums, [H, S, d]."""
    arrays, lengths = _arrays(query, states, weight, bias, places, keep)
    # By query: no two threads then write to the same row of its gradient, since a part never ends within one.
    sorted_root, order = places.root.sort(stable=True)
    bounds = _bounds(lengths[order.numpy()], sorted_root.numpy())
    grad_query = torch.zeros_like(query, memory_format=torch.contiguous_format)
    # Of the rest every thread adds up its own, so that the sums do not depend on who comes first.
    totals = [torch.zeros(len(bounds) - 1, *tensor.shape) for tensor in (states, weight, bias)]
    inputs = (*arrays, attention.numpy(), grad.contiguous().numpy())
    outputs = (grad_query.numpy(), *(total.numpy() for total in totals))
    attention_loops.backward(bounds, order.numpy(), *inputs, *outputs)
    grad_states, grad_weight, grad_bias = (total.sum(0) for total in totals)
    return grad_query, grad_states, grad_weight, grad_bias


def _arrays(
    query: Tensor, states: Tensor, weight: Tensor, bias: Tensor, places: Neighborhood, keep: Tensor | None
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return what both loops take first, and the number of neighbours of every root."""
    lengths = places.mask.sum(1)
    tensors = [
        *(query, states, weight, bias, places.edge_features),
        *(places.root, places.index, places.edge, places.elapsed, lengths),
        torch.empty(0, 0, 0) if keep is None else keep,
    ]
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors), lengths.numpy()


def _bounds(lengths: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Cut the roots into a part per thread, with about as many neighbours each; ``groups`` are not cut apart."""
    entries = lengths.cumsum() + np.arange(1, len(lengths) + 1)  # a root without neighbours is some work, too
    total = int(entries[-1]) if len(entries) else 0
    parts = max(1, min(use_torch_threads(), total // _MIN_ENTRIES_PER_THREAD))
    inner = np.searchsorted(entries, [total * part / parts for part in range(1, parts)])
    if groups is not None and len(inner):
        inner = np.searchsorted(groups, groups[inner])
    return np.array([0, *inner, len(lengths)], dtype=np.int64)
