"""A fetch from a sharded store under way: rows that are here, rows that were kept, rows that travel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_tgnn.comm import PendingRows
from lightning_tgnn.types import StateRows

if TYPE_CHECKING:
    from lightning_tgnn.state.sharded import ShardedStateStore


class RowsAhead:
    """Rows of the next step under way."""

    def __init__(self, nodes: Tensor, handle: RowFetch) -> None:
        self.nodes, self._order = nodes.sort()
        self.handle = handle
        self._rows: Tensor | None = None

    def find(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of ``nodes`` are here, bool [U], and where, int64 [U]."""
        place = torch.searchsorted(self.nodes, nodes).clamp_(max=max(len(self.nodes) - 1, 0))
        here = self.nodes[place] == nodes if len(self.nodes) else torch.zeros_like(nodes, dtype=torch.bool)
        return here, place

    def read(self, place: Tensor) -> Tensor:
        """Return packed rows by their places."""
        if self._rows is None:
            self._rows = self.handle.packed()
        return self._rows[self._order[place]]


class RowFetch:
    """A fetch under way: rows that are here, rows that were kept, rows that travel."""

    pending: PendingRows | None = None

    def __init__(self, store: ShardedStateStore, nodes: Tensor, ahead: RowsAhead | None) -> None:
        self._store, self._device, self._ahead = store, nodes.device, ahead
        nodes = nodes.to(store.owner.device)
        own = store.owner[nodes] == store.exchange.rank
        self._own, remote = own.nonzero().squeeze(1), (~own).nonzero().squeeze(1)
        self._own_nodes = nodes[self._own]
        self._places: list[Tensor] = [self._own]
        if ahead is not None:
            here, place = ahead.find(nodes[remote])
            self._ahead_place = place[here]
            self._places.append(remote[here])
            remote = remote[~here]
        slots = store.cache.find(nodes[remote])
        kept = slots >= 0
        self._kept = store.cache.read(slots[kept])  # at once: what is dropped later must not be lost here
        self._places += [remote[kept], remote[~kept]]
        self.missing = nodes[remote[~kept]]
        store.asked += len(remote)
        store.found += len(self._kept)
        # The order in which rows will arrive: owner by owner.
        self.missing_order = store.owner[self.missing].argsort(stable=True)

    def packed(self) -> Tensor:
        """Return the packed rows of the remote nodes, in the order asked for."""
        assert not len(self._own)
        rows = torch.cat(self._remote())
        return torch.empty_like(rows).index_copy_(0, torch.cat(self._places[1:]), rows)

    def _remote(self) -> list[Tensor]:
        found = [] if self._ahead is None else [self._ahead.read(self._ahead_place)]
        arrived = self._kept[:0]
        if self.pending is not None:
            data = self.pending.wait()
            arrived = torch.empty_like(data).index_copy_(0, self.missing_order, data)
            self._store.cache.keep(self.missing, arrived)
            self.pending = None
        return [*found, self._kept, arrived]

    def wait(self) -> StateRows:
        """Return the rows."""
        store = self._store
        local = store.local.fetch(store.local_row[self._own_nodes]).wait()
        remote = store.row_codec.unpack(torch.cat(self._remote()))
        back = torch.cat(self._places).argsort()
        joined = {
            name: torch.cat([getattr(local, name), getattr(remote, name)]).index_select(0, back) for name in vars(local)
        }
        return StateRows(**joined).to(self._device)
