"""Rows as they were when a snapshot was taken. A row is kept before its first later write, not all rows at once."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from lightning_tgnn.types import StateRows


class OldRows:
    """The rows of some tables as they are now, whatever is written to the tables later.

    Call `keep` before each write to the tables. An evaluation writes only to the nodes of its own split, whereas a copy
    of all rows would take as much memory again as node state.

    Args:
        rows: The tables of all rows.
    """

    def __init__(self, rows: StateRows) -> None:
        # Written to later, and perhaps outside the inference mode of who asks: tensors made there could not be.
        with torch.inference_mode(False):
            self._is_kept = torch.zeros(len(rows.memory), dtype=torch.bool, device=rows.memory.device)
        self._kept: list[tuple[Tensor, StateRows]] = []

    def keep(self, rows: StateRows, nodes: Tensor | None = None) -> None:
        """Keep the rows of distinct ``nodes`` (int64 [n], by default all) that have not been written to before."""
        new = (~self._is_kept).nonzero().squeeze(1) if nodes is None else nodes[~self._is_kept[nodes]]
        if len(new):
            self._is_kept[new] = True
            self._kept.append(
                (new, StateRows(**{name: table.index_select(0, new) for name, table in _tables(rows).items()}))
            )

    @property
    def nodes(self) -> Tensor:
        """int64 [n], the distinct nodes whose rows are kept."""
        return self._is_kept.nonzero().squeeze(1)

    def put_back(self, rows: StateRows) -> None:
        """Write the rows to the tables."""
        for nodes, kept in self._kept:
            for name, table in _tables(rows).items():
                table.index_copy_(0, nodes, getattr(kept, name))

    def whole(self, rows: StateRows) -> StateRows:
        """Return all rows as they were, in tables of their own."""
        copy = StateRows(**{name: table.clone() for name, table in _tables(rows).items()})
        self.put_back(copy)
        return copy


def _tables(rows: StateRows) -> dict[str, Tensor]:
    return {field.name: getattr(rows, field.name) for field in fields(rows)}
