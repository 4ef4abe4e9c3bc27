"""The scores of links from what the weights make of their ends: ``w . relu(s + d) + b``.

On the CPU these are compiled loops (`link_loops`), forward and backward by hand; elsewhere they are tensor operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lightning_tgnn.checks import InvalidArgumentError, refusal


def link_scores(
    source: Tensor, others: Tensor, out: nn.Module, num_negatives: int, *, beside: bool
) -> tuple[Tensor, Tensor]:
    """Return the logits of the true destination of each event and of its negatives.

    Args:
        source: float [B, d], of the sources.
        others: float [B (1 + Q), d], of the destinations: first all true ones, then the negatives event by event; or,
            ``beside``, each event's true one and its negatives.
        out: Makes one number of d. On the CPU an `nn.Linear` in float32 is not called: its weights are read.
        num_negatives: Q, per event.
        beside: Whether an event's destinations are beside each other.

    Returns:
        float32 [B] and [B, Q].

    Raises:
        InvalidArgumentError: ``others`` is of another shape.
    """
    wanted = len(source) * (1 + num_negatives), source.shape[1]
    if others.shape != wanted:
        cure = "give a row for each event's true destination and for each of its negatives"
        raise InvalidArgumentError(refusal("destinations", f"of shape {list(wanted)}", list(others.shape), cure))
    # No subclass: it may do more than a product.
    if type(out) is nn.Linear and out.bias is not None and _compiled(source, others, out.weight, out.bias):
        return _LinkScores.apply(source, others, out.weight, out.bias, num_negatives, beside)
    return by_tensors(source, others, out, num_negatives, beside)


def _compiled(*tensors: Tensor) -> bool:
    in_float32 = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    return in_float32 and not torch.is_autocast_enabled("cpu")


def by_tensors(
    source: Tensor, others: Tensor, out: nn.Module, num_negatives: int, beside: bool
) -> tuple[Tensor, Tensor]:
    """Return what `link_scores` does."""
    events, width = source.shape
    if beside:
        true, negatives = others.view(events, 1 + num_negatives, width).split([1, num_negatives], dim=1)
        true = true.squeeze(1)
    else:
        # Split, not sliced: the gradient is put together in one go.
        true, negatives = others.split([events, events * num_negatives])
        negatives = negatives.view(events, num_negatives, width)
    true_scores = out(torch.relu(source + true)).squeeze(-1)
    negative_scores = out(torch.relu(source.unsqueeze(1) + negatives)).squeeze(-1)
    return true_scores.float(), negative_scores.float()


class _LinkScores(torch.autograd.Function):
    """Keeps what the weights made of both ends, and no hidden row: the backward pass forms these again."""

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, others: Tensor, weight: Tensor, bias: Tensor, num_negatives: int, beside: bool
    ) -> tuple[Tensor, Tensor]:
        # Imports the compiler: only where it is used.
        from lightning_tgnn.models.memory import link_loops
        from lightning_tgnn.models.memory.loop_threads import use_torch_threads

        use_torch_threads()
        source, others = source.contiguous(), others.contiguous()
        scores = source.new_empty(len(source)), source.new_empty(len(source), num_negatives)
        given = (tensor.detach().numpy() for tensor in (source, others, weight, bias))
        link_loops.forward(*given, beside, *(tensor.numpy() for tensor in scores))
        ctx.save_for_backward(source, others, weight)
        ctx.beside = beside
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from lightning_tgnn.models.memory import link_loops
        from lightning_tgnn.models.memory.loop_threads import use_torch_threads

        source, others, weight = ctx.saved_tensors
        true_scores, negative_scores = (grad.contiguous() for grad in grads)
        to_weight = source.new_empty(use_torch_threads(), weight.shape[1])
        results = torch.empty_like(source), torch.empty_like(others), to_weight
        given = (tensor.detach().numpy() for tensor in (true_scores, negative_scores, source, others, weight))
        link_loops.backward(*given, ctx.beside, *(tensor.numpy() for tensor in results))
        to_bias = (true_scores.sum() + negative_scores.sum()).view(1)
        return results[0], results[1], to_weight.sum(0, keepdim=True), to_bias, None, None
