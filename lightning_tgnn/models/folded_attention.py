"""Attention over neighbours with the projections folded into the query, forward and backward by hand.

For a neighbour ``x = [h, e, cos(phi)]``, ``q . (W x) = (W^T q) . x`` and ``sum a W x = W (sum a x)``: one product with
``W`` per root in place of one per neighbour. What is left is memory traffic, so the three parts of ``x`` are never
concatenated, buffers are reused, and nothing is computed that the backward pass does not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.models.time_encoding import phase, phase_gradient


@dataclass(frozen=True)
class Neighborhood:
    """Where the neighbours of S roots are found.

    Attributes:
        index: int64 [S, K], rows of the node states.
        edge: int64 [S, K], rows of ``edge_features``; [0, 0] without edge features.
        elapsed: float32 [S, K], time since the neighbour's event, in the time encoder's unit.
        mask: bool [S, K].
        edge_features: float32 [V, d_edge].
    """

    index: Tensor
    edge: Tensor
    elapsed: Tensor
    mask: Tensor
    edge_features: Tensor


def folded_attention(
    query: Tensor, states: Tensor, weight: Tensor, bias: Tensor, neighborhood: Neighborhood, keep: Tensor | None = None
) -> Tensor:
    """Return the attention-weighted sum of the neighbours, per head.

    Args:
        query: float32 [S, H, d], folded queries, already scaled; ``d = d_state + d_edge + d_time``.
        states: float32 [U, d_state], node states.
        weight: float32 [d_time], of the time encoding.
        bias: float32 [d_time], of the time encoding.
        neighborhood: Whose rows to attend to.
        keep: float32 [S, H, K], dropout factors of the attention weights.

    Returns:
        float32 [S, H, d]; zeros for a root without neighbours.
    """
    index, edge, elapsed, mask = neighborhood.index, neighborhood.edge, neighborhood.elapsed, neighborhood.mask
    features = neighborhood.edge_features
    return _FoldedAttention.apply(query, states, weight, bias, features, index, edge, elapsed, mask, keep)


def _split(tensor: Tensor, parts: list[Tensor]) -> list[Tensor]:
    return list(tensor.split([part.shape[-1] for part in parts], dim=-1))


def _dot_parts(rows: Tensor, parts: list[Tensor]) -> Tensor:
    """Return ``rows . x`` for every neighbour: [S, H, d] and parts of [S, K, d] to [S, H, K]."""
    slices = _split(rows, parts)
    total = torch.bmm(slices[0], parts[0].transpose(1, 2))
    for piece, part in zip(slices[1:], parts[1:], strict=True):
        total.baddbmm_(piece, part.transpose(1, 2))
    return total


def _sum_parts(weights: Tensor, parts: list[Tensor]) -> Tensor:
    """Return ``sum_k weights x`` : [S, H, K] and parts of [S, K, d] to [S, H, d]."""
    return torch.cat([torch.bmm(weights, part) for part in parts], dim=-1)


class _FoldedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        states: Tensor,
        weight: Tensor,
        bias: Tensor,
        features: Tensor,
        index: Tensor,
        edge: Tensor,
        elapsed: Tensor,
        mask: Tensor,
        keep: Tensor | None,
    ) -> Tensor:
        reduced = phase(elapsed, weight, bias)
        parts = [_rows(states, index), reduced.cos()]
        if features.shape[-1]:
            parts.insert(1, _rows(features, edge))
        hidden = ~mask.unsqueeze(1)
        attention = _dot_parts(query, parts).masked_fill_(hidden, -torch.inf).softmax(-1)
        attention.masked_fill_(hidden, 0)  # also turns the NaN of a root without neighbours into 0
        kept = attention if keep is None else attention * keep
        ctx.num_states = states.shape[0]
        ctx.save_for_backward(query, index, elapsed, attention, kept, keep, reduced, *parts)
        return _sum_parts(kept, parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, index, elapsed, attention, kept, keep, reduced, *parts = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_attention = _dot_parts(grad, parts)
        if keep is not None:
            grad_attention.mul_(keep)
        shared = (grad_attention * attention).sum(-1, keepdim=True)
        grad_scores = grad_attention.sub_(shared).mul_(attention)

        grad_query = _sum_parts(grad_scores, parts)
        query_parts, grad_parts = _split(query, parts), _split(grad, parts)
        grad_states = _grad_part(kept, grad_parts[0], grad_scores, query_parts[0]).flatten(0, 1)
        states = grad_states.new_zeros(ctx.num_states, grad_states.shape[-1])
        states.index_add_(0, index.flatten(), grad_states)
        grad_time = _grad_part(kept, grad_parts[-1], grad_scores, query_parts[-1])
        grad_weight, grad_bias = phase_gradient(reduced.clone(), elapsed, grad_time)
        return grad_query, states, grad_weight, grad_bias, *(None,) * 6


def _rows(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.flatten()).view(*index.shape, table.shape[-1])


def _grad_part(kept: Tensor, grad: Tensor, grad_scores: Tensor, query: Tensor) -> Tensor:
    """Return the gradient of one part of the neighbours, [S, K, d]: through the sum and through the scores."""
    return torch.bmm(kept.transpose(1, 2), grad).baddbmm_(grad_scores.transpose(1, 2), query)
