"""Means of compressed gradients over the ranks, with the residuals that each rank keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from threading import Thread
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from typing_extensions import override

from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression, PieceCompression, PowerSGD
from lightning_tgnn.comm import Exchange

DENSE = "gradients"
"""Under what name the bytes of gradients are counted."""
_STATE = "residuals of gradients"
_NUDGE = 1e-15
_NEVER_ZERO = 1e-20


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

    def state_dict(self) -> dict[str, Tensor]:
        """Return what all ranks keep for the next step, on the first one; all have to call it together.

        ``"residuals"`` are those of all ranks, [M, n].
        """
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what `state_dict` returned; other numbers of ranks each take the mean of the residuals."""
        ...


def compressed_sum(
    compression: GradientCompression,
    shapes: Sequence[torch.Size],
    exchange: Exchange,
    group: dist.ProcessGroup | None,
    *,
    background: bool,
) -> CompressedSum:
    """Return what sums up gradients as a compression says.

    Args:
        compression: What of them travels.
        shapes: Of the weights.
        exchange: Between the ranks.
        group: The process group of the same, which nobody else uses while a sum is under way.
        background: Whether the rank computes meanwhile.
    """
    if isinstance(compression, PieceCompression):
        return SumOfPieces(compression, shapes, exchange, background=background)
    assert isinstance(compression, PowerSGD)
    return SumOfProducts(compression, shapes, exchange, group)


def add_ring(exchange: Exchange, count: int) -> None:
    """Count an all-reduce of so many bytes, as a ring sends them."""
    sent = 2 * (exchange.ranks - 1) * count // exchange.ranks
    exchange.traffic.add(DENSE, sent=sent, received=sent)


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
        return _InBackground(lambda: self._sum(values), self._stream)

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
    def state_dict(self) -> dict[str, Tensor]:
        if self._sent is None or self._summed is None:
            return {}
        sent = self._exchange.gather(self._unpadded(self._sent).unsqueeze(0), _STATE)
        summed = self._exchange.gather(self._summed, _STATE)
        if self._exchange.rank:
            return {}
        return {"residuals": torch.cat(sent).cpu(), "of the sum": self._unpadded(torch.cat(summed)).cpu()}

    @override
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            return
        device, rank = self._exchange.device, self._exchange.rank
        self._sent = self._padded(_of_rank(state["residuals"], self._exchange).to(device))
        lengths = [count * self._compression.block for count in self._pieces]
        self._summed = self._padded(state["of the sum"].to(device)).split(lengths)[rank].clone()


class SumOfProducts(CompressedSum):
    """PowerSGD by torch's hook, over one bucket of all weights in their order.

    The buckets of DistributedDataParallel are formed anew after the first step, and what the hook keeps goes by them.

    Args:
        compression: Its settings.
        shapes: Of the weights.
        exchange: Between the ranks; counts the bytes.
        group: The process group of the same.
    """

    def __init__(
        self,
        compression: PowerSGD,
        shapes: Sequence[torch.Size],
        exchange: Exchange,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._compression, self._exchange, self._group = compression, exchange, group
        self._shapes = [shape or torch.Size([1]) for shape in shapes]
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
        """Turn columns that are zero, as those of a weight that a step left alone, or they would stay so."""
        generator = torch.Generator().manual_seed(self._steps)  # the same on all ranks
        right.add_(torch.randn(right.shape, generator=generator).to(right), alpha=_NUDGE)

    @override
    def state_dict(self) -> dict[str, Tensor]:
        state, kept = self._state, {"steps": torch.tensor(self._steps)}
        if 0 in state.error_dict:
            residuals = self._exchange.gather(state.error_dict[0].unsqueeze(0), _STATE)
            kept |= {"rank": torch.tensor(self._compression.rank), "right": state.q_memory_dict[0].cpu()}
            kept |= {"residuals": torch.cat(residuals).cpu()} if self._exchange.rank == 0 else {}
        return kept

    @override
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            return
        self._steps, device = int(state["steps"]), self._exchange.device
        if "residuals" not in state:
            return
        self._state.error_dict[0] = _of_rank(state["residuals"], self._exchange).to(device)
        if int(state["rank"]) == self._compression.rank:  # else the hook draws others
            right = state["right"].to(device, copy=True)
            _, left, _ = self._compression.narrow_sizes(self._shapes)
            self._state.q_memory_dict[0] = right
            self._state.p_memory_dict[0] = right.new_empty(left)


def _of_rank(residuals: Tensor, exchange: Exchange) -> Tensor:
    """Return the residual [n] of this rank from those of all [M, n]; other numbers of ranks have the same in all."""
    if len(residuals) == exchange.ranks:
        return residuals[exchange.rank]
    return residuals.sum(0) / exchange.ranks


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
class _There:
    values: Tensor

    def wait(self) -> Tensor:
        return self.values


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


class _InBackground:
    """A sum that a thread forms; on a GPU beside the stream of whoever asks for it."""

    def __init__(self, form: Callable[[], Tensor], stream: torch.cuda.Stream | None) -> None:
        self._sum: Future[Tensor] = Future()
        self._stream = stream
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        # A daemon: whoever waits for a rank that has failed must not keep this process from its end.
        Thread(target=self._run, args=(form,), name="sum of gradients", daemon=True).start()

    def _run(self, form: Callable[[], Tensor]) -> None:
        try:
            with torch.cuda.stream(self._stream):
                self._sum.set_result(form())
        except BaseException as error:
            self._sum.set_exception(error)

    def wait(self) -> Tensor:
        values = self._sum.result()
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_stream(self._stream)
            values.record_stream(current)
        return values
