"""The latest events of every node, kept up to date as events come."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.algorithms.dedup import organize
from lightning_tgnn.data import EventStore, TemporalAdjacency

EMPTY = -1


class RecentNeighbors:
    """The K latest events of every node, the latest in column 0: all that a query at a later time may see.

    Attributes:
        tables: Rows per node. ``neighbor`` int64 [N, K], the event's other end, -1 in empty places; ``time`` float64
            [N, K], since the first event of the stream; ``row`` int64 [N, K], where its features are kept.
    """

    def __init__(self, tables: dict[str, Tensor]) -> None:
        self.tables = tables

    @classmethod
    def empty(cls, num_nodes: int, num_neighbors: int) -> RecentNeighbors:
        """Return the tables before the first event."""
        shape = (num_nodes, num_neighbors)
        integers = {name: torch.full(shape, EMPTY, dtype=torch.int64) for name in ("neighbor", "row")}
        return cls({**integers, "time": torch.zeros(shape, dtype=torch.float64)})

    @classmethod
    def of_stream(
        cls, store: EventStore, adjacency: TemporalAdjacency, before: int, num_neighbors: int
    ) -> tuple[RecentNeighbors, Tensor]:
        """Return the tables after the first ``before`` events, and the events (int64 [V]) that their rows stand for."""
        nodes = torch.arange(store.num_nodes)
        found = adjacency.most_recent(nodes, torch.full_like(nodes, before), num_neighbors)
        kept = found.events[found.mask]
        events, rows = kept.unique(return_inverse=True)
        recent = cls.empty(store.num_nodes, num_neighbors)
        recent.tables["neighbor"][found.mask] = found.nodes[found.mask]
        recent.tables["time"][found.mask] = store.time[kept] - store.time[0]
        recent.tables["row"][found.mask] = rows
        return recent, events

    def clear(self) -> None:
        """Return to the tables before the first event."""
        for name, table in self.tables.items():
            table.fill_(0 if name == "time" else EMPTY)

    @property
    def num_neighbors(self) -> int:
        """K."""
        return self.tables["neighbor"].shape[1]

    def before_each(self, ends: Tensor) -> Tensor:
        """Return the neighbours that the ends of new events had before each of them.

        Args:
            ends: int64 [B, 2], source and destination of every event, in order.

        Returns:
            int64 [B, 2, K], the end itself in empty places.
        """
        nodes, position, window = self._window(ends)
        before = torch.arange(len(ends)).add_(self.num_neighbors).repeat_interleave(2)
        found = window.most_recent(position, before, self.num_neighbors)
        return torch.where(found.mask, found.nodes, nodes[position].unsqueeze(1)).view(len(ends), 2, -1)

    def add(self, ends: Tensor, time: Tensor, rows: Tensor) -> None:
        """Take in new events.

        Args:
            ends: int64 [B, 2], in order.
            time: float64 [B].
            rows: int64 [B], where their features are kept.
        """
        nodes, _, window = self._window(ends)
        span = torch.full_like(nodes, window.span)
        found = window.most_recent(torch.arange(len(nodes)), span, self.num_neighbors)
        is_new = found.events >= self.num_neighbors
        event = (found.events - self.num_neighbors).clamp_(min=0)
        column = (self.num_neighbors - 1 - found.events).clamp_(min=0)
        kept = {name: table[nodes].gather(1, column) for name, table in self.tables.items()}
        self.tables["neighbor"][nodes] = found.nodes.masked_fill(~found.mask, EMPTY)
        self.tables["time"][nodes] = torch.where(is_new, time[event], kept["time"]).mul_(found.mask)
        self.tables["row"][nodes] = torch.where(is_new, rows[event], kept["row"]).masked_fill_(~found.mask, EMPTY)

    def _window(self, ends: Tensor) -> tuple[Tensor, Tensor, TemporalAdjacency]:
        """Return the distinct ends, where each end is among them, and an adjacency of what they had and now get.

        Its nodes are positions among the distinct ends. Event ``K + j`` is the ``j``-th new one, and ``K - 1 - k`` what
        column ``k`` holds.
        """
        width, count = self.num_neighbors, len(ends)
        own = organize(ends.flatten())
        span = width + count
        starts = torch.arange(len(own.distinct) + 1).mul_(span)
        past = self.tables["neighbor"][own.distinct]
        past_keys = starts[:-1].unsqueeze(1) + torch.arange(width - 1, -1, -1)
        new_keys = starts[own.position.view(count, 2)] + torch.arange(width, span).unsqueeze(1)
        is_entry = torch.ones(count, 2, dtype=torch.bool)
        is_entry[:, 1] = ends[:, 0] != ends[:, 1]  # a self loop is one entry
        keys, order = torch.cat([past_keys[past >= 0], new_keys[is_entry]]).sort()
        neighbors = torch.cat([past[past >= 0], ends.flip(1)[is_entry]])[order]
        indptr = torch.searchsorted(keys, starts)
        return own.distinct, own.position, TemporalAdjacency(indptr, keys, neighbors, span)
