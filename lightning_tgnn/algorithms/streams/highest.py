"""The highest scores of every row, with an order among equal scores."""

from __future__ import annotations

from torch import Tensor


def highest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k`` highest scores of every row and their columns; equal scores come in the order of their columns.

    Args:
        scores: [S, C].
        k: 1 to C.

    Returns:
        The scores, [S, k], descending, and the columns, int64 [S, k].

    >>> import torch
    >>> highest(torch.tensor([[3.0, 5.0, 3.0, 3.0, 5.0]]), 3)
    (tensor([[5., 5., 3.]]), tensor([[1, 4, 0]]))
    """
    best, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    # Among equals torch chooses as it likes. That is put right below, unless it has left one out for a later one.
    may_lack_one = best[:, k - 1] == best[:, -1]
    in_order = scores[may_lack_one].argsort(dim=1, descending=True, stable=True)
    columns[may_lack_one] = in_order[:, : columns.shape[1]]
    columns = columns[:, :k].sort(dim=1).values
    best, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return best, columns.gather(1, order)
