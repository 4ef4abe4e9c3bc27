"""Runs a plan over real process groups: the one base of all strategies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import lightning.pytorch as pl
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from lightning_tgnn.algorithms.schedules.snapshot_groups import SnapshotGroups
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Exchange, Messages, ProcessGroups, Traffic
from lightning_tgnn.strategies.parts.orders import give_order
from lightning_tgnn.strategies.parts.pipelined_order import PipelinedOrder
from lightning_tgnn.strategies.parts.snapshot_memory import SnapshotState
from lightning_tgnn.strategies.parts.updates import MeanUpdates
from lightning_tgnn.strategies.parts.vertex_cut import ReplicaState
from lightning_tgnn.strategies.processes.same_recipe import check_same_on_all, plan_of, recipe_of
from lightning_tgnn.strategies.processes.supervised import SupervisedStrategy
from lightning_tgnn.types import (
    SHARDED,
    KeptRows,
    OpenState,
    Plan,
    RankLayout,
    Run,
    ScheduledLoader,
    WeightUpdates,
    check_saved_gradients,
)
from lightning_tgnn.types.layout import GRADIENTS, STATE, check_families, families_of

_CHECKPOINT_KEY = "lightning_tgnn.strategy"
_Result = TypeVar("_Result")


class PlanRunner(SupervisedStrategy):
    """Runs what `plan` says; subclasses say it.

    Args:
        **options: Of `SupervisedStrategy`.

    Attributes:
        shares_node_state: Whether the ranks share one node state.
        trains_on: ``"events"``, a static ``"graph"`` or ``"snapshots"``.
        prefetch_batches: Batches made ahead, in place of the DataModule's; None leaves that as it is.
        groups: Copies of node state, each shared by as many ranks.
        planned: What is run; None before a task is there.

    Raises:
        InvalidArgumentError: An option is unknown, or cannot work in this session.
    """

    shares_node_state = True
    trains_on = "events"
    prefetch_batches: int | None = None
    groups: int = 1

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.exchange = Exchange()
        self.planned: Plan | None = None
        self._layout: RankLayout | None = None  # of ranks that nobody starts
        self._saved: dict[str, Any] = {}
        self._kept_rows = KeptRows()
        self._groups: ProcessGroups | None = None
        self._state: OpenState | None = None
        self._updates: WeightUpdates | None = None

    def plan(self, task: pl.LightningModule | None, trainer: pl.Trainer | None) -> Plan:
        """Return what is to be run: who works on what, where state lives, how stages follow, when weights change.

        Asked at the start of every run of a Trainer. The parts should be the same objects each time: a store or updates
        that are new ones begin anew, the same ones continue with what an earlier run left. `layout` has the ranks.
        `plan_for` asks without a task and a Trainer.
        """
        raise NotImplementedError

    def plan_for(self, ranks: int, hosts: int = 1) -> Plan:
        """Return the plan of so many ranks, without starting any: what is simulated, proved and drawn.

        Args:
            ranks: Of all hosts.
            hosts: Hosts with equally many ranks.

        Raises:
            InvalidArgumentError: The ranks do not fit the plan, or it depends on what is trained.
        """
        if ranks < 1 or hosts < 1 or ranks % hosts:
            raise InvalidArgumentError("ranks", f"as many on each of {hosts} hosts", ranks, "give a multiple")
        self.check_ranks(ranks, hosts)
        families = families_of(ranks, self.groups)
        self._layout = RankLayout.of(ranks, per_host=ranks // hosts, families=families)
        try:
            return self.plan(None, None)
        finally:
            self._layout = None

    @property
    def fewest_ranks(self) -> int:
        """The fewest ranks that the plan fits."""
        return self.groups

    def check_ranks(self, ranks: int, hosts: int) -> None:
        """Refuse numbers that do not fit the plan, before ranks are started.

        Raises:
            InvalidArgumentError: The ranks or the hosts do not fit the plan.
        """
        families_of(ranks, self.groups)

    @property
    def layout(self) -> RankLayout:
        """The ranks of this run, with their groups: for state, for gradients, and across the copies of state."""
        if self._layout is not None:
            return self._layout
        families = families_of(self.world_size, self.groups)
        return RankLayout.of(self.world_size, per_host=max(self.num_processes, 1), families=families)

    @property
    def ranks_per_batch(self) -> int:
        """How many ranks share a global batch."""
        assert self.lightning_module is not None
        plan = self.planned or self.plan(self.lightning_module, self.lightning_module.trainer)
        return plan.schedule.global_batch_size(plan.layout, 1)

    @property
    def ranks_per_copy(self) -> int:
        """How many ranks share a copy of node state."""
        return self.world_size // self.groups

    @property
    def batches_at_once(self) -> int:
        """How many batches of a rank's size are trained at weights that lack each other's updates."""
        assert self.lightning_module is not None
        plan = self.planned or self.plan(self.lightning_module, self.lightning_module.trainer)
        in_turn = plan.updates.batches_at_once(plan.schedule.batches_at_once(plan.layout))
        shared = max(plan.schedule.global_batch_size(plan.layout, 1), 1)  # none where there are no events
        return shared * in_turn * len(plan.layout.copies)

    @property
    def staleness(self) -> int:
        """Steps by which gradients come late."""
        return 0 if self._updates is None else self._updates.delay

    @property
    def order(self) -> PipelinedOrder | None:
        """The pipeline of this run; None where there is none."""
        order = getattr(self.lightning_module, "stage_order", None)
        return order if isinstance(order, PipelinedOrder) else None

    @property
    def replica_state(self) -> ReplicaState | None:
        """Cut, caches and threshold of this run; None where no graph is cut."""
        return self._state if isinstance(self._state, ReplicaState) else None

    @property
    def waited(self) -> float:
        """Seconds for which this rank has stood waiting for others: for rows, and for gradients."""
        return self.exchange.traffic.waited + (0.0 if self._updates is None else self._updates.waited)

    def from_all_ranks(self, value: _Result) -> list[_Result]:
        """Return a value, tensors and plain values, of every rank; all have to call it together."""
        return self.broadcast(self._messages(GRADIENTS).gather(value))

    @override
    def check_launch(self) -> None:
        self.check_ranks(self.world_size, self.num_nodes)
        super().check_launch()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        check_same_on_all(lambda: recipe_of(self, trainer), self._everyone, self.broadcast)
        run, plan = self._begin(trainer.lightning_module, trainer)
        state, updates = self._opened
        updates.check(trainer)
        state.give(run, self._saved)
        give_order(run, plan.order)
        super().setup(trainer)
        if trainer.state.fn == "fit":
            updates.check_optimizers(self.optimizers)

    @property
    def _opened(self) -> tuple[OpenState, WeightUpdates]:
        assert self._state is not None
        assert self._updates is not None
        return self._state, self._updates

    def _begin(self, task: pl.LightningModule, trainer: pl.Trainer) -> tuple[Run, Plan]:
        """Return the run that begins, with its parts open, and its plan."""
        before, plan = self.planned, self.plan(task, trainer)
        check_same_on_all(lambda: plan_of(plan), self._everyone, self.broadcast)
        if self._groups is None or self._groups.layout != plan.layout:
            check_families(plan.layout)
            before, self._groups = None, ProcessGroups(plan.layout, self.global_rank, self.timeout)
            ranks, group = plan.layout.group_of(STATE, self.global_rank), self._groups.of(STATE)
            self.exchange = Exchange(len(ranks), ranks.index(self.global_rank), group, self.root_device)
        run = Run(
            layout=plan.layout,
            schedule=plan.schedule,
            rank=self.global_rank,
            task=task,
            trainer=trainer,
            device=self.root_device,
            exchange=self.exchange,
            group_of=self._groups.of,
            broadcast=self.broadcast,
            messages=self._messages,
            host_messages=self._host_messages,
            count_wait=self.exchange.traffic.add_wait,
            kept_rows=self._kept_rows,
            send_gradients=lambda: None if self._updates is None else self._updates.start(),
            writes_own_rows=self.state_dict_type == SHARDED,
        )
        if before is None or before.store is not plan.store:
            self._state = plan.open_store(run)
        if before is None or before.updates is not plan.updates:
            self._updates = plan.open_updates(run, may_be_unused=bool(self.ddp_options.get("find_unused_parameters")))
        self.planned = plan
        return run, plan

    def _messages(self, family: str, *, within_copy: bool = False) -> Messages:
        assert self._groups is not None
        ranks = self._groups.layout.group_of(STATE if within_copy else family, self.global_rank)
        return Messages(ranks, self.global_rank, self._groups.of(family), self.root_device)

    @override
    def _host_messages(self, family: str, way: str) -> Messages:
        assert self._groups is not None
        ranks, group = self._groups.layout.group_of(family, self.global_rank), self._groups.on_hosts(family, way)
        return Messages(ranks, self.global_rank, group, traffic=self.exchange.traffic)

    @override
    def configure_ddp(self) -> None:
        super().configure_ddp()
        self._attach()

    def _attach(self) -> None:
        assert self.lightning_module is not None
        assert isinstance(self.model, DistributedDataParallel)
        self._opened[1].attach(self.lightning_module, self.model, self._saved.pop("gradients", {}))

    @override
    def process_dataloader(self, dataloader: object) -> object:
        assert self._state is not None
        loader = self._state.loader(dataloader)
        if self.prefetch_batches is not None:
            if not isinstance(loader, ScheduledLoader):
                cure = "leave it out, or take the loaders of TemporalDataModule"
                requirement = f"left out: a {type(loader).__name__} makes no batches ahead"
                raise InvalidArgumentError("prefetch_batches", requirement, self.prefetch_batches, cure)
            loader.prefetch_batches = self.prefetch_batches
        return loader

    @override
    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        state, updates = self._opened
        state.begin_turn()
        updates.begin_turn(len(batch) if hasattr(batch, "__len__") else 1)

    @override
    def on_validation_start(self) -> None:
        super().on_validation_start()
        if self._updates is not None:
            self._updates.show()

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        if self._updates is not None:
            self._updates.show()
        return super().lightning_module_state_dict()

    @override
    def pre_backward(self, closure_loss: Tensor) -> None:
        super().pre_backward(closure_loss)
        self._opened[1].before_backward()

    @override
    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], _Result],
        model: pl.LightningModule | Module | None = None,
        **kwargs: object,
    ) -> _Result:
        update = super().optimizer_step
        return self._opened[1].step(closure, lambda passes: update(optimizer, passes, model, **kwargs))

    @override
    def on_train_end(self) -> None:
        super().on_train_end()
        if self._updates is not None:
            self._updates.finish()

    def strategy_state(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold of the run; called on all ranks."""
        state, updates = self._opened
        return {"gradients": updates.state_dict(), **state.state_dict()}

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: object = None) -> None:
        checkpoint[_CHECKPOINT_KEY] = self.strategy_state()
        # On all ranks alike: these are means over the ranks.
        check_saved_gradients(self.lightning_module, self._opened[1].pending_gradients())
        super().save_checkpoint(checkpoint, filepath, storage_options)

    @override
    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        self._saved = dict(checkpoint.get(_CHECKPOINT_KEY, {}))
        if self._state is not None:
            self._state.forget()
        if self._updates is not None:
            self._updates.forget()  # gradients of an earlier fit, whose weights have now gone
            if isinstance(self.model, DistributedDataParallel):  # within a fit: LearningRateFinder does so
                self._attach()
                self._updates.check_optimizers(self.optimizers)
        return checkpoint

    @override
    def teardown(self) -> None:
        self._saved = {}  # of a checkpoint that was tested; the next fit must not apply its gradients
        if self._state is not None:
            self._state.take_back()
        task = self.lightning_module
        if self._groups is not None and task is not None and task.trainer.interrupted:
            self._groups.forget()  # and all that has sent by them: the next run begins anew
            self._groups = self.planned = self._state = self._updates = None
        super().teardown()


class SnapshotRunner(PlanRunner):
    """Runs plans on groups of snapshots."""

    shares_node_state = False
    trains_on = "snapshots"
    _schedule = SnapshotGroups(1)

    @property
    @override
    def layout(self) -> RankLayout:
        """The ranks of this run; the ranks of a device are a pipeline."""
        layout = super().layout
        return layout.with_pipelines(self._schedule.pipeline_length(layout))

    @property
    @override
    def fewest_ranks(self) -> int:
        return self._schedule.processes or 1

    @property
    def gradient_traffic(self) -> Traffic:
        """What gradients of weights have taken, apart from all else, which is in ``exchange.traffic``."""
        return self._updates.traffic if isinstance(self._updates, MeanUpdates) else Traffic()

    @property
    def snapshot_state(self) -> SnapshotState | None:
        """The order of groups on this rank, and what is known of loads; None before a run begins."""
        return self._state if isinstance(self._state, SnapshotState) else None

    @override
    def check_launch(self) -> None:
        self._schedule.pipeline_length(RankLayout.of(self.world_size))  # refused before ranks are started
        super().check_launch()
