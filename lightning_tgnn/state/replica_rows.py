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
            return data.view(torch.float32)
        return dequantize(data, columns, self.bits)


def send_some(
    data: Tensor, going: Tensor, links: tuple[Tensor, Tensor], exchange: Exchange, operation: str
) -> tuple[Tensor, Tensor]:
    """Send some rows of a list of links, and which of them they are.

    Args:
        data: uint8 [g, bytes], those that go, rank by rank, as `RowCoder.encode` has made them.
        going: int64 [g], their places in this rank's list, ascending.
        links: int64 [P] each, how long this rank's list is for every rank, and how long those of the ranks for it are.
        exchange: Between the ranks.
        operation: Under what name the bytes are counted.

    Returns:
        What has arrived, uint8 [h, bytes], and the places in the receiver's list that it is for, int64 [h].
    """
    own, theirs = (lengths.tolist() for lengths in links)
    ends = links[0].cumsum(0)
    sent = torch.bincount(torch.searchsorted(ends, going, right=True), minlength=len(own))
    counts = exchange.start_counts(sent.unsqueeze(1), f"{operation}_counts")
    sent_rows, first = sent.tolist(), (ends - links[0]).tolist()
    chosen = [places - start for places, start in zip(going.split(sent_rows), first, strict=True)]
    choices = [_choice(places, length) for places, length in zip(chosen, own, strict=True)]
    received = counts.wait().squeeze(1).tolist()
    sizes = [_choice_bytes(count, length) for count, length in zip(received, theirs, strict=True)]
    choosing = exchange.start(torch.cat(choices), [len(choice) for choice in choices], sizes, f"{operation}_counts")
    arriving = exchange.start(data, sent_rows, received, operation)
    heard = choosing.wait().split(sizes)
    starts = (links[1].cumsum(0) - links[1]).tolist()
    places = [
        start + _chosen(choice, count, length)
        for choice, count, length, start in zip(heard, received, theirs, starts, strict=True)
    ]
    return arriving.wait(), torch.cat(places)


def _choice_bytes(count: int, length: int) -> int:
    """Return the bytes that say which ``count`` of a list are meant: their places, or a bit for each of the list."""
    return min(count * _PLACE_BYTES, -(-length // 8)) if count else 0


def _choice(places: Tensor, length: int) -> Tensor:
    """Return ascending places in a list as `_choice_bytes` bytes."""
    size = _choice_bytes(len(places), length)
    if size == len(places) * _PLACE_BYTES:
        return places.to(torch.int32).view(torch.uint8)
    bits = torch.zeros(size * 8, dtype=torch.uint8, device=places.device)
    bits[places] = 1
    return (bits.view(size, 8) << torch.arange(8, device=bits.device, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def _chosen(data: Tensor, count: int, length: int) -> Tensor:
    """Return the places, int64 [count], that `_choice` was given."""
    if len(data) == count * _PLACE_BYTES:
        return data.clone().view(torch.int32).long()
    bits = data.unsqueeze(1) >> torch.arange(8, device=data.device, dtype=torch.uint8) & 1
    return bits.flatten().nonzero().squeeze(1)


def shared_masters(links: ReplicaLinks) -> tuple[Tensor, Tensor]:
    """Return the places of masters with mirrors, int64 [K], and which of them each entry of ``mastered`` is, [T]."""
    return torch.unique(links.mastered, return_inverse=True)
