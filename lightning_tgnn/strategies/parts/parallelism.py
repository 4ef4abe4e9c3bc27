"""The factors of the ranks of a run: chosen by its stream and its machines (DistTGL, section 3.2.4)."""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from lightning_tgnn.algorithms.schedules.parallelism import Parallelism, parallelisms, sharing_ranks
from lightning_tgnn.algorithms.streams.information_loss import busy_nodes, event_distances
from lightning_tgnn.algorithms.streams.node_ends import ends_by_node
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, refusal
from lightning_tgnn.files.memory import readable_size
from lightning_tgnn.state import state_bytes
from lightning_tgnn.strategies.parts.memory_budget import memory_left
from lightning_tgnn.strategies.parts.node_state import check_has_events
from lightning_tgnn.types import StreamData, datamodule_of, has_stages

_KEY = "parallelism"


class ChosenParallelism:
    """Chooses i, j and k, the same on all ranks.

    The batch size is taken to be what saturates a device. i is the number of such batches in the largest global batch
    that loses at most ``max_loss`` of the updates of node memory, as far as it divides the devices of a machine; k is
    as large as memory allows; j is the remaining factor. A checkpoint holds the choice, and a resumed run on as many
    ranks keeps it.

    Args:
        epoch: j, if given.
        memory: k, if given.
        max_loss: Share of the updates of node memory that a global batch may lose.
        max_busy_loss: Share that the busiest tenth of the nodes may lose, which lose most (DistTGL, section 3.2.4);
            None does not look at them.
        across: Whether a copy of node memory may be cut over several machines.
    """

    def __init__(
        self,
        epoch: int | None,
        memory: int | None,
        max_loss: float,
        *,
        max_busy_loss: float | None = None,
        across: bool = False,
    ) -> None:
        self._given = {"epoch": epoch, "memory": memory}
        self._max_loss, self._max_busy_loss, self._across = max_loss, max_busy_loss, across
        self._found: Parallelism | None = None

    def check(self, machines: int, devices: int) -> None:
        """Refuse what is given and fits no number of such ranks, before any is started.

        Raises:
            InvalidArgumentError: No factors of the ranks fit what is given.
        """
        parallelisms(machines, devices, sharing=devices, copies=devices, across=self._across, **self._given)

    def of(
        self, strategy: DDPStrategy, task: pl.LightningModule, trainer: pl.Trainer, saved: Mapping[str, Any]
    ) -> Parallelism:
        """Return what is chosen; called on all ranks.

        Args:
            strategy: Whose ranks they are.
            task: What is trained.
            trainer: Which trains it.
            saved: What the strategy has saved in the checkpoint that the run resumes from.

        Raises:
            InvalidArgumentError: The stream or the task is not known, or nothing fits.
            CheckpointError: The checkpoint holds something else.
        """
        self._found = self._saved(saved, strategy.world_size) or self._choose(strategy, task, trainer)
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_hyperparams({"parallelism": str(self._found)})
        return self._found

    def _choose(self, strategy: DDPStrategy, task: pl.LightningModule, trainer: pl.Trainer) -> Parallelism:
        check_has_events(task)
        data, model = datamodule_of(trainer), task
        if not isinstance(data, StreamData):
            requirement = "a number, where the Trainer has no DataModule that knows the stream and the batch size"
            cure = "give the ranks that share a batch, or take TemporalDataModule"
            raise InvalidArgumentError(refusal("minibatch", requirement, "auto", cure))
        if not has_stages(model):
            cure = "subclass lightning_tgnn.tasks.MemoryTask, or give the ranks that share a batch"
            raise InvalidArgumentError(refusal("model", "a task with node state", type(task).__name__, cure))
        train = data.split.train
        ends = ends_by_node(data.store.src[train].numpy(), data.store.dst[train].numpy())
        largest, lost = event_distances(*ends).largest_batch(self._max_loss, len(train)), f"{self._max_loss:.0%}"
        if self._max_busy_loss is not None:
            busiest = event_distances(*ends, busy_nodes(np.bincount(ends[0])))
            largest = min(largest, busiest.largest_batch(self._max_busy_loss, len(train)))
            lost += f", and {self._max_busy_loss:.0%} of the busiest tenth of the nodes,"
        each, left = state_bytes(model.state_spec), memory_left(trainer)
        sharing = sharing_ranks(largest, data.batch_size)
        ranks, machines = strategy.world_size, strategy.num_nodes
        together = machines if self._across else 1  # whose memory holds a copy
        copies = self._held(left * together / each, ranks) / together
        found = parallelisms(
            machines, ranks // machines, sharing=sharing, copies=copies, across=self._across, **self._given
        )
        free = "nobody knows how much is" if isinf(left) else f"{readable_size(int(left))} are"
        rank_zero_info(
            f"minibatch='auto': {found[0]} (minibatch x epoch x memory). Batches have {data.batch_size:,} events; "
            f"global batches of up to {largest:,} lose at most {lost} of the updates of node memory. "
            f"A copy takes {readable_size(each)}, and {free} free on each machine"
        )
        return found[0]

    def _held(self, copies: float, ranks: int) -> int:
        """Return how many copies there may be, of which memory holds so many.

        Raises:
            InvalidArgumentError: Nobody knows how many it holds, and their number is not given.
        """
        if isinf(copies) and self._given["memory"] is None:
            cure = "give memory, the copies of node memory, beside it, or the ranks that share a batch"
            requirement = "a number where the system does not tell how much memory is free"
            raise InvalidArgumentError(refusal("minibatch", requirement, "auto", cure))
        return int(min(copies, ranks))

    def _saved(self, saved: Mapping[str, Any], ranks: int) -> Parallelism | None:
        held = saved.get(_KEY)
        if held is None:
            return None
        if (
            not isinstance(held, list)
            or len(held) != 3
            or not all(type(number) is int and number > 0 for number in held)
        ):
            cure = "give a file that was written whole"
            raise CheckpointError(refusal(_KEY, "three integers of at least 1", str(held)[:60], cure))
        found = Parallelism(*held)
        kept = all(value in (None, getattr(found, name)) for name, value in self._given.items())
        if not kept or found.minibatch * found.epoch * found.memory != ranks:
            rank_zero_info(f"the checkpoint is of {found} ranks, which does not fit this run: they are divided anew")
            return None
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that resumes has to know."""
        return {} if self._found is None else {_KEY: list(self._found)}
