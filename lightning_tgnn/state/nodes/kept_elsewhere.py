"""Which of a rank's rows other ranks keep; it follows from the rows that were sent and written, without messages."""

from __future__ import annotations

import torch
from torch import Tensor


class KeptElsewhere:
    """Which of this rank's rows each other rank has in its `RowCache`, if that has a place for every node.

    A rank keeps every row that it receives until the row changes, so the sender can keep the same record. Both sides
    have to note sent, changed and forgotten rows in the same order.

    Args:
        ranks: How many there are.
        rows: Number of rows of this rank.
        keeps: Whether ranks keep rows at all.
    """

    def __init__(self, ranks: int, rows: int, *, keeps: bool) -> None:
        self._has = torch.zeros(ranks if keeps else 0, rows, dtype=torch.bool)

    def lacking(self, ranks: Tensor, rows: Tensor) -> Tensor:
        """Return which rows, int64 [n], are missing on the rank given for each, int64 [n]; bool [n]."""
        return ~self._has[ranks, rows] if len(self._has) else torch.ones_like(rows, dtype=torch.bool)

    def add(self, ranks: Tensor, rows: Tensor) -> None:
        """Note that each row goes to the rank given for it."""
        if len(self._has):
            self._has[ranks, rows] = True

    def drop(self, rows: Tensor) -> None:
        """Note that rows have changed."""
        self._has[:, rows] = False

    def clear(self) -> None:
        """Note that all ranks have forgotten everything."""
        self._has.fill_(False)


class Marks:
    """Tells which nodes of one list are in another, in time proportional to both lists.

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
