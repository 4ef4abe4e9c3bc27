"""Rows between masters and mirrors: all of them, or those that have changed, whole or quantised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.algorithms.quantize import dequantize, quantize
from lightning_tgnn.comm import Exchange
from lightning_tgnn.types import ReplicaLinks

_PLACE_BYTES = 4


@dataclass(frozen=True)
class RowCoder:
    """How rows travel.

    Attributes:
        bits: Of each value; None for float32.
    """

    bits: int | None

    def encode(self, rows: Tensor) -> Tensor:
        """Return uint8 [n, bytes] of float32 [n, k]."""
        return rows.contiguous().view(torch.uint8) if self.bits is None else quantize(rows, self.bits)

    def decode(self, data: Tensor, columns: int) -> Tensor:
        """Return float32 [n, k] of what `encode` has made."""
        if self.bits is None:
            return data.clone(memory_format=torch.contiguous_format).view(torch.float32).view(len(data), columns)
        return dequantize(data, columns, self.bits)


def send_all(
    rows: Tensor, sent: Tensor, received: Tensor, coder: RowCoder, exchange: Exchange, operation: str
) -> tuple[Tensor, Tensor]:
    """Send every row of a list of links.

    Args:
        rows: float32 [S, k], rank by rank.
        sent: int64 [P], rows for each rank.
        received: int64 [P], rows from each rank.
        coder: How they travel.
        exchange: Between the ranks.
        operation: Under what name the bytes are counted.

    Returns:
        The rows that have arrived, float32 [T, k], and this rank's own as the receivers decode them, [S, k].
    """
    data = coder.encode(rows)
    pending = exchange.start(data, sent.tolist(), received.tolist(), operation)
    return coder.decode(pending.wait(), rows.shape[1]), coder.decode(data, rows.shape[1])


def send_some(
    rows: Tensor, going: Tensor, links: tuple[Tensor, Tensor], coder: RowCoder, exchange: Exchange, operation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Send some rows of a list of links, each with its place in the list of its receiver.

    Args:
        rows: float32 [g, k], those that go, rank by rank.
        going: int64 [g], their places in this rank's list, ascending.
        links: int64 [P] each, how long this rank's list is for every rank, and how long those of the ranks for it are.
        coder: How they travel.
        exchange: Between the ranks.
        operation: Under what name the bytes are counted.

    Returns:
        What has arrived, float32 [h, k]; the places in the receiver's list that it is for, int64 [h]; and this rank's
        own rows as the receivers decode them, [g, k].
    """
    own, theirs = links
    ends = own.cumsum(0)
    rank = torch.searchsorted(ends, going, right=True)
    sent = torch.bincount(rank, minlength=len(own))
    counts = exchange.start_counts(sent.unsqueeze(1), f"{operation}_counts")
    place = (going - (ends - own)[rank]).to(torch.int32).unsqueeze(1)
    data = coder.encode(rows)
    message = torch.cat([place.view(torch.uint8).view(len(place), _PLACE_BYTES), data], dim=1)
    received = counts.wait().squeeze(1).cpu()
    arrived = exchange.start(message, sent.tolist(), received.tolist(), operation).wait()
    place = arrived[:, :_PLACE_BYTES].clone(memory_format=torch.contiguous_format).view(torch.int32).squeeze(1).long()
    first = (theirs.cumsum(0) - theirs).repeat_interleave(received.to(theirs.device))
    columns = rows.shape[1]
    return coder.decode(arrived[:, _PLACE_BYTES:], columns), first + place, coder.decode(data, columns)


def shared_masters(links: ReplicaLinks) -> tuple[Tensor, Tensor]:
    """Return the places of masters with mirrors, int64 [K], and which of them each entry of ``mastered`` is, [T]."""
    return torch.unique(links.mastered, return_inverse=True)
