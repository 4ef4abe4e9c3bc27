"""Attention over neighbours with the projections folded into the query, forward and backward by hand.

For a neighbour ``x = [h, e, cos(theta)]``, ``q . (W x) = (W^T q) . x`` and ``sum a W x = W (sum a x)``: one product
with ``W`` per root in place of one per neighbour. What is left is memory traffic. The backward pass gathers and encodes
the neighbours again, which is cheaper than to write them out and read them back.

On the CPU the loops are compiled (`attention_loops`), elsewhere they are tensor operations (`attention_tensors`).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_tgnn.models.memory import attention_tensors
from lightning_tgnn.models.memory.attention_places import Neighborhood


def folded_attention(
    query: Tensor, states: Tensor, weight: Tensor, bias: Tensor, neighborhood: Neighborhood, keep: Tensor | None = None
) -> Tensor:
    """Return the attention-weighted sum of the neighbours, per head.

    Args:
        query: float32 [H, D, d], folded queries, already scaled; ``d = d_state + d_edge + d_time``.
        states: float32 [U, d_state], node states.
        weight: float32 [d_time], of the time encoding.
        bias: float32 [d_time], of the time encoding.
        neighborhood: Which roots attend to which rows.
        keep: float32 [S, H, K], dropout factors of the attention weights.

    Returns:
        float32 [H, S, d]; zeros for a root without neighbours.
    """
    return _FoldedAttention.apply(query, states, weight, bias, neighborhood, keep)


class _FoldedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        states: Tensor,
        weight: Tensor,
        bias: Tensor,
        neighborhood: Neighborhood,
        keep: Tensor | None,
    ) -> Tensor:
        mixed, attention = _implementation(query).forward(query, states, weight, bias, neighborhood, keep)
        ctx.save_for_backward(query, states, weight, bias, keep, attention)
        ctx.neighborhood = neighborhood
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, states, weight, bias, keep, attention = ctx.saved_tensors
        gradients = _implementation(query).backward(
            grads[0], query, states, weight, bias, ctx.neighborhood, keep, attention
        )
        return *gradients, None, None


def _implementation(query: Tensor) -> ModuleType:
    if query.device.type != "cpu":
        return attention_tensors
    from lightning_tgnn.models.memory import attention_cpu  # imports the compiler: only where it is used

    return attention_cpu
