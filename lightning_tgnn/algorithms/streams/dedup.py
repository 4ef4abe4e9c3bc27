"""The redundancy-free organisation of a batch's vertices (Sven, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_TABLE_SLOTS_PER_ENTRY = 64


@dataclass(frozen=True)
class Organization:
    """The place of every entry of a vertex series among its distinct vertices.

    Attributes:
        distinct: int64 [U], V_u, the distinct vertices in first-seen order.
        last: int64 [U], the last position in the series at which each distinct vertex occurs.
        position: int64 [L], Psi, such that ``distinct[position]`` is the series.
    """

    distinct: Tensor
    last: Tensor
    position: Tensor


def organize(entries: Tensor) -> Organization:
    """Organise a vertex series without redundancy (Sven, Algorithm 2).

    The printed algorithm compares every entry with every distinct vertex. This function is linear on the CPU. On other
    devices it is linear if the vertices are dense enough for a table, and needs one sort otherwise. The result is the
    same. To get Phi, the interaction of the last occurrence of each vertex, index the interactions by ``last``.

    Args:
        entries: int64 [L], V_o.

    >>> organize(torch.tensor([7, 3, 7, 5])).distinct.tolist()
    [7, 3, 5]
    """
    return Organization(*(by_loop if entries.device.type == "cpu" else by_tensors)(entries))


def last_mails(ends: Tensor, neighbors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the distinct receivers of mails in first-seen order, and the side of the latest event that mails each.

    Within an event a node's own mail comes after the mails to its partner's neighbours.

    Args:
        ends: int64 [B, 2], source and destination of every event, on the CPU.
        neighbors: int64 [B, 2, K], the neighbours that either side mails as well, the side itself in empty places; None
            for none.

    Returns:
        The receivers, and ``event + side * B`` of each; both int64 [P].

    >>> nodes, source = last_mails(torch.tensor([[1, 2], [3, 1]]), torch.tensor([[[1], [4]], [[4], [2]]]))
    >>> nodes.tolist(), source.tolist()
    ([1, 4, 2, 3], [3, 1, 3, 1])
    """
    from lightning_tgnn.algorithms.streams import dedup_loops  # imports the compiler: only where it is used

    others = ends.new_empty(*ends.shape, 0) if neighbors is None else neighbors
    nodes, source = (ends.new_empty(ends.numel() + others.numel()) for _ in range(2))
    tensors = ends.contiguous(), others.contiguous(), nodes, source
    count = dedup_loops.last_mails(*(tensor.numpy() for tensor in tensors))
    return nodes[:count].clone(), source[:count].clone()


def by_loop(entries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return distinct, last and position of `organize`, for entries (int64 [L]) on the CPU."""
    from lightning_tgnn.algorithms.streams import dedup_loops

    distinct, last, position = (torch.empty_like(entries) for _ in range(3))
    tensors = entries.contiguous(), distinct, last, position
    count = dedup_loops.organize(*(tensor.numpy() for tensor in tensors))
    return distinct[:count].clone(), last[:count].clone(), position


def by_tensors(entries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return distinct, last and position of `organize`, for entries (int64 [L]) on any device."""
    first, last = _first_and_last(entries)
    is_first = _opens_its_value(first)
    seen = is_first.nonzero().squeeze(1)
    return entries[seen], last[seen], (is_first.cumsum(0) - 1)[first]


def first_positions(entries: Tensor) -> Tensor:
    """Return the positions, ascending, at which a value of ``entries`` (int64 [L]) occurs for the first time."""
    first, _ = _first_and_last(entries)
    return _opens_its_value(first).nonzero().squeeze(1)


def _opens_its_value(first: Tensor) -> Tensor:
    return first == torch.arange(first.numel(), device=first.device)


def _first_and_last(entries: Tensor) -> tuple[Tensor, Tensor]:
    """Return for every entry the first and the last position of its value, both int64 [L]."""
    if entries.numel() == 0:
        return entries, entries
    slots, num_slots = _slots(entries)
    positions = torch.arange(entries.numel(), device=entries.device)
    # Uninitialised on purpose: only the slots that occur are read, and those are overwritten first.
    table = positions.new_empty(num_slots)
    first = table.scatter_reduce_(0, slots, positions, "amin", include_self=False)[slots]
    last = table.scatter_reduce_(0, slots, positions, "amax", include_self=False)[slots]
    return first, last


def _slots(entries: Tensor) -> tuple[Tensor, int]:
    """Return a number for every entry, equal for equal values, and a bound on the numbers."""
    lowest, highest = torch.stack(entries.aminmax()).tolist()
    if highest - lowest < _TABLE_SLOTS_PER_ENTRY * entries.numel():
        return entries - lowest, highest - lowest + 1
    values, slots = torch.unique(entries, return_inverse=True)
    return slots, values.numel()
