"""Rows of other ranks that this rank keeps, and which rows of this rank others keep."""

from __future__ import annotations

import torch
from torch import Tensor


class RowCache:
    """A bounded table of packed rows; the least recently used rows make room.

    A call takes time in proportion to the rows that it is given, however many rows the table holds. If there is a place
    for every node, a node's place is its number, and no row has to make room. The places of rows are known on the CPU,
    where nodes and slots are given.

    Args:
        num_nodes: Nodes are ``0 .. num_nodes - 1``.
        row_bytes: Bytes of a packed row.
        capacity_bytes: Bytes that the table may take.
        device: Where the rows are.

    Attributes:
        rows: uint8 [capacity, bytes], the table.
    """

    def __init__(self, num_nodes: int, row_bytes: int, capacity_bytes: int, device: torch.device | str = "cpu") -> None:
        self.capacity = min(capacity_bytes // max(row_bytes, 1), num_nodes)
        self.rows = torch.empty(self.capacity, row_bytes, dtype=torch.uint8, device=device)
        self._slot = torch.full((num_nodes if self.capacity else 0,), -1, dtype=torch.int64)
        self._places = _Places(self.capacity) if 0 < self.capacity < num_nodes else None

    @property
    def makes_room(self) -> bool:
        """Whether unchanged rows may have to make room."""
        return self._places is not None

    @property
    def holds_all(self) -> bool:
        """Whether each node has its place in the table."""
        return self.capacity > 0 and self._places is None

    def find(self, nodes: Tensor) -> Tensor:
        """Return the slots, int64 [U], of distinct nodes, -1 for a node without a slot, and mark them as used."""
        if not self.capacity:
            return torch.full_like(nodes, -1)
        slots = self._slot[nodes]
        if self._places is not None:
            self._places.begin()
            self._places.use(slots[slots >= 0])
        return slots

    def read(self, slots: Tensor) -> Tensor:
        """Return rows, uint8 [n, bytes], by their slots."""
        return self.rows.index_select(0, slots.to(self.rows.device, non_blocking=True))

    def read_into(self, count: int, places: Tensor, slots: Tensor) -> Tensor:
        """Return uint8 [count, bytes] with the rows of slots (int64 [n]) at places (int64 [n])."""
        room = self.rows.new_empty(count, self.rows.shape[1])
        return room.index_copy_(0, places.to(room.device, non_blocking=True), self.read(slots))

    def keep(self, nodes: Tensor, rows: Tensor) -> None:
        """Add the rows of distinct nodes that are not in the table, as far as they fit.

        Rows that were used at the latest `find` stay.
        """
        if not self.capacity:
            return
        slots = nodes
        if self._places is not None:
            slots, replaced = self._places.take(len(nodes))
            self._slot[replaced] = -1
            nodes, rows = nodes[: len(slots)], rows[: len(slots)]
            self._places.fill(slots, nodes)
        self._slot[nodes] = slots
        self.rows.index_copy_(0, slots.to(rows.device, non_blocking=True), rows)

    def drop(self, nodes: Tensor) -> None:
        """Forget rows that have changed."""
        if not self.capacity:
            return
        if self._places is not None:
            slots = self._slot[nodes]
            self._places.free(slots[slots >= 0])
        self._slot[nodes] = -1

    def clear(self) -> None:
        """Forget everything."""
        self._slot.fill_(-1)
        if self._places is not None:
            self._places.clear()


class _Places:
    """The places of a table that is too small for all nodes: free places, and the order in which the others were used.

    Every use is an entry at the end of a log. An entry counts as long as it is its place's latest. The search for the
    least recently used place reads from the front and skips the other entries, each of them once.

    Args:
        capacity: Places are ``0 .. capacity - 1``.
    """

    def __init__(self, capacity: int) -> None:
        self._node = torch.empty(capacity, dtype=torch.int64)
        self._free = torch.empty(capacity, dtype=torch.int64)
        self._latest = torch.empty(capacity, dtype=torch.int64)  # number of the entry, -1 where free
        self._log = torch.empty(2 * capacity, dtype=torch.int64)
        self.clear()

    def clear(self) -> None:
        """Free all places."""
        capacity = len(self._free)
        torch.arange(capacity, out=self._free)
        self._latest.fill_(-1)
        self._num_free = capacity
        self._front, self._back, self._begun = 0, 0, 0

    def begin(self) -> None:
        """Keep places that are used from now on until this is called again."""
        self._begun = self._back

    def use(self, places: Tensor) -> None:
        """Note that distinct places are used."""
        if self._back + len(places) > len(self._log):
            self._shorten()
        end = self._back + len(places)
        self._log[self._back : end] = places
        self._latest[places] = torch.arange(self._back, end)
        self._back = end

    def _shorten(self) -> None:
        """Keep only the entries that count, at most one for each place; this is seldom necessary."""
        entries = torch.arange(self._front, self._back)
        counts = self._latest[self._log[self._front : self._back]] == entries
        used = self._log[self._front : self._back][counts]
        self._begun = int(counts[: self._begun - self._front].sum())
        self._front, self._back = 0, len(used)
        self._log[: self._back] = used
        self._latest[used] = torch.arange(self._back)

    def take(self, count: int) -> tuple[Tensor, Tensor]:
        """Return up to ``count`` places, int64 [n], free places first, and the nodes that leave the other places."""
        free = min(count, self._num_free)
        self._num_free -= free
        given = self._free[self._num_free : self._num_free + free].clone()
        left = self._least_recently_used(count - free)
        return torch.cat([given, left]), self._node[left]

    def fill(self, places: Tensor, nodes: Tensor) -> None:
        """Put nodes in places that were taken."""
        self._node[places] = nodes
        self.use(places)

    def free(self, places: Tensor) -> None:
        """Give distinct places back."""
        end = self._num_free + len(places)
        self._free[self._num_free : end] = places
        self._latest[places] = -1
        self._num_free = end

    def _least_recently_used(self, count: int) -> Tensor:
        """Return up to ``count`` places, the least recently used first."""
        found = [self._log[:0]]
        while count and self._front < self._begun:
            end = min(self._front + max(2 * count, 64), self._begun)
            entries = torch.arange(self._front, end)
            places = self._log[self._front : end]
            counts = (self._latest[places] == entries).nonzero().squeeze(1)[:count]
            found.append(places[counts])
            count -= len(counts)
            self._front = end if count else self._front + int(counts[-1]) + 1
        return torch.cat(found)


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
