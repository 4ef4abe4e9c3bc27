"""Stateless search for the past neighbours of nodes, by binary search in entries sorted by (node, event)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.algorithms.streams.counter_random import counter_hash, random_below
from lightning_tgnn.checks import DataError, InvalidArgumentError, check_int
from lightning_tgnn.types import TensorFields

_LARGEST_INT64 = torch.iinfo(torch.int64).max
_CHUNK = 1 << 18


@dataclass(frozen=True, repr=False)
class Neighbors(TensorFields):
    """Past neighbours of R roots, the most recent in column 0.

    Attributes:
        nodes: int64 [R, K], the neighbours; 0 in empty places.
        events: int64 [R, K], the events that made them neighbours; -1 in empty places.
        mask: bool [R, K], True where there is a neighbour.
    """

    nodes: Tensor
    events: Tensor
    mask: Tensor


@dataclass(frozen=True, repr=False)
class TemporalAdjacency(TensorFields):
    """Entries (node, event, neighbour) of a stream, sorted by node and event. Build one with `build`.

    A query (node, event id) sees the entries of the node whose event id is smaller: never its own event nor a later
    one. Among events at equal times it sees those that come first in the input. Queried nodes have to be in 0 .. N-1
    and event ids at least 0; queries do not check that.

    Attributes:
        indptr: int64 [N + 1], the entries of node v are ``indptr[v] .. indptr[v + 1] - 1``.
        keys: int64 [entries], ascending, ``node * span + event``.
        neighbors: int64 [entries].
        span: Larger than every event id.
    """

    indptr: Tensor
    keys: Tensor
    neighbors: Tensor
    span: int

    @classmethod
    def build(
        cls, src: Tensor, dst: Tensor, num_nodes: int, *, events: Tensor | None = None, directed: bool = False
    ) -> TemporalAdjacency:
        """Sort the events by node. An undirected event is an entry of both its ends, a self loop one entry.

        Args:
            src: int64 [L], sources, on any device.
            dst: int64 [L], destinations.
            num_nodes: Nodes are ``0 .. num_nodes - 1``.
            events: int64 [L], the id of each event, at least 0 and strictly ascending; ``0 .. L - 1`` if None. Give
                it where ``src`` and ``dst`` leave out events of the stream.
            directed: Make the event an entry of its source only.

        Raises:
            DataError: Columns of different length, a node outside the range, or event ids that do not ascend.
            InvalidArgumentError: ``num_nodes`` times the largest event id does not fit in 64 bits.
        """
        check_int("num_nodes", num_nodes, minimum=1, cure="count the nodes of the stream")
        _check_columns(src, dst, num_nodes, events)
        span = src.numel() if events is None else int(events[-1]) + 1 if events.numel() else 0
        check_keys_fit(num_nodes, span)
        keys = _sorted_position_keys(src, dst, directed)
        starts = torch.arange(num_nodes + 1, device=src.device).mul_(src.numel())
        indptr = torch.searchsorted(keys, starts)
        neighbors = _resolve_positions(keys, src, dst, events, span, directed)
        return cls(indptr=indptr, keys=keys, neighbors=neighbors, span=span)

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph."""
        return self.indptr.numel() - 1

    def count_before(self, nodes: Tensor, before: Tensor) -> Tensor:
        """Return int64 [R], how many entries of ``nodes`` (int64 [R]) have an event id below ``before`` (int64 [R])."""
        return self._past_end(nodes, before) - self.indptr[nodes]

    def most_recent(self, nodes: Tensor, before: Tensor, k: int) -> Neighbors:
        """Return the ``k`` most recent entries of ``nodes`` (int64 [R]) before the events ``before`` (int64 [R])."""
        if nodes.device.type == "cpu":
            from lightning_tgnn.algorithms.streams.neighbor_loops import take_recent  # numba, which takes a second

            return self._taken(take_recent, k, nodes, before)
        return self._most_recent_by_tensors(nodes, before, k)

    def uniform(self, nodes: Tensor, before: Tensor, k: int, *seeds: Tensor | int) -> Neighbors:
        """Return ``k`` distinct past entries of each node, every such set equally likely, most recent first.

        A node with at most ``k`` past entries gets all of them. The draw is a function of ``seeds``, the node and
        ``before`` alone.

        Args:
            nodes: int64 [R].
            before: int64 [R], event ids.
            k: Neighbours per root.
            seeds: Counters of `lightning_tgnn.algorithms.streams.counter_random`, such as the seed and the epoch.
        """
        key = counter_hash(*seeds, nodes, before)
        if nodes.device.type == "cpu":
            from lightning_tgnn.algorithms.streams.neighbor_loops import take_uniform

            return self._taken(take_uniform, k, nodes, before, key)
        return self._uniform_by_tensors(nodes, before, k, key)

    def last_mails(self, ends: Tensor, before: Tensor, k: int, *seeds: Tensor | int) -> tuple[Tensor, Tensor]:
        """Return what `lightning_tgnn.algorithms.streams.dedup.last_mails` does of ends and their past neighbours.

        The neighbours are not written down, of which a global batch of many ranks has more than fit into a cache.

        Args:
            ends: int64 [B, 2], on the CPU.
            before: int64 [B], event ids.
            k: Neighbours of each end.
            seeds: Of `uniform` neighbours; none takes the most recent.

        Returns:
            Nodes, and ``event + side * B`` of each; both int64 [P].
        """
        from lightning_tgnn.algorithms.streams.neighbor_loops import mail_past

        key = counter_hash(*seeds, ends, before.unsqueeze(1)) if seeds else ends[:0]
        receivers = np.empty((2, min(self.num_nodes, 2 * len(ends) * (k + 1))), np.int64)
        table = np.zeros(self.num_nodes, np.int32)  # of a large graph only the pages that are written to
        stream_arrays = self.indptr.numpy(), self.keys.numpy(), self.neighbors.numpy(), self.span
        event_arrays = ends.contiguous().numpy(), before.contiguous().numpy(), k, key.contiguous().numpy()
        found = mail_past(*stream_arrays, *event_arrays, table, *receivers)
        nodes, source = torch.from_numpy(receivers[:, :found].copy())
        return nodes, source

    def _most_recent_by_tensors(self, nodes: Tensor, before: Tensor, k: int) -> Neighbors:
        end = self._past_end_by_tensors(nodes, before)
        entries = end.unsqueeze(1) - torch.arange(1, k + 1, device=end.device)
        return self._take(nodes, entries, entries >= self.indptr[nodes].unsqueeze(1))

    def _uniform_by_tensors(self, nodes: Tensor, before: Tensor, k: int, key: Tensor) -> Neighbors:
        start = self.indptr[nodes]
        count = self._past_end_by_tensors(nodes, before) - start
        ranks = _distinct_below(count, k, key)
        return self._take(nodes, start.unsqueeze(1) + ranks, ranks >= 0)

    def _past_end(self, nodes: Tensor, before: Tensor) -> Tensor:
        if nodes.device.type != "cpu":
            return self._past_end_by_tensors(nodes, before)
        from lightning_tgnn.algorithms.streams.neighbor_loops import past_ends

        ends = nodes.new_empty(len(nodes))
        roots, events = (column.contiguous().numpy() for column in (nodes, before))
        past_ends(self.indptr.numpy(), self.keys.numpy(), self.span, roots, events, ends.numpy())
        return ends

    def _past_end_by_tensors(self, nodes: Tensor, before: Tensor) -> Tensor:
        return torch.searchsorted(self.keys, nodes * self.span + before.clamp(max=self.span))

    def _taken(self, take: Callable[..., None], k: int, nodes: Tensor, *columns: Tensor) -> Neighbors:
        """Return what a compiled loop writes, which looks for a node among its own entries only."""
        found = Neighbors(
            nodes=nodes.new_empty(len(nodes), k),
            events=nodes.new_empty(len(nodes), k),
            mask=torch.empty(len(nodes), k, dtype=torch.bool),
        )
        stream_arrays = self.indptr.numpy(), self.keys.numpy(), self.neighbors.numpy(), self.span
        root_arrays = [column.contiguous().numpy() for column in (nodes, *columns)]
        take(*stream_arrays, *root_arrays, found.nodes.numpy(), found.events.numpy(), found.mask.numpy())
        return found

    def _take(self, nodes: Tensor, entries: Tensor, mask: Tensor) -> Neighbors:
        if self.keys.numel() == 0:
            return Neighbors(nodes=torch.zeros_like(entries), events=torch.full_like(entries, -1), mask=mask)
        entries = entries.mul_(mask)
        events = self.keys[entries].sub_((nodes * self.span).unsqueeze(1))
        return Neighbors(nodes=self.neighbors[entries].mul_(mask), events=events.masked_fill_(~mask, -1), mask=mask)


