"""Rows of other ranks that a rank keeps because nobody has changed them since it fetched them."""

from __future__ import annotations

import torch
from torch import Tensor


class RowCache:
    """A bounded table of packed rows; the least recently used make room.

    Args:
        num_nodes: Nodes are ``0 .. num_nodes - 1``.
        row_bytes: Bytes of a packed row.
        capacity_bytes: Bytes that the table may take.
        device: Where it is.
    """

    def __init__(self, num_nodes: int, row_bytes: int, capacity_bytes: int, device: torch.device | str = "cpu") -> None:
        self.capacity = min(capacity_bytes // max(row_bytes, 1), num_nodes)
        self._rows = torch.empty(self.capacity, row_bytes, dtype=torch.uint8, device=device)
        self._node = torch.full((self.capacity,), -1, dtype=torch.int64, device=device)
        self._used = torch.zeros(self.capacity, dtype=torch.int64, device=device)
        self._slot = torch.full((num_nodes if self.capacity else 0,), -1, dtype=torch.int64, device=device)
        self._clock = 0

    def find(self, nodes: Tensor) -> Tensor:
        """Return the slots, int64 [U], of distinct nodes, -1 where there is none, and mark them as used."""
        self._clock += 1
        if not self.capacity:
            return torch.full_like(nodes, -1)
        slots = self._slot[nodes]
        self._used[slots[slots >= 0]] = self._clock
        return slots

    def read(self, slots: Tensor) -> Tensor:
        """Return rows, uint8 [n, bytes], by their slots."""
        return self._rows.index_select(0, slots)

    def keep(self, nodes: Tensor, rows: Tensor) -> None:
        """Take in the rows of distinct nodes that are not there, as far as they fit.

        What has been used at the latest `find` stays.
        """
        if not self.capacity:
            return
        idle = self._used.masked_fill(self._node < 0, -1)
        count = min(len(nodes), int((idle < self._clock).sum()))
        if not count:
            return
        nodes, rows = nodes[:count], rows[:count]
        slots = idle.topk(count, largest=False).indices
        replaced = self._node[slots]
        self._slot[replaced[replaced >= 0]] = -1
        self._slot[nodes] = slots
        self._node[slots] = nodes
        self._used[slots] = self._clock
        self._rows.index_copy_(0, slots, rows)

    def drop(self, nodes: Tensor) -> None:
        """Forget rows that have changed."""
        if not self.capacity:
            return
        slots = self._slot[nodes]
        slots = slots[slots >= 0]
        self._slot[self._node[slots]] = -1
        self._node[slots] = -1

    def clear(self) -> None:
        """Forget everything."""
        self._slot.fill_(-1)
        self._node.fill_(-1)
