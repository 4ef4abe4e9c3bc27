"""The latest events of every node with their features, kept up to date as events come."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.dedup import organize
from lightning_tgnn.algorithms.streams.past import past_end
from lightning_tgnn.algorithms.streams.room import with_room
from lightning_tgnn.data import EventStore, TemporalAdjacency

EMPTY = -1


class Moment(NamedTuple):
    """The time of the latest event, and the previous rows of nodes that events at this time have changed.

    Attributes:
        time: Time since the first event of the stream, in its unit; -inf before that event.
        nodes: int64 [C], ascending: the nodes of the events at that time, where the past ends before it.
        tables: Their rows [C, K], by the names of `RecentNeighbors.tables`.
    """

    time: float
    nodes: Tensor
    tables: dict[str, Tensor]


class RecentNeighbors:
    """The K latest events of every node, the latest in column 0: all that a query at a later time may see.

    If the past of a query is restricted to strictly earlier events, a query at the time of the latest event must not
    see events at that time. `moment` keeps the rows that these events have changed as they were before.

    Args:
        tables: Rows per node. ``neighbor`` int64 [N, K], the event's other end, -1 in empty places; ``time`` float64
            [N, K], since the first event of the stream; ``row`` int64 [N, K], where its features are kept.
        past: One of `lightning_tgnn.algorithms.streams.past.PASTS`.
        moment: The latest time; None is before the first event.
    """

    def __init__(self, tables: dict[str, Tensor], past: str, moment: Moment | None = None) -> None:
        self.tables = self._room = tables
        self.past = past
        self.moment = moment or self._moment(-math.inf)

    @classmethod
    def empty(cls, num_nodes: int, num_neighbors: int, past: str) -> RecentNeighbors:
        """Return the tables before the first event."""
        return cls(_empty(num_nodes, num_neighbors), past)

    @classmethod
    def from_stream(
        cls, store: EventStore, adjacency: TemporalAdjacency, before: int, num_neighbors: int, past: str
    ) -> tuple[RecentNeighbors, Tensor]:
        """Return the tables after the first ``before`` events, and the events (int64 [V]) that their rows stand for."""
        every, at_last = torch.arange(store.num_nodes), torch.empty(0, dtype=torch.int64)
        latest, start = -math.inf, before
        if before:
            latest = float(store.time[before - 1] - store.time[0])
            start = int(torch.searchsorted(store.time, store.time[before - 1 : before]))
        if past == "time":
            at_last = torch.cat([store.src[start:before], store.dst[start:before]]).unique()
        nodes, ends = torch.cat([every, at_last]), torch.tensor([before, start])
        found = adjacency.most_recent(
            nodes, ends.repeat_interleave(torch.tensor([len(every), len(at_last)])), num_neighbors
        )
        kept = found.events[found.mask]
        events, rows = kept.unique(return_inverse=True)
        tables = _empty(len(nodes), num_neighbors)
        tables["neighbor"][found.mask] = found.nodes[found.mask]
        tables["time"][found.mask] = store.time[kept] - store.time[0]
        tables["row"][found.mask] = rows
        now = {name: table[: len(every)] for name, table in tables.items()}
        earlier = {name: table[len(every) :] for name, table in tables.items()}
        return cls(now, past, Moment(latest, at_last, earlier)), events

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> RecentNeighbors:
        """Return the tables that `state_dict` has described."""
        return cls(state["tables"], state["past"], Moment(**state["moment"]))

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values that hold all tables."""
        return {"tables": self.tables, "past": self.past, "moment": self.moment._asdict()}

    def resize(self, num_nodes: int) -> None:
        """Have rows for so many nodes; new ones have no neighbours."""
        self._room = with_room(self._room, num_nodes, lambda count: _empty(count, self.num_neighbors))
        self.tables = {name: table[:num_nodes] for name, table in self._room.items()}

    def clear(self) -> None:
        """Return to the tables before the first event."""
        for name, table in self.tables.items():
            table.fill_(0 if name == "time" else EMPTY)
        self.moment = self._moment(-math.inf)

    @property
    def rows(self) -> list[Tensor]:
        """The tables that say where features are kept."""
        return [self.tables["row"], self.moment.tables["row"]]

    @property
    def num_neighbors(self) -> int:
        """K."""
        return self.tables["neighbor"].shape[1]

    def at(self, nodes: Tensor, times: Tensor) -> dict[str, Tensor]:
        """Return the rows of ``nodes`` (int64 [R]) in `tables` for queries at ``times`` (float64 [R]), [R, K] each.

        Args:
            nodes: Nodes whose rows are returned.
            times: Since the first event of the stream, none before the latest event.
        """
        found = {name: table[nodes] for name, table in self.tables.items()}
        self._hide_simultaneous(found, nodes, times)
        return found

    def before_each(self, ends: Tensor, time: Tensor) -> Tensor:
        """Return the neighbours that the ends of the next batch had in the past of each of its events.

        Args:
            ends: int64 [B, 2], source and destination of every event, in order.
            time: float64 [B], of the events.

        Returns:
            int64 [B, 2, K], the end itself in empty places.
        """
        nodes, position, window = self._window(ends)
        end = past_end(time, torch.arange(len(ends)), 0, self.past).add(self.num_neighbors).repeat_interleave(2)
        found = window.most_recent(position, end, self.num_neighbors)
        rows = {"neighbor": found.nodes.masked_fill(~found.mask, EMPTY)}
        self._hide_simultaneous(rows, nodes[position], time.repeat_interleave(2))
        neighbors = rows["neighbor"]
        return torch.where(neighbors >= 0, neighbors, nodes[position].unsqueeze(1)).view(len(ends), 2, -1)

    def add(self, ends: Tensor, time: Tensor, rows: Tensor) -> None:
        """Take in new events.

        Args:
            ends: int64 [B, 2], in order.
            time: float64 [B], ascending, none before the latest event.
            rows: int64 [B], where their features are kept.
        """
        if not len(ends):
            return
        latest = float(time[-1])
        if self.past != "time":
            self._append(ends, time, rows)
            self.moment = self._moment(latest)
            return
        start = int(torch.searchsorted(time, time[-1:]))
        if latest > self.moment.time:
            self._append(ends[:start], time[:start], rows[:start])
            self.moment = self._moment(latest)
        self._keep(ends[start:].unique())
        self._append(ends[start:], time[start:], rows[start:])

    def _moment(self, time: float) -> Moment:
        return Moment(time, torch.empty(0, dtype=torch.int64), _empty(0, self.num_neighbors))

    def _keep(self, nodes: Tensor) -> None:
        """Keep the rows of ``nodes`` as they are before the events at the latest time, unless they are kept."""
        held = self.moment
        own = torch.cat([held.nodes, nodes[~torch.isin(nodes, held.nodes)]])
        merged, order = own.sort()
        new = own[len(held.nodes) :]
        tables = {name: torch.cat([held.tables[name], table[new]])[order] for name, table in self.tables.items()}
        self.moment = Moment(held.time, merged, tables)

    def _hide_simultaneous(self, found: dict[str, Tensor], nodes: Tensor, times: Tensor) -> None:
        """Put the kept rows into the rows ``found`` of queries at the time of the latest event."""
        held = self.moment
        if not len(held.nodes):
            return
        place = torch.searchsorted(held.nodes, nodes).clamp_(max=len(held.nodes) - 1)
        hidden = (held.nodes[place] == nodes) & (times <= held.time)
        for name, rows in found.items():
            rows[hidden] = held.tables[name][place[hidden]]

    def _append(self, ends: Tensor, time: Tensor, rows: Tensor) -> None:
        if not len(ends):
            return
        nodes, _, window = self._window(ends)
        span = torch.full_like(nodes, window.span)
        found = window.most_recent(torch.arange(len(nodes)), span, self.num_neighbors)
        is_new = found.events >= self.num_neighbors
        event = (found.events - self.num_neighbors).clamp_(min=0)
        column = (self.num_neighbors - 1 - found.events.clamp(min=0)).clamp_(min=0)
        kept = {name: table[nodes].gather(1, column) for name, table in self.tables.items()}
        self.tables["neighbor"][nodes] = found.nodes.masked_fill(~found.mask, EMPTY)
        self.tables["time"][nodes] = torch.where(is_new, time[event], kept["time"]).mul_(found.mask)
        self.tables["row"][nodes] = torch.where(is_new, rows[event], kept["row"]).masked_fill_(~found.mask, EMPTY)

    def _window(self, ends: Tensor) -> tuple[Tensor, Tensor, TemporalAdjacency]:
        """Return the distinct ends, the place of each end among them, and an adjacency of their old and new events.

        Its nodes are positions among the distinct ends. Event ``K + j`` is the ``j``-th new event, and event
        ``K - 1 - k`` is in column ``k``.
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


def _empty(count: int, num_neighbors: int) -> dict[str, Tensor]:
    """Return rows without a neighbour."""
    shape = (count, num_neighbors)
    integers = {name: torch.full(shape, EMPTY, dtype=torch.int64) for name in ("neighbor", "row")}
    return {**integers, "time": torch.zeros(shape, dtype=torch.float64)}


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
