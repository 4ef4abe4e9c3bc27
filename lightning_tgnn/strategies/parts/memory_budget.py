"""How many copies of node state the machines of a run hold, computed before anything is allocated."""

from __future__ import annotations

import lightning.pytorch as pl
import torch

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import shared_memory_left
from lightning_tgnn.files.memory import available_memory, readable_size
from lightning_tgnn.state import state_bytes
from lightning_tgnn.types import Run, StateSpec


def memory_left(trainer: pl.Trainer) -> float:
    """Return the bytes that the ranks of a machine can share, of the machine that has least; on all ranks at once.

    Nobody returns before all have looked, so that nothing is allocated before.
    """
    known = [left for left in (available_memory(), shared_memory_left()) if left is not None]
    here = torch.tensor(min(known, default=float("inf")), dtype=torch.float64, device=trainer.strategy.root_device)
    return float(trainer.strategy.reduce(here, reduce_op="min"))


def check_copies_fit(run: Run, spec: StateSpec) -> None:
    """Refuse more copies of node state than the machine of any rank has memory for; on all ranks at once.

    Raises:
        InvalidArgumentError: The copies on a machine take more memory than it has left.
    """
    machines = [run.layout.hosts[ranks[0]] for ranks in run.layout.copies]
    copies, each = max(machines.count(machine) for machine in machines), state_bytes(spec)
    left = memory_left(run.trainer)
    if copies * each > left:
        received = f"{copies} of {readable_size(each)} each, {readable_size(int(left))} free"
        requirement = "small enough for the memory that the processes of a machine share"
        cure = "take fewer copies, store='sharded', strategy='sven', a smaller memory_dim, or more memory"
        raise InvalidArgumentError("copies of node state on a machine", requirement, received, cure)
