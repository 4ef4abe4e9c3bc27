"""Sums that decay with time: what is added at one time is worth less at a later one.

A value ``x`` of time ``t`` stands for ``exp(-rate (T - t)) x`` at any later time ``T``. So values of different times
can be added in any order, with the same sum up to rounding: on one process, on several, and whenever somebody reads
it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import organize


def decayed(values: Tensor, elapsed: Tensor, rates: tuple[float, ...]) -> Tensor:
    """Return values as they are after some time.

    Args:
        values: float32 [n, L d], blocks of equal width, one for each rate.
        elapsed: float64 [n], at least 0.
        rates: L rates per unit of time.

    Returns:
        float32 [n, L d].

    >>> decayed(torch.ones(1, 2), torch.tensor([2.0]).double(), (0.0, 0.5))
    tensor([[1.0000, 0.3679]])
    """
    blocks = values.unflatten(1, (len(rates), values.shape[1] // len(rates)))
    return (blocks * factors(elapsed, rates).unsqueeze(2)).flatten(1)


def factors(elapsed: Tensor, rates: tuple[float, ...]) -> Tensor:
    """Return ``exp(-rate elapsed)``, float32 [..., L], of elapsed times, float64 [...]."""
    # Rates are filled in, not copied: a copy from the host would make a GPU wait.
    exponents = [elapsed * -rate for rate in rates]
    return torch.stack(exponents, dim=-1).exp_().float()


def added(
    values: Tensor, times: Tensor, more: Tensor, more_times: Tensor, rates: tuple[float, ...]
) -> tuple[Tensor, Tensor]:
    """Return the sums of two values of each row, float32 [n, L d], and their times, float64 [n]: the later ones.

    Arguments are as in `decayed`; times are float64 [n].

    >>> one, other = (torch.ones(1, 1), torch.zeros(1).double()), (torch.ones(1, 1), torch.ones(1).double())
    >>> added(*one, *other, (0.5,))
    (tensor([[1.6065]]), tensor([1.], dtype=torch.float64))
    """
    latest = torch.maximum(times, more_times)
    return decayed(values, latest - times, rates) + decayed(more, latest - more_times, rates), latest


def sum_by_node(
    nodes: Tensor, values: Tensor, times: Tensor, rates: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return distinct nodes, int64 [m], the sums of their values, float32 [m, L d], and the latest times, float64 [m].

    Args:
        nodes: int64 [n], repeated at will.
        values: float32 [n, L d].
        times: float64 [n].
        rates: L rates per unit of time.
    """
    once = organize(nodes)
    position = once.position.to(values.device)
    latest = times.new_full((len(once.distinct),), -torch.inf).scatter_reduce_(0, position, times, "amax")
    sums = values.new_zeros(len(latest), values.shape[1])
    sums.index_add_(0, position, decayed(values, latest[position] - times, rates))
    return once.distinct, sums, latest
