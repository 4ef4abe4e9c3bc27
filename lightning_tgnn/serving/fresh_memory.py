"""Node memory with pending mails applied, computed once per change."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from lightning_tgnn.tasks import MemoryTask
from lightning_tgnn.types import StateRows, UpdatedRows

_NODES_PER_PIECE = 16_384


class FreshMemory:
    """Every node's memory with its pending mails applied; asks the model only for nodes that have changed.

    Args:
        task: Its node state is in `task.state_store`.
    """

    def __init__(self, task: MemoryTask) -> None:
        self._task = task
        spec, device = task.state_spec, task.device
        self._memory = torch.zeros(spec.num_nodes, spec.memory_dim, device=device)
        self._time = torch.zeros(spec.num_nodes, dtype=torch.float64, device=device)
        self._stale = torch.ones(spec.num_nodes, dtype=torch.bool)
        self._refreshing = threading.Lock()

    def mark_changed(self, nodes: Tensor | slice = slice(None)) -> None:
        """Forget the memory of ``nodes``, or of all."""
        self._stale[nodes] = True

    def read(self, nodes: Tensor) -> UpdatedRows:
        """Return the rows of distinct nodes (int64 [U], on the CPU)."""
        with self._refreshing:  # rows that are read by others meanwhile are not among them
            for piece in nodes[self._stale[nodes]].split(_NODES_PER_PIECE):
                self._refresh(piece)
        index = nodes.to(self._memory.device)
        return UpdatedRows(self._memory.index_select(0, index), self._time[index])

    def _refresh(self, nodes: Tensor) -> None:
        index = nodes.to(self._memory.device)
        rows = self._task.fetch(index).wait()
        self._memory[index], self._time[index] = rows.memory, rows.memory_time
        # A row without mail stays as it is, and most of a large catalogue has none.
        has_mail = (rows.mail_count > 0).nonzero().squeeze(1)
        updated = self._task.apply_mail(StateRows(*(table[has_mail] for table in vars(rows).values())))
        self._memory[index[has_mail]], self._time[index[has_mail]] = updated.memory, updated.memory_time
        self._stale[nodes] = False
