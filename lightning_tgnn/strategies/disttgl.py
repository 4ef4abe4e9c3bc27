"""DistTGL: mini-batch, epoch and memory parallelism over copies of node state, served or sharded."""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import EpochsAndCopies
from lightning_tgnn.algorithms.schedules.outlines import CUT, SERVED
from lightning_tgnn.algorithms.schedules.parallelism import Parallelism, parallelisms, sharing_ranks
from lightning_tgnn.algorithms.streams.information_loss import MAX_LOSS, busy_nodes, event_distances
from lightning_tgnn.algorithms.streams.node_ends import ends_by_node
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, check_bool, check_fraction
from lightning_tgnn.files.memory import readable_size
from lightning_tgnn.state import state_bytes
from lightning_tgnn.strategies.parts import MeanGradients, Pipelined, ReadOnce, Served, Sharded
from lightning_tgnn.strategies.parts.memory_budget import memory_left
from lightning_tgnn.strategies.parts.node_state import check_has_events
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import OrderPart, Plan, Run, StorePart, StreamData, datamodule_of, has_stages

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
            raise InvalidArgumentError("minibatch", requirement, "auto", cure)
        if not has_stages(model):
            cure = "subclass lightning_tgnn.tasks.MemoryTask, or give the ranks that share a batch"
            raise InvalidArgumentError("model", "a task with node state", type(task).__name__, cure)
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
            raise InvalidArgumentError("minibatch", requirement, "auto", cure)
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
            raise CheckpointError(_KEY, "three integers of at least 1", str(held)[:60], cure)
        found = Parallelism(*held)
        kept = all(value in (None, getattr(found, name)) for name, value in self._given.items())
        if not kept or found.minibatch * found.epoch * found.memory != ranks:
            rank_zero_info(f"the checkpoint is of {found} ranks, which does not fit this run: they are divided anew")
            return None
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that resumes has to know."""
        return {} if self._found is None else {_KEY: list(self._found)}


AUTO = "auto"


class DistTGLStrategy(PlanRunner):
    """DistTGL: i ranks share each batch, j epochs of it are trained at once, on each of k copies of node memory.

    ``batch_size`` counts the events of a rank; a global batch has i times as many. An epoch of the Trainer plays every
    event j k times, so ``max_epochs`` divided by j k is as much training as on one process; ``scale_epochs`` divides
    it. See `EpochsAndCopies`.

    Args:
        minibatch: i, the ranks that share each global batch; ``"auto"`` chooses i, and also j and k if they are left
            out, by the stream and the memory of the machines; see `ChosenParallelism`.
        epoch: j, the epochs of a batch that are trained at once; 1 by default.
        memory: k, the copies of node memory; 1 by default.
        max_loss: Share of the updates of node memory that a global batch may lose where ``minibatch`` is ``"auto"``.
        max_busy_loss: Share that the busiest tenth of the nodes may lose, where their latest events count; None sets no
            limit.
        scale_epochs: Train as many events as one process does in the Trainer's ``max_epochs``, in fewer epochs.
        store: Where the rows of a copy lie. ``"served"``: in a separate process on the machine of the copy's ranks, so
            ``memory`` has to be a multiple of the machines. ``"sharded"``: cut over the copy's ranks, which may be on
            several machines.
        partition: The rank of every node, with ``store="sharded"``; see `Sharded`. None is ``"reflexbicut"``.
        negative_sets: Number of fixed sets of negatives, at least ``epoch``. Each pass over a batch takes a different
            one at random; None draws new negatives in every pass.
        fetch_ahead: Ask for the rows of the next batch as soon as the last batch has finished with node state. With
            sharded rows, only if ``epoch`` is 1.
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
        minibatch: int | str = 1,
        epoch: int | None = None,
        memory: int | None = None,
        max_loss: float = MAX_LOSS,
        max_busy_loss: float | None = None,
        scale_epochs: bool = False,
        store: str = SERVED,
        partition: str | Path | Tensor | None = None,
        negative_sets: int | None = None,
        fetch_ahead: bool = True,
        gradient_compression: GradientCompression | str | None = None,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._rows, self._fetch_ahead = _rows(store, partition), fetch_ahead
        self._mean = MeanGradients(compression=gradient_compression)
        check_fraction("max_loss", max_loss, cure=f"{MAX_LOSS} is the default, a lower share is stricter")
        if max_busy_loss is not None:
            check_fraction("max_busy_loss", max_busy_loss, cure="leave it out for no limit")
        check_bool("scale_epochs", scale_epochs, usual=False)
        self._negative_sets, self._scale_epochs = negative_sets, scale_epochs
        self._scaled_to: int | None = None
        self._chosen: ChosenParallelism | None = None
        given = 1 if epoch is None else epoch, 1 if memory is None else memory
        if isinstance(minibatch, str):
            if minibatch != AUTO:
                requirement = "an integer of at least 1 or 'auto'"
                raise InvalidArgumentError("minibatch", requirement, minibatch, "give one of them")
            across = isinstance(self._rows, Sharded)
            self._chosen = ChosenParallelism(epoch, memory, max_loss, max_busy_loss=max_busy_loss, across=across)
            self._schedule: EpochsAndCopies | None = None
            EpochsAndCopies(1, *given, negative_sets)  # what cannot work is refused now
        else:
            self._play(minibatch, *given)
        self.prefetch_batches = prefetch_batches

    def _play(self, minibatch: int, epoch: int, memory: int) -> None:
        self._schedule = EpochsAndCopies(minibatch, epoch, memory, self._negative_sets)
        self.groups = memory
        in_passes = epoch > 1 or isinstance(self._rows, Served)
        ahead = self._fetch_ahead
        self._order: OrderPart = ReadOnce(ahead) if in_passes else Pipelined(1, fetch_ahead=ahead)

    @property
    @override
    def fewest_ranks(self) -> int:
        schedule = self._schedule
        return 1 if schedule is None else schedule.minibatch * schedule.epoch * schedule.memory

    @override
    def check_ranks(self, ranks: int, hosts: int) -> None:
        if self._schedule is not None:
            self._schedule.check_ranks(ranks)
            if self.groups % hosts and isinstance(self._rows, Served):
                requirement = f"a multiple of the {hosts} machines: a copy of node memory lies on one"
                raise InvalidArgumentError("memory", requirement, self.groups, "take as many, or store='sharded'")
        elif self._chosen is not None:
            self._chosen.check(hosts, ranks // hosts)
        super().check_ranks(ranks, hosts)

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        if self._schedule is None:
            assert self._chosen is not None
            if task is None or trainer is None:
                cure = "give the number of ranks that share a batch"
                raise InvalidArgumentError("minibatch", "a number where nothing is trained", AUTO, cure)
            self._play(*self._chosen.of(self, task, trainer, self._saved))
        assert self._schedule is not None
        return Plan(self.layout, self._schedule, self._rows, self._order, self._mean)

    @override
    def _begin(self, task: pl.LightningModule, trainer: pl.Trainer) -> tuple[Run, Plan]:
        run, plan = super()._begin(task, trainer)
        if self._scale_epochs and trainer.state.fn == "fit":
            self._scale(trainer)  # before schedules of the learning rate ask for the number of steps
        return run, plan

    def _scale(self, trainer: pl.Trainer) -> None:
        """Scale the Trainer's epochs, so that events are trained as often as in one process.

        Raises:
            InvalidArgumentError: ``max_epochs`` of the Trainer is unlimited, or no multiple of ``epoch * memory``.
        """
        assert self._schedule is not None
        times, given = self._schedule.epoch * self._schedule.memory, trainer.fit_loop.max_epochs
        if given == self._scaled_to:
            return  # by an earlier fit of this Trainer
        if given is None or given < 0 or given % times:
            requirement = f"a multiple of {times} with scale_epochs=True: an epoch trains every event {times} times"
            near = max(-(-(given or 0) // times), 1) * times
            cure = f"give for example {near}, or leave scale_epochs out"
            raise InvalidArgumentError("Trainer(max_epochs=...)", requirement, given, cure)
        trainer.fit_loop.max_epochs = self._scaled_to = given // times
        rank_zero_info(f"scale_epochs=True: {given // times} epochs, each of which trains every event {times} times")

    @override
    def strategy_state(self) -> dict[str, Any]:
        assert self._schedule is not None
        state = super().strategy_state()
        return state if self._chosen is None else {**state, **self._chosen.state_dict()}


def _rows(store: str, partition: str | Path | Tensor | None) -> StorePart:
    """Return where rows lie.

    Raises:
        InvalidArgumentError: ``store`` is unknown, or ``partition`` is given for a served one.
    """
    if store == CUT:
        return Sharded("reflexbicut" if partition is None else partition)
    if store != SERVED:
        raise InvalidArgumentError("store", f"'{SERVED}' or '{CUT}'", store, "take one of these")
    if partition is not None:
        cure = "leave it out, or take store='sharded'"
        raise InvalidArgumentError("partition", "left out where a process serves all rows", partition, cure)
    return Served()
