"""Undo a change of the state that has broken off."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class OldTableRows:
    """Rows of tables as they were before they were first written to.

    Args:
        tables: [N, ...] each; written to in place.
    """

    def __init__(self, tables: Sequence[Tensor]) -> None:
        self._tables = tables
        self._kept: list[tuple[Tensor, list[Tensor]]] = []
        self._is_kept: Tensor | None = None

    def keep(self, nodes: Tensor) -> None:
        """Keep the rows of distinct nodes, int64 [n], on the CPU, that are about to be written to."""
        if self._kept and self._is_kept is None:  # one batch needs no look at all nodes
            self._is_kept = torch.zeros(len(self._tables[0]), dtype=torch.bool)
            self._is_kept[self._kept[0][0]] = True
        if self._is_kept is not None:
            nodes = nodes[~self._is_kept[nodes]]
            self._is_kept[nodes] = True
        self._kept.append((nodes, [table[nodes.to(table.device)] for table in self._tables]))

    def kept_of(self, place: int) -> list[Tensor]:
        """Return the rows that are kept of one of the tables."""
        return [rows[place] for _, rows in self._kept]

    def put_back(self) -> list[Tensor]:
        """Write the rows to the tables, and return whose they are; may be called again where it has broken off."""
        for nodes, kept in self._kept:
            for table, rows in zip(self._tables, kept, strict=True):
                table[nodes.to(table.device)] = rows
        return [nodes for nodes, _ in self._kept]


class Change:
    """A change in several places that comes about in all of them, or in none.

    Every place says first how it is undone. What has broken off can be undone later, and more than once: Ctrl-C may
    come while it is being undone.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Have something called if the change is undone, before what was given earlier."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Undo what has been changed."""
        for undo in reversed(self._undo):
            undo()
