"""Features of events that at least one node still has among its latest."""

from __future__ import annotations

import torch
from torch import Tensor


class FeatureLog:
    """Rows of edge features in a table that grows, and that drops rows without a reference.

    Args:
        rows: float32 [V, d_edge], the first rows; width 0 if events have no features.
    """

    def __init__(self, rows: Tensor) -> None:
        self.table = rows if len(rows) else rows.new_zeros(1, rows.shape[1])  # masked places read row 0
        self._used = len(rows)

    @property
    def width(self) -> int:
        """Features per event."""
        return self.table.shape[1]

    def append(self, features: Tensor) -> Tensor:
        """Keep features (float32 [B, d_edge]) and return their rows, int64 [B]."""
        end = self._used + len(features)
        if end > len(self.table):
            grown = self.table.new_zeros(max(end, 2 * len(self.table)), self.width)
            grown[: self._used] = self.table[: self._used]
            self.table = grown
        self.table[self._used : end] = features.to(self.table.device)
        rows = torch.arange(self._used, end)
        self._used = end
        return rows

    def has_room(self, count: int) -> bool:
        """Whether ``count`` more rows leave the table as it is."""
        return self._used + count <= len(self.table)

    def mark(self) -> int:
        """Return where the next row goes, for `rewind`."""
        return self._used

    def rewind(self, mark: int) -> None:
        """Drop the rows that were appended since `mark`."""
        self._used = mark

    def forget_others(self, tables: list[Tensor]) -> None:
        """Keep only the rows that ``tables`` (int64, -1 in empty places) refer to, and renumber these in place."""
        masks = [rows >= 0 for rows in tables]
        used = [rows[mask] for rows, mask in zip(tables, masks, strict=True)]
        kept, renumbered = torch.cat(used).unique(return_inverse=True)
        table = self.table.new_zeros(max(2 * len(kept), 1), self.width)
        table[: len(kept)] = self.table[kept.to(self.table.device)]
        for rows, mask, own in zip(tables, masks, renumbered.split([len(rows) for rows in used]), strict=True):
            rows[mask] = own
        self.table, self._used = table, len(kept)

    def held(self) -> Tensor:
        """Return the rows in use, float32 [V, d_edge]."""
        return self.table[: self._used]
