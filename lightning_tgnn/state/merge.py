"""Updates of several ranks made one: the latest event wins."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.algorithms.dedup import organize


def latest(nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return distinct nodes and the last place of each in ``nodes`` (int64 [L]).

    Ranks hold consecutive events, so of updates in the order of the ranks the last is that of the latest event.
    """
    found = organize(nodes)
    return found.distinct, found.last


def by_owner(owner: Tensor, ranks: int) -> tuple[Tensor, list[int]]:
    """Return the order, int64 [L], that puts entries of ``owner`` (int64 [L]) together, and the count of each rank."""
    order = owner.argsort(stable=True)
    return order, torch.bincount(owner, minlength=ranks).tolist()