def _distinct_below(count: Tensor, k: int, key: Tensor) -> Tensor:
    """Return ``k`` distinct integers in [0, count) per row, descending; -1 and below fill rows of too small a count.

    Robert Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM 1987), for all rows at once.
    """
    slots = torch.arange(k, device=count.device).unsqueeze(1)
    tops = count - k + slots
    drawn = random_below((tops + 1).clamp_(min=1), key, slots)
    chosen = torch.empty_like(drawn)
    for slot in range(k):
        taken = (chosen[:slot] == drawn[slot]).any(dim=0)
        torch.where(taken, tops[slot], drawn[slot], out=chosen[slot])
    all_of_few = count - 1 - slots
    return torch.where(count > k, chosen, all_of_few).t().sort(dim=1, descending=True).values


def check_keys_fit(num_nodes: int, span: int) -> None:
    """Refuse nodes and events of which ``node * span + event`` is not a number of 64 bits.

    Raises:
        InvalidArgumentError: ``num_nodes * span`` is above 2^63 - 1.
    """
    if num_nodes * span > _LARGEST_INT64:
        cure = "number nodes and events without gaps"
        raise InvalidArgumentError("num_nodes * events", "below 2^63", num_nodes * span, cure)


def _check_columns(src: Tensor, dst: Tensor, num_nodes: int, events: Tensor | None) -> None:
    for name, column in {"dst": dst, "events": events}.items():
        if column is not None and column.shape != src.shape:
            raise DataError(name, f"of the shape of src, {list(src.shape)}", list(column.shape), "give a row per event")
    for name, column in {"src": src, "dst": dst}.items():
        lowest, highest = torch.stack(column.aminmax()).tolist() if column.numel() else (0, 0)
        if lowest < 0 or highest >= num_nodes:
            wrong = lowest if lowest < 0 else highest
            raise DataError(name, f"nodes in 0 .. {num_nodes - 1}", wrong, "raise num_nodes or map the ids")
    if events is not None and events.numel() and (int(events[0]) < 0 or bool((events[1:] <= events[:-1]).any())):
        raise DataError("events", "at least 0 and strictly ascending", "other ids", "sort them, each once")


