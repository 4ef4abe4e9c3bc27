"""Means of gradients whose matrices travel as products of narrow ones: PowerSGD by torch's hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from typing_extensions import override

from lightning_tgnn.algorithms.traffic.gradient_compression import PowerSGD
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.comm import Exchange
from lightning_tgnn.strategies.parts.compressed_sums import KEPT, CompressedSum, SumUnderWay, add_ring, for_rank, own_of

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
            raise InvalidArgumentError(refusal("gradient_compression", requirement, compression.name, cure))
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
