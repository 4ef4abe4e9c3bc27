"""Rows between masters and mirrors: all rows or changed rows, whole or quantised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_tgnn.algorithms.traffic.quantize import dequantize
from lightning_tgnn.algorithms.traffic.row_changes import add_quantized, add_rows, quantize_changes, quantize_rows
from lightning_tgnn.types import RowExchange

_PLACE_BYTES = 4


@dataclass(frozen=True)
class RowCoder:
    """How rows travel.

    Attributes:
        bits: Of each value; None for float32.
        blocks: Widths of blocks of columns that are quantised separately; empty for one block.
    """

    bits: int | None
    blocks: tuple[int, ...] = ()

    def encode(self, values: Tensor, places: Tensor) -> tuple[Tensor, float]:
        """Return rows of ``values`` (float32 [m, k]) as uint8 [n, bytes], and the greatest error."""
        if self.bits is None:
            return values[places].view(torch.uint8), 0.0
        return quantize_rows(values, places, self.bits, self.blocks)

    def add(self, table: Tensor, entries: Tensor, data: Tensor) -> None:
        """Add rows that `encode` has packed to rows of a table; entries may repeat."""
        if self.bits is None:
            add_rows(table, entries, data.view(torch.float32))
        else:
            add_quantized(table, entries, data, self.bits, self.blocks)

    def put(self, table: Tensor, entries: Tensor, data: Tensor) -> None:
        """Write rows that `encode` has packed into rows of a table; entries are distinct."""
        if self.bits is None:
            table[entries] = data.view(torch.float32)
        else:
            table[entries] = dequantize(data, table.shape[1], self.bits, self.blocks)

    def encode_changes(self, values: Tensor, places: Tensor, table: Tensor, entries: Tensor) -> tuple[Tensor, float]:
        """Return bytes that turn a receiver's rows from a table's rows into rows of ``values``, and the greatest error.

        The bytes are the rows themselves, or their quantised differences. The table gets the rows that the receiver's
        `take` will have.
        """
        if self.bits is None:
            table[entries] = rows = values[places]
            return rows.view(torch.uint8), 0.0
        return quantize_changes(values, places, table, entries, self.bits, self.blocks)

    def take(self, table: Tensor, entries: Tensor, data: Tensor) -> None:
        """Update rows of a table with the bytes of `encode_changes`; entries are distinct."""
        if self.bits is None:
            table[entries] = data.view(torch.float32)
        else:
            add_quantized(table, entries, data, self.bits, self.blocks)


def send_some(
    data: Tensor, going: Tensor, links: tuple[Tensor, Tensor], exchange: RowExchange, operation: str
) -> tuple[Tensor, Tensor]:
    """Send some rows of a list of links, with their places in the list.

    Args:
        data: uint8 [g, bytes], the rows to send, rank by rank, as `RowCoder.encode` has packed them.
        going: int64 [g], their places in this rank's list, ascending.
        links: int64 [P] each, the length of this rank's list for every rank, and of every rank's list for this rank.
        exchange: Between the ranks.
        operation: The name under which the bytes are counted.

    Returns:
        The rows that have arrived, uint8 [h, bytes], and their places in the receiver's list, int64 [h].
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


def send_all(
    data: Tensor, going: Tensor, links: tuple[Tensor, Tensor], exchange: RowExchange, operation: str
) -> tuple[Tensor, Tensor]:
    """Send all rows of a list of links; arguments and results as in `send_some`."""
    own, theirs = (lengths.tolist() for lengths in links)
    arrived = exchange.start(data, own, theirs, operation).wait()
    return arrived, torch.arange(len(arrived), device=data.device)


def send_sparse(
    data: Tensor, going: Tensor, links: tuple[Tensor, Tensor], exchange: RowExchange, operation: str
) -> tuple[Tensor, Tensor]:
    """Send all float32 rows of a list of links, without their zeros if that takes fewer bytes.

    The rows arrive exactly. Arguments and results are as in `send_some`.
    """
    width = data.shape[1]
    parts = [_without_zeros(rows) for rows in data.split(links[0].tolist())]
    sent = torch.tensor([len(part) for part in parts], device=data.device)
    sizes = exchange.start_counts(sent.unsqueeze(1), f"{operation}_counts").wait().squeeze(1).tolist()
    arrived = exchange.start(torch.cat(parts), sent.tolist(), sizes, operation).wait().split(sizes)
    heard = zip(arrived, links[1].tolist(), strict=True)
    rows = torch.cat([_with_zeros(part, count, width) for part, count in heard])
    return rows, torch.arange(len(rows), device=data.device)


def _without_zeros(data: Tensor) -> Tensor:
    """Return rows of 4-byte values, uint8 [n, bytes], as a bit for each value and the values that are not zero.

    Rows stay as they are if that is not longer. Only a value whose bits are all zero counts as zero.
    """
    values = data.reshape(-1).view(torch.int32)
    kept = values != 0
    packed = _packed_bits(kept)
    shorter = len(packed) + 4 * int(kept.sum()) < data.numel()
    return torch.cat([packed, values[kept].view(torch.uint8)]) if shorter else data.reshape(-1)


def _with_zeros(data: Tensor, count: int, width: int) -> Tensor:
    """Return the rows, uint8 [count, width], that `_without_zeros` was given."""
    if len(data) == count * width:
        return data.view(count, width)
    values = torch.zeros(count * width // 4, dtype=torch.int32, device=data.device)
    size = -(-len(values) // 8)
    kept = _unpacked_bits(data[:size])[: len(values)]
    values[kept] = data[size:].clone().view(torch.int32)
    return values.view(torch.uint8).view(count, width)


def _choice_bytes(count: int, length: int) -> int:
    """Return how many bytes name ``count`` entries of a list: their places, or a bit for each entry of the list.

    No entry and all entries need no bytes.
    """
    return min(count * _PLACE_BYTES, -(-length // 8)) if 0 < count < length else 0


def _choice(places: Tensor, length: int) -> Tensor:
    """Return ascending places in a list as `_choice_bytes` bytes."""
    size = _choice_bytes(len(places), length)
    if not size:
        return places.new_empty(0, dtype=torch.uint8)
    if size == len(places) * _PLACE_BYTES:
        return places.to(torch.int32).view(torch.uint8)
    bits = torch.zeros(length, dtype=torch.bool, device=places.device)
    bits[places] = True
    return _packed_bits(bits)


def _chosen(data: Tensor, count: int, length: int) -> Tensor:
    """Return the places, int64 [count], that `_choice` was given."""
    if not len(data):
        return torch.arange(count, device=data.device)
    if len(data) == count * _PLACE_BYTES:
        return data.clone().view(torch.int32).long()
    return _unpacked_bits(data).nonzero().squeeze(1)


def _packed_bits(bits: Tensor) -> Tensor:
    """Return bool [n] as uint8 [ceil(n / 8)], the first in the lowest bit."""
    if extra := -len(bits) % 8:
        bits = torch.cat([bits, bits.new_zeros(extra)])
    places = torch.arange(8, device=bits.device, dtype=torch.uint8)
    return (bits.view(-1, 8) << places).sum(1, dtype=torch.uint8)


def _unpacked_bits(data: Tensor) -> Tensor:
    """Return the bits of uint8 [n], bool [8 n]."""
    return (data.unsqueeze(1) >> torch.arange(8, device=data.device, dtype=torch.uint8) & 1).flatten().bool()
