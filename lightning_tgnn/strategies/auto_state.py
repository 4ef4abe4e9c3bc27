"""Sven's sharded node state, or all of it on every rank: whichever suits the stream, the ranks and their hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.partitions.simple import interval_partition
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.algorithms.traffic.state_traffic import state_traffic
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.memory import available_memory, readable_size
from lightning_tgnn.state import state_bytes
from lightning_tgnn.strategies.parts import InOrder, Pipelined, Replicated, Sharded, StaleGradients
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import Plan, SharedWrites, StateSpec, datamodule_of, has_stages

_STEPS = 32
_ROOM = 0.5  # of the memory that is free: batches and activations want some, too


class StateChoice(NamedTuple):
    """Where node state is to live.

    Attributes:
        replicated: On every rank; else cut over the ranks.
        reason: Why.
    """

    replicated: bool
    reason: str


@runtime_checkable
class SteppingData(Protocol):
    """A DataModule that shows what steps of training read and write."""

    def steps(self, ranks: int, batches: int) -> Iterator[tuple[list[Tensor], SharedWrites]]:
        """Yield the nodes that each rank reads in consecutive global batches, and what all write."""
        ...


class AutoStateStrategy(PlanRunner):
    """Shares node state as `DepCacheStrategy` or as `SvenStrategy` does, and logs which of the two and why.

    Every rank keeps all rows if two things hold: they fit into half of the free memory, and either all ranks are on one
    host or fewer bytes travel that way. The bytes are counted on batches drawn from the middle of the training split.
    Otherwise rows are cut over the ranks. Both give the same results up to rounding.

    Args:
        staleness: 1 applies gradients one step late and hides their all-reduce; 0 waits for them.
        partition: As in `SvenStrategy`, where rows are cut.
        gradient_compression: How gradients are compressed before they are sent: ``"bfloat16"``, ``"int8"``,
            ``"powersgd"`` or one of them with settings, see `MeanGradients`; None sends them as they are.
        prefetch_batches: Batches made ahead; None leaves that to the DataModule.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        staleness: int = 1,
        partition: str | Path | Tensor = "reflexbicut",
        gradient_compression: GradientCompression | str | None = None,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.prefetch_batches = prefetch_batches
        self._mean = StaleGradients(staleness, gradient_compression)
        self._stores = Sharded(partition), Replicated()
        self._orders = Pipelined(), InOrder()
        self.choice: StateChoice | None = None

    @property
    @override
    def staleness(self) -> int:
        return self._mean.delay

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        if self.choice is None:
            if trainer is None:
                requirement = "one whose plan does not depend on what is trained"
                raise InvalidArgumentError("strategy", requirement, "auto-state", "take sven and depcache")
            self.choice = self._choose(task, trainer)
            taken = "depcache" if self.choice.replicated else "sven"
            rank_zero_info(f"auto-state: node state as in {taken}: {self.choice.reason}")
        place = int(self.choice.replicated)
        return Plan(self.layout, DataParallel(), self._stores[place], self._orders[place], self._mean)

    def _choose(self, task: object, trainer: pl.Trainer) -> StateChoice:
        """Return the same choice on all ranks, who have to ask together."""
        ranks, hosts = self.world_size, len(set(self.layout.hosts))
        if ranks == 1 or not has_stages(task):
            return StateChoice(True, "one rank exchanges nothing")
        needed, left = state_bytes(task.state_spec), self._memory_of_a_rank()
        size = f"{readable_size(needed)} on every rank"
        if needed > left:
            return StateChoice(
                False, f"{size} would not fit into half of the {readable_size(int(2 * left))} that are free"
            )
        if hosts == 1:
            return StateChoice(True, f"{size} fits, and all ranks are on one host, where reading its own is faster")
        data = datamodule_of(trainer)
        if not isinstance(data, SteppingData):
            return StateChoice(False, f"nobody can count what travels between {hosts} hosts without a DataModule")
        # On rank 0, for all: drawing batches of all ranks takes a moment.
        choice = self.broadcast(counted(data, ranks, task.state_spec) if self.global_rank == 0 else None)
        assert choice is not None
        return choice

    def _memory_of_a_rank(self) -> float:
        """Return the bytes that every rank may take, of the machine and the device that have least."""
        here = available_memory()
        left = float("inf") if here is None else here / max(self.num_processes, 1)
        if self.root_device.type == "cuda":
            left = float(torch.cuda.mem_get_info(self.root_device)[0])
        least = torch.tensor(_ROOM * left, dtype=torch.float64, device=self.root_device)
        return float(self.reduce(least, reduce_op="min"))


def counted(data: SteppingData, ranks: int, spec: StateSpec) -> StateChoice:
    """Return which moves fewer bytes between ranks of several hosts.

    Args:
        data: Knows the stream.
        ranks: M, at least 2.
        spec: Widths of a row.
    """
    owner = interval_partition(spec.num_nodes, ranks)
    found = state_traffic([*data.steps(ranks, _STEPS)], owner, ranks, spec)
    replicated = found.replicated <= found.sharded
    reason = (
        f"{found.replicated / 1e3:,.0f} kB a rank and step with all rows on each of {ranks} ranks, "
        f"{found.sharded / 1e3:,.0f} kB with rows cut over them, counted on drawn batches"
    )
    return StateChoice(replicated, reason)
