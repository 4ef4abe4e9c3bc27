"""BLAD: groups of snapshots, scheduled by load, in a pipeline of two processes on each device."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from typing_extensions import override

from lightning_tgnn.algorithms.schedules.snapshot_groups import LOAD, SEARCH, SnapshotGroups
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.checks import InvalidArgumentError, check_bool
from lightning_tgnn.strategies.parts import GroupPipeline, MeanGradients, SnapshotMemory
from lightning_tgnn.strategies.runner import SnapshotRunner
from lightning_tgnn.types import Plan

AUTO = "auto"


class BLADStrategy(SnapshotRunner):
    """BLAD: whole groups of snapshots go to devices, so that only gradients of weights travel between them.

    Inside a GPU two processes, each a rank, share the groups: the first computes the leading snapshots of a group and
    moves on to the next, while the second computes the remaining snapshots from the hidden state of the first. Either
    process may also compute a whole group. Both are busy if groups are cut at the right place, which is chosen by
    predicted seconds from the second epoch on. ``processes_per_device=2`` asks for such pairs. The result equals that
    of one process that trains the same groups.

    On GPUs ``devices`` counts the GPUs, each of which has ``processes_per_device`` processes; on CPUs it counts
    processes.

    Args:
        processes_per_device: Ranks of a device: 2, or 1 for whole groups on every rank, as ``"auto"`` has it. On CPUs
            two processes have no device to share, and whole groups were faster. On a GPU without NVIDIA MPS the kernels
            of two processes take turns, and nobody has measured two to be faster yet.
        balance: ``"load"`` deals out groups, and splits them, by predicted seconds; ``"even"`` by number.
        split: How the two processes of a device cut groups, and how ``reorder`` chooses. ``"search"``: what ends the
            simulated pipeline soonest, whole groups on either process among it; ``"paper"``: Equation 2 alone, with its
            limit put right, and Algorithm 1 as it is printed.
        reorder: Choose for what runs at once on a device, two processes or two streams, in which order each layer of
            each snapshot multiplies by the graph and by the weights, so that one multiplies by the graph while the
            other multiplies by the weights (BLAD, section 6). Contention is measured in the first epoch.
        streams: CUDA streams on which the groups of a process take turns: 2 overlaps operators of two groups in one
            process, without NVIDIA MPS, only with one process a device. On CPUs groups run one after the other.
        open_groups: How many groups the first process may have open, waiting for their gradients.
        gradient_compression: How gradients are compressed before they are sent: ``"bfloat16"``, ``"int8"``,
            ``"powersgd"`` or one of them with settings, see `MeanGradients`; None sends them as they are.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        processes_per_device: int | str = AUTO,
        balance: str = LOAD,
        split: str = SEARCH,
        reorder: bool = True,
        streams: int = 1,
        open_groups: int = 2,
        gradient_compression: GradientCompression | str | None = None,
        **options: Any,
    ) -> None:
        check_bool("reorder", reorder, usual=True)
        is_other = isinstance(processes_per_device, bool) or not isinstance(processes_per_device, int | str)
        if is_other or processes_per_device not in (1, 2, AUTO):
            requirement = "1, 2 or 'auto'"
            cure = "2 is a pipeline; SnapshotPartitionStrategy hands groups through any number of ranks"
            raise InvalidArgumentError("processes_per_device", requirement, processes_per_device, cure)
        self._given, self._balance, self._reorder = processes_per_device, balance, reorder
        self._open_groups, self._split, self._streams = open_groups, split, streams
        if streams != 1 and processes_per_device == 2:
            cure = "set processes_per_device=1, or set streams=1"
            raise InvalidArgumentError("streams", "1 with processes_per_device=2", streams, cure)
        self._take_parts(processes_per_device if isinstance(processes_per_device, int) else 1)
        super().__init__(**options)
        self._order = GroupPipeline(open_groups, streams)
        self._mean = MeanGradients(compression=gradient_compression)

    @property
    @override
    def parallel_devices(self) -> list[torch.device] | None:
        """The device of every rank of this machine; the processes of a GPU have it in common."""
        return super().parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, parallel_devices: list[torch.device] | None) -> None:
        on_gpu = any(device.type == "cuda" for device in parallel_devices or ())
        processes = self._given if isinstance(self._given, int) else 1
        self._take_parts(processes)
        each = processes if on_gpu else 1
        self.set_parallel_devices(parallel_devices and [device for device in parallel_devices for _ in range(each)])

    def _take_parts(self, processes: int) -> None:
        """Deal out groups to devices of so many ranks."""
        self._processes = processes
        self._schedule = SnapshotGroups(processes, self._balance, self._open_groups, self._split)
        measure, reorder = self._balance == LOAD or self._reorder, self._reorder and max(processes, self._streams) > 1
        self._snapshots = SnapshotMemory(measure=measure, reorder=reorder, split=self._split)

    @override
    def default_backend(self) -> str:
        # NCCL refuses two processes on a GPU.
        return "gloo" if self._processes > 1 and self.root_device.type == "cuda" else super().default_backend()

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        return Plan(self.layout, self._schedule, self._snapshots, self._order, self._mean)
