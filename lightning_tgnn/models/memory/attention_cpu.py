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
    arrays, lengths = _arrays(query, states, weight, bias, places, keep)
    bounds = cut(lengths, np.arange(len(lengths) + 1), use_torch_threads())
    attention_loops.forward(bounds, *arrays, attention.numpy(), mixed.numpy())
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
    # By query: no two threads then write to the same row of its gradient.
    sorted_root, order = places.root.sort(stable=True)
    starts = torch.searchsorted(sorted_root, torch.arange(query.shape[1] + 1)).numpy()
    bounds = cut(lengths[order.numpy()], starts, use_torch_threads())
    grad_query = torch.empty_like(query, memory_format=torch.contiguous_format)
    # Of the rest every thread adds up its own, so that the sums do not depend on who comes first.
    totals = [torch.zeros(len(bounds) - 1, *tensor.shape) for tensor in (states, weight, bias)]
    inputs = (*arrays, attention.numpy(), grad.contiguous().numpy())
    outputs = (grad_query.numpy(), *(total.numpy() for total in totals))
    attention_loops.backward(bounds, order.numpy(), starts, *inputs, *outputs)
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


def cut(lengths: np.ndarray, starts: np.ndarray, threads: int) -> np.ndarray:
    """Cut queries into a part per thread, or fewer, with about as many neighbours each.

    Args:
        lengths: int64 [S], neighbours of the roots, in the order of their queries.
        starts: int64 [D + 1], where the roots of each query start.
        threads: The most parts.

    Returns:
        int64 [parts + 1], queries at which parts begin, and D.
    """
    entries = np.append(0, (lengths + 1).cumsum())  # a root without neighbours is some work, too
    total = int(entries[-1])
    parts = max(1, min(threads, total // _MIN_ENTRIES_PER_THREAD))
    inner = np.searchsorted(entries[starts], [total * part / parts for part in range(1, parts)])
    return np.array([0, *inner, len(starts) - 1], dtype=np.int64)
