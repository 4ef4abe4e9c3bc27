"""Attention over neighbours with the projections folded into the query, forward and backward by hand.

For a neighbour ``x = [h, e, cos(theta)]``, ``q . (W x) = (W^T q) . x`` and ``sum a W x = W (sum a x)``: one product
with ``W`` per root in place of one per neighbour. What is left is memory traffic. The backward pass gathers and encodes
the neighbours again, which is cheaper than to write them out and read them back. All products with the roots' own
states are one, each way.

On the CPU the loops are compiled (`attention_loops`), elsewhere they are tensor operations (`attention_tensors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_tgnn.models.memory import attention_tensors
from lightning_tgnn.models.memory.attention_places import Neighborhood
from lightning_tgnn.models.memory.operands import operand, operand_like, operand_type


class AttentionWeights(NamedTuple):
    """The weights of an attention of H heads of width p over neighbours of width ``n = d_state + d_edge + d_time``.

    Attributes:
        query: float32 [H p, d_state].
        query_bias: float32 [H p].
        query_time: float32 [H p, d_time].
        key: float32 [H, p, n].
        value: float32 [H, n, p].
        from_neighbors: float32 [d_emb, H p].
        from_own: float32 [d_emb, d_state].
        own_bias: float32 [d_emb].
        frequency: float32 [d_time], of the time encoding.
        phase: float32 [d_time], of the time encoding.
    """

    query: Tensor
    query_bias: Tensor
    query_time: Tensor
    key: Tensor
    value: Tensor
    from_neighbors: Tensor
    from_own: Tensor
    own_bias: Tensor
    frequency: Tensor
    phase: Tensor


def folded_attention(
    states: Tensor,
    distinct: int,
    pieces: Sequence[Neighborhood],
    weights: AttentionWeights,
    keep: Sequence[Tensor | None],
) -> Tensor:
    """Return what a root's neighbours say, and its own state with it: ``W_n [sum_k a_k V x_k] + W_o h + b``.

    Weights ``a`` are the softmax of ``q . (K x_k)`` with ``q = (W_q h + b_q + W_t phi(0)) / sqrt(p)``, per head.

    Args:
        states: float32 [U, d_state], node states.
        distinct: Nodes that are roots, the first of the states.
        pieces: Which roots attend to which rows, S of them in all; one piece where a gradient is wanted.
        weights: Of all products.
        keep: float32 [S, H, K] of each piece, dropout factors of the attention weights.

    Returns:
        float [S, d_emb]; a root without neighbours has its own state only.
    """
    return _FoldedAttention.apply(states, distinct, pieces, keep, *weights)


class _FoldedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        distinct: int,
        pieces: Sequence[Neighborhood],
        keep: Sequence[Tensor | None],
        *weights: Tensor,
    ) -> Tensor:
        given, loops = AttentionWeights(*weights), _implementation(states)
        heads, width, _ = given.key.shape
        dtype, states = operand_type(states), states.float()
        own = operand(states[:distinct], dtype)
        scale, at_zero = width**-0.5, given.phase.cos()
        for_own = torch.cat([given.query * scale, given.from_own]).to(dtype)
        bias = torch.cat([torch.addmv(given.query_bias, given.query_time, at_zero) * scale, given.own_bias])
        own_part = torch.addmm(bias.to(dtype), own, for_own.t())
        asked = own_part[:, : heads * width].unflatten(1, (heads, width)).transpose(0, 1)
        key, value, from_neighbors = (part.to(dtype) for part in (given.key, given.value, given.from_neighbors))
        query = torch.bmm(asked, key).float()
        answers = []
        for places, kept in zip(pieces, keep, strict=True):
            # The core stays in float32 under autocast: its cost is memory traffic, which casting would add to.
            with torch.autocast(states.device.type, enabled=False):
                mixed, attention = loops.forward(query, states, given.frequency, given.phase, places, kept)
            mixed = operand(mixed, dtype)
            said = torch.bmm(mixed, value).transpose(0, 1).flatten(1)
            answer = torch.mm(said, from_neighbors.t())[: len(places.root)]
            answers.append(answer.add_(own_part[:, heads * width :].index_select(0, places.root)))
        if len(pieces) == 1:
            for_loops = (query, states, given.frequency, given.phase, attention, keep[0])
            for_products = (own, asked, mixed, said, for_own, key, value, from_neighbors)
            ctx.save_for_backward(*for_loops, *for_products, given.query_time, at_zero)
            ctx.places, ctx.distinct = pieces[0], distinct
        return torch.cat(answers) if len(answers) > 1 else answers[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, states, frequency, phase, attention, kept, *saved = ctx.saved_tensors
        own, asked, mixed, said, for_own, key, value, from_neighbors, query_time, at_zero = saved
        places, (heads, width, _), scale = ctx.places, key.shape, key.shape[1] ** -0.5
        roots, queries, distinct, loops = len(places.root), heads * width, ctx.distinct, _implementation(states)
        grad = operand_like(grads[0], said)
        to_from_neighbors = torch.mm(grad.t(), said).float()
        to_said = torch.mm(grad, from_neighbors).unflatten(1, (heads, width)).transpose(0, 1)
        to_value = torch.bmm(mixed.transpose(1, 2), to_said).float()
        to_mixed = torch.bmm(to_said, value.transpose(1, 2))[:, :roots].float()
        with torch.autocast(states.device.type, enabled=False):
            to_query, to_states, to_frequency, to_phase = loops.backward(
                to_mixed, query, states, frequency, phase, places, kept, attention
            )
        to_query = to_query.to(own.dtype)
        to_key = torch.bmm(asked.transpose(1, 2), to_query).float()
        to_own = own.new_empty(len(own), len(for_own))
        to_asked = to_own[:, :queries].unflatten(1, (heads, width)).transpose(0, 1)
        torch.bmm(to_query, key.transpose(1, 2), out=to_asked)
        loops.add_rows(grad[:roots], places.root, to_own[:, queries:].zero_())
        to_states[:distinct] += torch.mm(to_own, for_own)[:distinct]
        to_for_own, to_bias = torch.mm(to_own.t(), own).float(), to_own.float().sum(0)
        to_query_bias = to_bias[:queries] * scale
        to_phase -= torch.mv(query_time.t(), to_query_bias) * phase.sin()
        return (
            *(to_states, None, None, None),
            to_for_own[:queries] * scale,
            to_query_bias,
            torch.outer(to_query_bias, at_zero),
            *(to_key, to_value, to_from_neighbors),
            to_for_own[queries:],
            to_bias[queries:],
            *(to_frequency, to_phase),
        )


def _implementation(states: Tensor) -> ModuleType:
    if states.device.type != "cpu":
        return attention_tensors
    from lightning_tgnn.models.memory import attention_cpu  # imports the compiler: only where it is used

    return attention_cpu
