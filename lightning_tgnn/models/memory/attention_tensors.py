"""The folded attention as tensor operations, for devices with a memory bandwidth to match."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.models.memory.attention_places import Neighborhood
from lightning_tgnn.models.memory.time_encoding import phase


def forward(
    query: Tensor, states: Tensor, weight: Tensor, bias: Tensor, places: Neighborhood, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of neighbours and the attention weights, as `attention_cpu.forward` does."""
    neighbors = _neighbors(states, places, phase(places.elapsed, weight, bias).cos_())
    hidden = ~places.mask.unsqueeze(1)
    scores = torch.bmm(_by_root(query, places), neighbors.transpose(1, 2)).masked_fill_(hidden, -torch.inf)
    attention = scores.softmax(-1).masked_fill_(hidden, 0)  # also the NaN of a root without neighbours
    return torch.bmm(_kept(attention, keep), neighbors).transpose(0, 1), attention


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
    grad = grad.transpose(0, 1)
    angle = phase(places.elapsed, weight, bias)
    neighbors = _neighbors(states, places, angle.cos())
    grad_kept = torch.bmm(grad, neighbors.transpose(1, 2))
    grad_attention = grad_kept if keep is None else grad_kept * keep
    shared = (grad_attention * attention).sum(-1, keepdim=True)
    grad_scores = (grad_attention - shared) * attention
    grad_query = torch.zeros_like(query).index_add_(1, places.root, torch.bmm(grad_scores, neighbors).transpose(0, 1))

    # A neighbour's gradient is an outer product, through the scores and through the weighted sum.
    factors = torch.cat([grad_scores, _kept(attention, keep)], dim=1)
    vectors = torch.cat([_by_root(query, places), grad], dim=1)
    grad_rows = torch.bmm(factors.transpose(1, 2), vectors[..., : states.shape[1]])
    grad_states = torch.zeros_like(states).index_add_(0, places.index.flatten(), grad_rows.flatten(0, 1))
    # The angles' is never formed: their sine is summed with the factors first, then meets the vectors.
    slope = torch.bmm(torch.cat([factors, factors * places.elapsed.unsqueeze(1)], dim=1), angle.sin_())
    bias_grad, weight_grad = slope.view(len(grad), 2, factors.shape[1], len(weight)).unbind(1)
    times = vectors[..., -len(weight) :]
    return grad_query, grad_states, -(weight_grad * times).sum((0, 1)), -(bias_grad * times).sum((0, 1))


def add_rows(rows: Tensor, places: Tensor, table: Tensor) -> None:
    """Add rows [S, d] to a table [D, d] at their places, int64 [S]."""
    table.index_add_(0, places, rows)


def _neighbors(states: Tensor, places: Neighborhood, encoding: Tensor) -> Tensor:
    """Return the neighbours [S, K, d]: states, edge features and encoded time side by side."""
    parts = [states[places.index], encoding]
    if places.edge_features.shape[1]:
        parts.insert(1, places.edge_features[places.edge])
    return torch.cat(parts, dim=-1)


def _by_root(query: Tensor, places: Neighborhood) -> Tensor:
    """Return the query of every root, [S, H, d]."""
    return query[:, places.root].transpose(0, 1)


def _kept(attention: Tensor, keep: Tensor | None) -> Tensor:
    return attention if keep is None else attention * keep
