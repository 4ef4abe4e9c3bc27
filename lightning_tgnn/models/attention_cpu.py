"""The folded attention on the CPU: compiled loops, the roots shared out over threads."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.models import attention_loops

if TYPE_CHECKING:
    from lightning_tgnn.models.folded_attention import Neighborhood

_MIN_ENTRIES_PER_THREAD = 500


def forward(
    query: Tensor, states: Tensor, weight: Tensor, bias: Tensor, places: Neighborhood, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums [S, H, d] and the attention weights [S, H, K]; arguments as in `folded_attention`."""
    heads, width = query.shape[1:]
    mixed = torch.empty(len(places.root), heads, width)
    attention = torch.empty(len(places.root), heads, places.mask.shape[1])
    arrays, lengths = _arrays(query, states, weight, bias, places, keep)
    outputs = (attention.numpy(), mixed.numpy())
    _run(lambda part, span: attention_loops.forward(*span, *arrays, *outputs), _spans(lengths))
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
    """Return the gradients of query, states, weight and bias, given that of the weighted sums, [S, H, d]."""
    arrays, lengths = _arrays(query, states, weight, bias, places, keep)
    # By query: no two threads then write to the same row of its gradient, since a part never ends within one.
    sorted_root, order = places.root.sort(stable=True)
    spans = _spans(lengths[order.numpy()], sorted_root.numpy())
    inputs = (*arrays, attention.numpy(), grad.contiguous().numpy())
    grad_query = torch.zeros_like(query, memory_format=torch.contiguous_format)
    # Of the rest every thread adds up its own, so that the sums do not depend on who comes first.
    totals = [torch.zeros(len(spans), *tensor.shape) for tensor in (states, weight, bias)]
    _run(
        lambda part, span: attention_loops.backward(
            *span, order.numpy(), *inputs, grad_query.numpy(), *(total[part].numpy() for total in totals)
        ),
        spans,
    )
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


def _spans(lengths: np.ndarray, groups: np.ndarray | None = None) -> list[tuple[int, int]]:
    """Cut the roots into a part per thread, with about as many neighbours each; ``groups`` are not cut apart."""
    entries = lengths.cumsum() + np.arange(1, len(lengths) + 1)  # a root without neighbours is some work, too
    total = int(entries[-1]) if len(entries) else 0
    parts = max(1, min(torch.get_num_threads(), total // _MIN_ENTRIES_PER_THREAD))
    bounds = np.searchsorted(entries, [total * part / parts for part in range(1, parts)])
    if groups is not None and len(bounds):
        bounds = np.searchsorted(groups, groups[bounds])
    return list(zip([0, *bounds.tolist()], [*bounds.tolist(), len(lengths)], strict=True))


def _run(work: Callable[[int, tuple[int, int]], Any], spans: list[tuple[int, int]]) -> None:
    """Call ``work(part, (start, stop))`` for every part, side by side; the first here, the others in threads."""
    threads = [Thread(target=work, args=(part, span)) for part, span in enumerate(spans) if part]
    for thread in threads:
        thread.start()
    work(0, spans[0])
    for thread in threads:
        thread.join()
