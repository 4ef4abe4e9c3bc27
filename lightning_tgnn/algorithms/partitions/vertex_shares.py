"""The part that a rank computes of a snapshot with vertices cut over ranks, and the rows that it needs of others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.types import Snapshot, SnapshotGroup, SparseRows


@dataclass(frozen=True)
class RowLinks:
    """Rows that a rank sends to other ranks and receives from them, for one snapshot or one group.

    Attributes:
        sent: int64 [S], places of the own rows that are sent, the rows for rank 0 first.
        to: How many rows go to each rank.
        received: How many rows come from each rank. They follow the own rows in this order.
    """

    sent: Tensor
    to: tuple[int, ...]
    received: tuple[int, ...]


def share_of_snapshot(snapshot: Snapshot, owner: Tensor, rank: int, ranks: int) -> tuple[Snapshot, RowLinks]:
    """Return the part of a snapshot whose vertices a rank owns.

    Its rows are the own vertices in their order. Its edges begin at these rows, and at the rows of other ranks'
    vertices that have an edge into an own vertex. The rows of others come after the own rows, by rank and in their
    order.

    Args:
        snapshot: The whole snapshot, with the same edges between all of its vertices in every layer. Its rows are the
            rows of ``owner``.
        owner: int64 [m], the rank of every row of the group.
        rank: The rank whose part is returned.
        ranks: How many there are.
    """
    of = owner[snapshot.vertices]
    own = torch.nonzero(of == rank).squeeze(1)
    relations = snapshot.layers[0]
    ends = [(edges.columns, edges.rows) for edges in relations]
    src, dst = (torch.cat(side) for side in zip(*ends, strict=True))
    links, others = _links(src, of[dst], of, own, rank, ranks)
    place = torch.full((len(of),), -1, device=of.device)
    place[own] = torch.arange(len(own), device=of.device)
    place[others] = len(own) + torch.arange(len(others), device=of.device)
    cut = []
    for edges, (columns, rows) in zip(relations, ends, strict=True):
        kept = of[rows] == rank
        whole = SparseRows.of(place[columns[kept]], place[rows[kept]], edges.weights[kept], len(own) + len(others))
        # No edge goes into the rows of others: what is left is a matrix [own, own + others].
        cut.append(
            SparseRows(
                whole.starts[: len(own) + 1],
                whole.columns,
                whole.weights,
                whole.starts_back,
                whole.columns_back,
                whole.edges_back,
            )
        )
    row = _places(owner, rank)
    layers = (tuple(cut),) * len(snapshot.layers)
    return Snapshot(snapshot.number, row[snapshot.vertices[own]], snapshot.features[own], layers), links


def share_of_targets(group: SnapshotGroup, owner: Tensor, rank: int, ranks: int) -> tuple[Tensor, Tensor, RowLinks]:
    """Return the targets whose first row a rank owns, and the rows of other ranks that they name.

    Returns:
        int64 [q'], places of these targets among the targets of the group; int64 [q', c], places of their rows among
        the own rows [m'] followed by the rows of others; and the rows that travel for this.
    """
    rows = group.targets.rows
    target_owner = owner[rows[:, 0]]
    own = torch.nonzero(owner == rank).squeeze(1)
    links, others = _links(rows.flatten(), target_owner.repeat_interleave(rows.shape[1]), owner, own, rank, ranks)
    place = _places(owner, rank)
    place[others] = len(own) + torch.arange(len(others), device=rows.device)
    mine = torch.nonzero(target_owner == rank).squeeze(1)
    return mine, place[rows[mine]], links


def _links(read: Tensor, reader: Tensor, owner: Tensor, own: Tensor, rank: int, ranks: int) -> tuple[RowLinks, Tensor]:
    """Return the rows that a rank sends and receives if ``reader`` reads rows, and which rows it receives.

    Args:
        read: int64 [E], rows that are read.
        reader: int64 [E], by which rank.
        owner: int64 [n], of every row.
        own: int64 [n'], the own rows.
        rank: This rank.
        ranks: How many there are.
    """
    count = max(len(owner), 1)
    away = owner[read] != reader
    sent = torch.unique((reader * count + read)[away & (owner[read] == rank)])
    taken = torch.unique((owner[read] * count + read)[away & (reader == rank)])
    to = torch.bincount(sent // count, minlength=ranks)
    received = torch.bincount(taken // count, minlength=ranks)
    places = torch.searchsorted(own, sent % count)
    return RowLinks(places, tuple(to.tolist()), tuple(received.tolist())), taken % count


def _places(owner: Tensor, rank: int) -> Tensor:
    """Return the place of each row among the rows of a rank, int64 [m]; -1 for rows of other ranks."""
    own = owner == rank
    return torch.where(own, own.cumsum(0) - 1, -1)
