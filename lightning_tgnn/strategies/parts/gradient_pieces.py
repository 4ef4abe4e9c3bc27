"""Means of gradients that are compressed in pieces, each summed up by one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.traffic.gradient_compression import PieceCompression
from lightning_tgnn.comm import Exchange, InBackground, read_in_background
from lightning_tgnn.strategies.parts.compressed_sums import DENSE, KEPT, CompressedSum, SumUnderWay, for_rank, own_of
from lightning_tgnn.types import OwnRows


class SumOfPieces(CompressedSum):
    """Every rank sums up a piece of the values, which it has compressed from all, and sends it compressed to all.

    All ranks decode the same bytes, and so have the same bits. What a rank sends is its gradient and its residual,
    without the residual of values whose gradient is exactly zero: what a step leaves alone, this leaves alone, too, and
    the residual waits. The same holds of the sums: the rank that forms a piece keeps its residual.

    Args:
        compression: What travels.
        shapes: Of the weights.
        exchange: Between the ranks.
        background: Whether a thread does it while the rank computes.
    """

    def __init__(
        self, compression: PieceCompression, shapes: Sequence[torch.Size], exchange: Exchange, *, background: bool
    ) -> None:
        self._compression, self._exchange, self._background = compression, exchange, background
        self._sizes = [prod(shape) for shape in shapes]
        blocks = [compression.blocks(shape) for shape in shapes]
        self._padding = [count * compression.block - size for count, size in zip(blocks, self._sizes, strict=True)]
        ranks = exchange.ranks
        ends = [sum(blocks) * rank // ranks for rank in range(ranks + 1)]
        self._pieces = [end - begin for begin, end in pairwise(ends)]
        self._sent: Tensor | None = None  # residuals of what this rank sends, and of its piece of the sum
        self._summed: Tensor | None = None
        self._stream = torch.cuda.Stream(exchange.device) if exchange.device.type == "cuda" and background else None

    @override
    def start(self, values: Tensor) -> SumUnderWay:
        if not self._background:
            return _There(self._sum(values))
        read_in_background(self._stream, values)
        return InBackground(lambda: self._sum(values), self._stream, "sum of gradients")

    @torch.no_grad()
    def _sum(self, values: Tensor) -> Tensor:
        exchange, compression, ranks = self._exchange, self._compression, self._exchange.ranks
        data, self._sent = self._compressed(self._padded(values), self._sent)
        own = self._pieces[exchange.rank]
        arrived = exchange.start(data, self._pieces, [own] * ranks, DENSE).wait()
        first, *others = compression.decode(arrived).to(self._dtype(values)).view(ranks, -1)
        total = first.clone()
        for other in others:  # rank by rank
            total += other
        data, self._summed = self._compressed(total, self._summed)
        arrived = exchange.start(data.repeat(ranks, 1), [own] * ranks, self._pieces, DENSE).wait()
        return self._unpadded(compression.decode(arrived)).to(values.dtype)

    def _compressed(self, values: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return values and residual as bytes, and what is left of them."""
        compression = self._compression
        if not compression.has_residual:
            return compression.encode(values), None
        residual = torch.zeros_like(values) if residual is None else residual.to(values)
        waits = values == 0
        values = torch.where(waits, 0.0, values + residual)
        data = compression.encode(values)
        left = (values - compression.decode(data)).nan_to_num_(0.0, 0.0, 0.0)
        return data, torch.where(waits, residual, left)

    def _dtype(self, values: Tensor) -> torch.dtype:
        return torch.promote_types(values.dtype, torch.float32)

    def _padded(self, values: Tensor) -> Tensor:
        values = values.to(self._dtype(values))
        if not any(self._padding):
            return values
        pieces = zip(values.split(self._sizes), self._padding, strict=True)
        return torch.cat([part for piece, count in pieces for part in (piece, piece.new_zeros(count))])

    def _unpadded(self, values: Tensor) -> Tensor:
        if not any(self._padding):
            return values
        widths = [width for both in zip(self._sizes, self._padding, strict=True) for width in both]
        return torch.cat(values.split(widths)[::2])

    @override
    def state_dict(self, *, sharded: bool = False) -> dict[str, Any]:
        if self._sent is None or self._summed is None:
            return {}
        if sharded:
            residual = own_of(self._unpadded(self._sent), self._exchange)
            return {"residuals": residual, "of the sum": self._own_of_sum(self._summed)}
        sent = self._exchange.gather(self._unpadded(self._sent).unsqueeze(0), KEPT)
        summed = self._exchange.gather(self._summed, KEPT)
        if self._exchange.rank:
            return {}
        return {"residuals": torch.cat(sent).cpu(), "of the sum": self._unpadded(torch.cat(summed)).cpu()}

    def _own_of_sum(self, summed: Tensor) -> OwnRows:
        """Return the residual of this rank's piece of the sum without what pads it, and where it lies."""
        block, rank = self._compression.block, self._exchange.rank
        places = self._unpadded(torch.arange(sum(self._sizes) + sum(self._padding)))
        begin = sum(self._pieces[:rank]) * block
        start, end = torch.searchsorted(places, torch.tensor([begin, begin + len(summed)])).tolist()
        return OwnRows(summed[(places[start:end] - begin).to(summed.device)], start, len(places))

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state:
            return
        device, rank = self._exchange.device, self._exchange.rank
        self._sent = self._padded(for_rank(state["residuals"], self._exchange).to(device))
        lengths = [count * self._compression.block for count in self._pieces]
        self._summed = self._padded(state["of the sum"][:].to(device)).split(lengths)[rank].clone()
        read_in_background(self._stream, self._sent, self._summed)


@dataclass(frozen=True)
class _There:
    values: Tensor

    def wait(self) -> Tensor:
        return self.values
