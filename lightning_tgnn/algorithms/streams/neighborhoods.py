"""The distinct nodes and events of a batch's neighbourhood (Sven, Algorithm 2), found in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PlacedNodes:
    """The places of R roots and their neighbours among the distinct nodes.

    Attributes:
        nodes: int64 [U], distinct nodes in first-seen order: roots, then nodes that are neighbours only.
        num_roots: How many of these nodes are roots.
        root_index: int64 [R], place of every root.
        neighbor_index: int64 [S, K], place of every neighbour, and of the root itself in empty places.
        neighbor_time: float64 [S, K], time of the event that made the neighbour one, since the first of the stream, 0
            in empty places.
        neighbor_mask: bool [S, K], where there is a neighbour.
    """

    nodes: Tensor
    num_roots: int
    root_index: Tensor
    neighbor_index: Tensor
    neighbor_time: Tensor
    neighbor_mask: Tensor


def place_nodes(roots: Tensor, found: Tensor, src: Tensor, dst: Tensor, time: Tensor) -> PlacedNodes:
    """Place roots and their neighbours among the distinct nodes.

    Args:
        roots: int64 [R], on the CPU.
        found: int64 [S, K], the event that makes each neighbour one, -1 in empty places; S = R, or 0.
        src: int64 [E], of the stream.
        dst: int64 [E], likewise.
        time: float64 [E], likewise.

    >>> src, dst, time = torch.tensor([7, 8]), torch.tensor([8, 5]), torch.tensor([0.5, 2.0]).double()
    >>> placed = place_nodes(torch.tensor([5, 8]), torch.tensor([[1, -1], [1, 0]]), src, dst, time)
    >>> placed.nodes.tolist(), placed.neighbor_index.tolist(), placed.neighbor_time.tolist()
    ([5, 8, 7], [[1, 0], [0, 2]], [[1.5, 0.0], [1.5, 0.0]])
    """
    from lightning_tgnn.algorithms.streams import neighborhood_loops  # imports the compiler: only where it is used

    nodes, root_index, index = (
        roots.new_empty(len(roots) + found.numel()),
        roots.new_empty(len(roots)),
        torch.empty_like(found),
    )
    when, mask = torch.empty(found.shape, dtype=torch.float64), torch.empty(found.shape, dtype=torch.bool)
    tensors = (roots, found, src, dst, time, nodes, root_index, index, when, mask)
    count = neighborhood_loops.place_nodes(*(tensor.numpy() for tensor in tensors))
    num_roots = int(root_index.max()) + 1 if len(roots) else 0
    return PlacedNodes(nodes[:count].clone(), num_roots, root_index, index, when, mask)


def place_events(events: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Place the events by which neighbours were found after the events of the batch.

    Args:
        events: int64 [B], distinct, on the CPU.
        found: int64 [S, K], -1 in empty places.

    Returns:
        The distinct events, int64 [V], the batch's own first, and the place of ``found`` among them, int64 [S, K], 0 in
        empty places.

    >>> distinct, index = place_events(torch.tensor([4, 5]), torch.tensor([[3, -1], [4, 3]]))
    >>> distinct.tolist(), index.tolist()
    ([4, 5, 3], [[2, 0], [0, 2]])
    """
    from lightning_tgnn.algorithms.streams import neighborhood_loops

    distinct, index = events.new_empty(len(events) + found.numel()), torch.empty_like(found)
    count = neighborhood_loops.place_events(*(tensor.numpy() for tensor in (events, found, distinct, index)))
    return distinct[:count].clone(), index