def _sorted_position_keys(src: Tensor, dst: Tensor, directed: bool) -> Tensor:
    """Return int64 [entries], ascending: ``node * L + position`` of every entry, position in ``src`` and ``dst``."""
    length = src.numel()
    ends = [src] if directed else [src, dst]
    keys = torch.empty(len(ends), length, dtype=torch.int64, device=src.device)
    position = torch.arange(length, device=src.device)
    for row, nodes in zip(keys, ends, strict=True):
        torch.mul(nodes, length, out=row).add_(position)
    loops = 0
    if not directed:
        is_loop = src == dst
        loops = int(is_loop.sum())
        keys[1].masked_fill_(is_loop, _LARGEST_INT64)
    return _sort_in_place(keys.view(-1))[: keys.numel() - loops]


def _sort_in_place(keys: Tensor) -> Tensor:
    if keys.device.type == "cpu":
        # numpy sorts in place and without an index, several times faster than torch.sort.
        keys.numpy().sort()
        return keys
    return keys.sort().values


def _resolve_positions(
    keys: Tensor, src: Tensor, dst: Tensor, events: Tensor | None, span: int, directed: bool
) -> Tensor:
    """Return the neighbour of every entry, and turn ``keys`` in place into ``node * span + event``."""
    neighbors = torch.empty_like(keys)
    if keys.numel() == 0:
        return neighbors
    # The neighbour is the sum of the ends less the node itself, also for a self loop: one look-up instead of two.
    other = dst if directed else src + dst
    # In chunks, so that the temporaries stay in the cache.
    for key, neighbor in zip(keys.split(_CHUNK), neighbors.split(_CHUNK), strict=True):
        node = torch.div(key, src.numel(), rounding_mode="trunc")
        position = key - node * src.numel()
        torch.index_select(other, 0, position, out=neighbor)
        if not directed:
            neighbor.sub_(node)
        if events is not None:
            key.copy_(node.mul_(span).add_(events[position]))
    return neighbors
