"""What other ranks have kept of a rank's rows, known without being told: it follows from what was sent and written."""

from __future__ import annotations

import torch
from torch import Tensor


class KeptElsewhere:
    """Which of this rank's rows each other rank has in its `RowCache`, where that has a place for every node.

    A rank keeps all that it is sent until it changes, so whoever sends can keep the same books. Both sides have to
    note what was sent, changed and forgotten in the same order.

    Args:
        ranks: How many there are.
        rows: Of this rank.
        keeps: Whether ranks keep rows at all.
    """

    def __init__(self, ranks: int, rows: int, *, keeps: bool) -> None:
        self._has = torch.zeros(ranks if keeps else 0, rows, dtype=torch.bool)

    def lacking(self, ranks: Tensor, rows: Tensor) -> Tensor:
        """Return which rows, int64 [n], the rank of each, int64 [n], has not, bool [n]."""
        return ~self._has[ranks, rows] if len(self._has) else torch.ones_like(rows, dtype=torch.bool)

    def add(self, ranks: Tensor, rows: Tensor) -> None:
        """Note that rows go to the rank of each."""
        if len(self._has):
            self._has[ranks, rows] = True

    def drop(self, rows: Tensor) -> None:
        """Note that rows have changed."""
        self._has[:, rows] = False

    def clear(self) -> None:
        """Note that all ranks have forgotten everything."""
        self._has.fill_(False)


class Marks:
    """Tells which of some nodes are among others, in time proportional to both.

    Args:
        num_nodes: Nodes are ``0 .. num_nodes - 1``.
    """

    def __init__(self, num_nodes: int) -> None:
        self._marked = torch.zeros(num_nodes, dtype=torch.bool)

    def among(self, nodes: Tensor, others: Tensor) -> Tensor:
        """Return which of ``nodes``, int64 [n], are among ``others``, int64 [m], bool [n]."""
        self._marked[others] = True
        found = self._marked[nodes]
        self._marked[others] = False
        return found
