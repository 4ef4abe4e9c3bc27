"""Bytes of node state that travel in a step, if rows are cut over ranks and if every rank has all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tgnn.types import SharedWrites, StateSpec

_REQUEST = 8
_HEAD = 16


class StateTraffic(NamedTuple):
    """Half of the bytes that the busiest rank sends and receives in a step: what it sends if ranks are alike.

    Attributes:
        sharded: The bytes if each row is on one rank, and other ranks fetch it when it has changed since they last
            fetched it.
        replicated: The bytes if every rank has all rows.
    """

    sharded: float
    replicated: float


def state_traffic(
    batches: Sequence[tuple[list[Tensor], SharedWrites]], owner: Tensor, ranks: int, spec: StateSpec
) -> StateTraffic:
    """Count the bytes that the second half of consecutive global batches moves; the first half fills the caches.

    Mails are assumed to be made where they are delivered, unless a model makes its own mails. Fetched rows are assumed
    to be kept as long as no rank changes them.

    Args:
        batches: The nodes that each rank reads, int64 [U], and the nodes that all ranks write.
        owner: int64 [N], the rank of every node, where rows are cut.
        ranks: M.
        spec: Widths of a row.
    """
    memory = 8 + 4 * spec.memory_dim
    # Of a mail the own half lies in its row, and features are looked up.
    values = spec.memory_dim * (1 if spec.own_half else 2) if spec.event_features else spec.mail_dim
    mail = _HEAD + 4 * values
    sent_mail = 0 if spec.event_features else _REQUEST + mail
    row = _HEAD + 4 * spec.memory_dim + spec.mailbox_size * mail
    kept = torch.zeros(ranks, spec.num_nodes, dtype=torch.bool)
    moved = torch.zeros(2, ranks, dtype=torch.float64)
    count = 0
    for number, (read, writes) in enumerate(batches):
        sharded, replicated = torch.zeros(2, ranks, dtype=torch.float64)
        for rank, nodes in enumerate(read):
            missing = nodes[(owner[nodes] != rank) & ~kept[rank, nodes]]
            kept[rank, missing] = True
            sharded[rank] += len(missing) * (row + _REQUEST)
            sharded += torch.bincount(owner[missing], minlength=ranks) * (row + _REQUEST)
        kept[:, writes.mail_nodes] = False
        sender = torch.cat([writes.node_rank, writes.mail_rank, writes.mail_rank])
        nodes = torch.cat([writes.nodes, *writes.mail_ends.unbind(1)])
        receiver = owner[torch.cat([writes.nodes, writes.mail_nodes, writes.mail_nodes])]
        sharded += _between(writes.mail_rank, owner[writes.mail_nodes], ranks) * sent_mail
        mails = torch.bincount(writes.mail_rank, minlength=ranks)
        replicated += ((ranks - 2) * mails + mails.sum()) * sent_mail
        travelling = sender != receiver
        pairs = (sender * ranks + receiver) * spec.num_nodes + nodes
        between = pairs[travelling].unique().div(spec.num_nodes, rounding_mode="floor")
        sharded += _between(between // ranks, between % ranks, ranks) * memory
        rows = torch.bincount((sender * spec.num_nodes + nodes).unique() // spec.num_nodes, minlength=ranks)
        replicated += ((ranks - 2) * rows + rows.sum()) * memory
        if number >= len(batches) // 2:
            moved += torch.stack([sharded, replicated])
            count += 1
    busiest = (moved.amax(1) / (2 * max(count, 1))).tolist()
    return StateTraffic(*busiest)


def _between(sender: Tensor, receiver: Tensor, ranks: int) -> Tensor:
    """Return how many entries each rank sends to another and receives from another, int64 [M]."""
    away = sender != receiver
    return torch.bincount(torch.cat([sender[away], receiver[away]]), minlength=ranks)
