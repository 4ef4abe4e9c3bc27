"""Means of compressed gradients: in pieces that one rank sums up, or as products of narrow matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from typing_extensions import override

from lightning_tgnn.algorithms.traffic.gradient_compression import PieceCompression, PowerSGD
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Exchange, InBackground, read_in_background
from lightning_tgnn.types import OwnRows

DENSE = "gradients"
"""The name under which bytes of gradients are counted."""
KEPT = "residuals of gradients"
"""The name under which a checkpoint gathers residuals, and counts their bytes."""


class SumUnderWay(Protocol):
    """A sum that is being formed."""

    def wait(self) -> Tensor:
        """Return it, once it is there; the same bits on all ranks."""
        ...


class CompressedSum(Protocol):
    """Sums up gradients over the ranks, step by step."""

    def start(self, values: Tensor) -> SumUnderWay:
        """Begin to sum what a rank has, [n], all weights one after the other."""
        ...

    def state_dict(self, *, sharded: bool = False) -> dict[str, Any]:
        """Return what all ranks keep for the next step, on the first one; all have to call it together.

        ``"residuals"`` are the residuals of all ranks, [M, n].

        Args:
            sharded: Return what this rank keeps, as `OwnRows`, on all of them.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` returned; other numbers of ranks each take the mean of the residuals."""
        ...


def add_ring(exchange: Exchange, count: int) -> None:
    """Count an all-reduce of so many bytes, as a ring sends them."""
    sent = 2 * (exchange.ranks - 1) * count // exchange.ranks
    exchange.traffic.add(DENSE, sent=sent, received=sent)


def own_of(residual: Tensor, exchange: Exchange) -> OwnRows:
    """Return the residual [n] of this rank as its row of the residuals of all ranks [M, n]."""
    return OwnRows(residual.unsqueeze(0), exchange.rank, exchange.ranks)


def for_rank(residuals: Tensor, exchange: Exchange) -> Tensor:
    """Return this rank's residual [n] from all residuals [M, n]; other numbers of ranks have the same in all."""
    if len(residuals) == exchange.ranks:
        return residuals[torch.tensor([exchange.rank])][0]
    return residuals[:].sum(0) / exchange.ranks


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


_NUDGE = 1e-15
_NEVER_ZERO = 1e-20


class SumOfProducts(CompressedSum):
    """PowerSGD by torch's hook, over one bucket of all weights in their order.

    The buckets of DistributedDataParallel are formed anew after the first step, and what the hook keeps goes by them.

    Args:
        compression: Its settings.
        shapes: Of the weights.
        exchange: Between the ranks; counts the bytes.
        group: The process group of the same.

    Raises:
        InvalidArgumentError: Gradients are on the CPU of a machine with a GPU, for which torch's hook waits.
    """

    def __init__(
        self,
        compression: PowerSGD,
        shapes: Sequence[torch.Size],
        exchange: Exchange,
        group: dist.ProcessGroup | None,
    ) -> None:
        if exchange.device.type == "cpu" and torch.cuda.is_available():
            cure = "take 'int8', train on the GPU, or hide it: CUDA_VISIBLE_DEVICES=''"
            requirement = "another one on the CPU of a machine with a GPU, for which torch's PowerSGD waits"
            raise InvalidArgumentError("gradient_compression", requirement, compression.name, cure)
        self._compression, self._exchange, self._group = compression, exchange, group
        self._shapes = [compression.matrix_of(shape) for shape in shapes]
        self._sizes = [prod(shape) for shape in shapes]
        self._state = PowerSGDState(
            group,
            matrix_approximation_rank=compression.rank,
            start_powerSGD_iter=2,  # the least that it takes
            min_compression_rate=compression.least_gain,
            orthogonalization_epsilon=_NEVER_ZERO,
        )
        self._state.iter = 2
        self._steps = 0

    @override
    def start(self, values: Tensor) -> SumUnderWay:
        exchange, state = self._exchange, self._state
        self._steps += 1
        if self._steps <= self._compression.warm_up:
            work = dist.all_reduce(values, group=self._group, async_op=True)
            add_ring(exchange, values.numel() * values.element_size())
            return _Reduced(values, work)
        dtype = torch.promote_types(values.dtype, torch.float32)  # half precision has no orthogonal matrices
        whole = values.to(dtype, copy=True)  # which the hook changes
        if 0 in state.q_memory_dict:
            self._nudge(state.q_memory_dict[0])
        gradients = [part.view(shape) for part, shape in zip(whole.split(self._sizes), self._shapes, strict=True)]
        future = powerSGD_hook(state, cast(dist.GradBucket, _Bucket(whole, gradients)))
        for count in self._compression.narrow_sizes(self._shapes):
            add_ring(exchange, count * whole.element_size())
        return _Hooked(future, exchange.ranks, values.dtype)  # the hook forms the mean of what are shares of one

    def _nudge(self, right: Tensor) -> None:
        """Turn columns that are zero, as for a weight that a step left alone, or they would stay so."""
        generator = torch.Generator().manual_seed(self._steps)  # the same on all ranks
        right.add_(torch.randn(right.shape, generator=generator).to(right), alpha=_NUDGE)

    @override
    def state_dict(self, *, sharded: bool = False) -> dict[str, Any]:
        state = self._state
        kept: dict[str, Any] = {"steps": torch.tensor(self._steps)}
        if 0 in state.error_dict:
            kept |= {"rank": torch.tensor(self._compression.rank), "right": state.q_memory_dict[0].cpu()}
            if sharded:
                return {**kept, "residuals": own_of(state.error_dict[0], self._exchange)}
            residuals = self._exchange.gather(state.error_dict[0].unsqueeze(0), KEPT)
            kept |= {"residuals": torch.cat(residuals).cpu()} if self._exchange.rank == 0 else {}
        return kept

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state:
            return
        self._steps, device = int(state["steps"]), self._exchange.device
        if "residuals" not in state:
            return
        self._state.error_dict[0] = for_rank(state["residuals"], self._exchange).to(device)
        if int(state["rank"]) == self._compression.rank:  # else the hook draws others
            right = state["right"].to(device, copy=True)
            _, left, _ = self._compression.narrow_sizes(self._shapes)
            self._state.q_memory_dict[0] = right
            self._state.p_memory_dict[0] = right.new_empty(left)


class _Bucket:
    """What the hook asks of a bucket."""

    def __init__(self, values: Tensor, gradients: list[Tensor]) -> None:
        self._values, self._gradients = values, gradients

    def buffer(self) -> Tensor:
        return self._values

    def gradients(self) -> list[Tensor]:
        return self._gradients

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


@dataclass(frozen=True)
class _Reduced:
    values: Tensor
    work: dist.Work

    def wait(self) -> Tensor:
        self.work.wait()
        return self.values


@dataclass(frozen=True)
class _Hooked:
    future: torch.futures.Future[Tensor]
    ranks: int
    dtype: torch.dtype

    def wait(self) -> Tensor:
        return (self.future.wait() * self.ranks).to(self.dtype)
