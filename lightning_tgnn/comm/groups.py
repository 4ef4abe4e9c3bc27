"""The process groups of a layout, made once and in one order on all ranks."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import RankLayout

# The groups that have been made beside a default one, which Lightning keeps from one Trainer to the next, too.
_made: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[object, ...], dist.ProcessGroup]] = WeakKeyDictionary()
_SECONDS_TO_LET_GO = 0.1


@atexit.register
def _have_threads_let_go() -> None:
    """Leave Python to the threads of gloo for a moment before it ends.

    They need it to let go of the tensors that they have moved last. A thread that comes to it later, when Python is
    being taken down, aborts the process, and the run, which had ended well, is taken for a failed one.
    """
    if dist.is_available() and dist.is_initialized():
        time.sleep(_SECONDS_TO_LET_GO)


@contextmanager
def _unbound(world: dist.ProcessGroup, backend: str | None) -> Iterator[None]:
    """Take from the default group the GPU that Lightning has bound it to, while a group of gloo is made.

    Torch has ranks outside of a new group split a bound default group: gloo cannot, and NCCL waits for the others.
    """
    bound = getattr(world, "bound_device_id", None)
    if bound is None or "gloo" not in (backend, dist.get_backend(world)):
        yield
        return
    world.bound_device_id = None
    try:
        yield
    finally:
        world.bound_device_id = bound


def leave_group_of_gpus(device: torch.device) -> None:
    """End the default group of an earlier run of this process if it is of NCCL and ``device`` is not a GPU.

    Lightning keeps the group for later runs, but NCCL moves no tensors on the CPU. A group of one process can be made
    again.

    Args:
        device: Where the run that begins computes.

    Raises:
        InvalidArgumentError: The group has several processes, which would have to find each other again.
    """
    if device.type == "cuda" or not dist.is_initialized() or dist.get_backend() != "nccl":
        return
    if dist.get_world_size() > 1:
        cure = "train on the CPU in other processes"
        requirement = "'gpu' where an earlier run has joined the processes by NCCL"
        raise InvalidArgumentError("Trainer(accelerator=...)", requirement, device.type, cure)
    dist.destroy_process_group()


class ProcessGroups:
    """Makes every group of every family of a layout; all ranks have to make them together.

    Torch never ends a group by itself, and the threads of each group wake up a hundred times a second. Later runs of
    the process therefore reuse the groups of earlier runs.

    Args:
        layout: Of all ranks.
        rank: This rank.
        timeout: How long a rank waits for the others; None takes torch's default.

    Attributes:
        layout: Of all ranks.
    """

    def __init__(self, layout: RankLayout, rank: int, timeout: timedelta | None = None) -> None:
        self.layout = layout
        self._rank, self._timeout = rank, timeout
        own = {family: self._make(family) for family in layout.families}
        self._own = {family: group for family, group in own.items() if group is not None}

    def of(self, family: str, way: str = "", *, on_hosts: bool = False) -> dist.ProcessGroup | None:
        """Return this rank's group of a family; None if the rank is alone in it.

        Args:
            family: Of the layout.
            way: Name of a further group of the same ranks, for a thread that communicates at its own times. All ranks
                have to ask for a new name together.
            on_hosts: Have that further group move tensors on the CPU; see `on_hosts`.

        Raises:
            InvalidArgumentError: The layout has no family of that name.
        """
        if on_hosts:
            return self.on_hosts(family, way)
        self.layout.group_of(family, 0)  # refuses what it does not know
        return self._make(family, way) if way else self._own.get(family)

    def on_hosts(self, family: str, way: str) -> dist.ProcessGroup | None:
        """Return a further group of the ranks of this rank's group of a family, for tensors on the CPU.

        Messages between hosts need no accelerator, and threads of a rank may use different groups. All ranks have to
        ask for a new way together.

        Args:
            family: Of the layout.
            way: Its name.

        Raises:
            InvalidArgumentError: The layout has no family of that name.
        """
        self.layout.group_of(family, 0)
        return self._make(family, way, "gloo")

    def forget(self) -> None:
        """Have later runs make new groups, because this run has broken off and its messages may still arrive."""
        if dist.is_available() and dist.is_initialized() and dist.group.WORLD is not None:
            _made.pop(dist.group.WORLD, None)

    def _make(self, family: str, way: str = "", backend: str | None = None) -> dist.ProcessGroup | None:
        """Make the groups of a family, for a way of its own; return the group of this rank."""
        if self.layout.ranks == 1:
            return None
        world, own = dist.group.WORLD, None
        assert world is not None
        made = _made.setdefault(world, {})
        for ranks in self.layout.families[family]:
            key = family, ranks, self._timeout, way, backend
            if key not in made:
                with _unbound(world, backend):
                    made[key] = dist.new_group(list(ranks), timeout=self._timeout, backend=backend)
            own = made[key] if self._rank in ranks else own
        return own
