"""DistTGL: mini-batch, epoch and memory parallelism over copies of node state, served or sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import EpochsAndCopies
from lightning_tgnn.algorithms.schedules.outlines import CUT, SERVED
from lightning_tgnn.algorithms.streams.information_loss import MAX_LOSS
from lightning_tgnn.algorithms.traffic.gradient_compression import GradientCompression
from lightning_tgnn.checks import InvalidArgumentError, check_bool, check_fraction, refusal
from lightning_tgnn.strategies.parts import MeanGradients, Pipelined, ReadOnce, Served, Sharded
from lightning_tgnn.strategies.parts.parallelism import ChosenParallelism
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import OrderPart, Plan, Run, StorePart

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
                raise InvalidArgumentError(refusal("minibatch", requirement, minibatch, "give one of them"))
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
                cure = "take as many, or store='sharded'"
                raise InvalidArgumentError(refusal("memory", requirement, self.groups, cure))
        elif self._chosen is not None:
            self._chosen.check(hosts, ranks // hosts)
        super().check_ranks(ranks, hosts)

    @override
    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        if self._schedule is None:
            assert self._chosen is not None
            if task is None or trainer is None:
                cure = "give the number of ranks that share a batch"
                raise InvalidArgumentError(refusal("minibatch", "a number where nothing is trained", AUTO, cure))
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
            raise InvalidArgumentError(refusal("Trainer(max_epochs=...)", requirement, given, cure))
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
        raise InvalidArgumentError(refusal("store", f"'{SERVED}' or '{CUT}'", store, "take one of these"))
    if partition is not None:
        cure = "leave it out, or take store='sharded'"
        raise InvalidArgumentError(refusal("partition", "left out where a process serves all rows", partition, cure))
    return Served()
