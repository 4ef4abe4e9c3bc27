"""Orders of a step's stages: one after the other, computed by owners, or of the rows that are written first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar, cast

import torch

from lightning_tgnn.algorithms.schedules.outlines import in_order, updated_by_owners
from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline, whole_turns
from lightning_tgnn.state import ShardedStateStore
from lightning_tgnn.state.nodes.update_exchange import update_at_owners
from lightning_tgnn.strategies.parts.stores import HostMemory
from lightning_tgnn.types import (
    EventBatch,
    GroupOrder,
    NodeStateTask,
    OrderPart,
    PipelineStore,
    Run,
    SnapshotTask,
    StageOrder,
    StorePart,
    UpdatedRows,
    has_stages,
)
from lightning_tgnn.types.outline import ALL_TO_ALL, LINKS, After, RowShares, Stage

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class InOrder(OrderPart):
    """The stages one after the other, in the task's own order."""

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> StageOrder:
        """Return the task's own order."""
        assert task is not None
        return task.default_stage_order

    def stages(self, store: StorePart, shares: RowShares) -> tuple[Stage, ...]:
        """Return the stages of a turn."""
        return whole_turns() if isinstance(store, HostMemory) else in_order(**store.travels)


@dataclass(frozen=True)
class UpdatedByOwners(OrderPart):
    """Owners apply the mails of their nodes and send the result; see `OwnersOrder`."""

    needs: ClassVar[frozenset[str]] = frozenset({"rows", "owners"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> OwnersOrder:
        """Return the order over the task's store."""
        assert task is not None
        assert isinstance(task.state_store, ShardedStateStore)
        return OwnersOrder(task.state_store)

    def stages(self, store: StorePart, shares: RowShares) -> tuple[Stage, ...]:
        """Return the stages of a turn."""
        return updated_by_owners()


@dataclass(frozen=True)
class TargetsFirst(OrderPart):
    """The rows that the batch writes come first, so that the next batch can continue; see `TargetsFirstOrder`."""

    needs: ClassVar[frozenset[str]] = frozenset({"rows", "rows ahead"})

    @property
    def shares(self) -> frozenset[str]:
        """Which shares of rows the stages depend on."""
        return frozenset({"targets", "repeated"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> TargetsFirstOrder:
        """Return the order over the task's store."""
        assert task is not None
        assert isinstance(task.state_store, PipelineStore)
        return TargetsFirstOrder(task.state_store)

    def stages(self, store: StorePart, shares: RowShares) -> tuple[Stage, ...]:
        """Return the stages of a turn."""
        assert isinstance(store, HostMemory)
        return PipeTGLOutline(pass_on=store.pass_on, targets=shares.targets, repeated=shares.repeated).stages()


@dataclass(frozen=True)
class WholeStep(OrderPart):
    """The step of a task on a whole graph, unchanged: its layers exchange the partial aggregates of replicas."""

    needs: ClassVar[frozenset[str]] = frozenset({"sums"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> None:
        """Leave the step as it is."""

    def stages(self, store: StorePart, shares: RowShares) -> tuple[Stage, ...]:
        """Return the stages of a turn; the partial sums of all layers, forward and backward, are one exchange."""
        return (Stage("forward", trains=True), Stage("sums", LINKS, (After("forward"),), travel=ALL_TO_ALL))


def give_order(run: Run, part: OrderPart) -> None:
    """Have a task follow an order of a plan, or its own where the plan has none.

    It is always set: an earlier strategy may have left an order that goes to its own store.
    """
    task: object = run.task
    order = part.open(run, task if has_stages(task) else None)
    if has_stages(task):
        task.stage_order = cast(StageOrder, order or task.default_stage_order)
    elif isinstance(task, SnapshotTask):
        task.group_order = cast(GroupOrder, order or task.default_group_order)


class OwnersOrder:
    """DepComm (Sven, section 2.3): owners apply the mails and send the memory of every entry of the sampled graph.

    Args:
        store: Where the rows are.
    """

    def __init__(self, store: ShardedStateStore) -> None:
        self.store = store

    def __call__(self, task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
        """Run a step on a batch."""
        stages = task.stages
        index = torch.cat([batch.root_index, batch.neighbor_index[batch.neighbor_mask]])
        with stages("fetch"):
            memory, time = update_at_owners(self.store, batch.nodes[index], stages, task.apply_mail)
            # Copies of a node are equal; any one of them stands for it.
            place = torch.empty_like(batch.nodes).index_copy_(0, index, torch.arange(len(index), device=index.device))
            updated = UpdatedRows(memory.index_select(0, place), time[place])
        with stages("write"):
            task.commit(task.make_mails(updated, batch))  # the next exchange of node state waits for it
        with stages("embed"):
            embeddings = stages.embedded(batch, task.embed(updated, batch))
        with stages("score"):
            return task.score(embeddings, batch)


class TargetsFirstOrder:
    """Memory operations on target nodes before all else (PipeTGL, section 4.1).

    Rows that the batch before leaves alone are read while it is still at work; then the others, for which this batch
    waits. Mails of the nodes that the batch writes are applied first, and the result is written: the next batch goes
    on from there, while this one applies the mails of its other nodes and computes.

    Args:
        store: Where the rows are.
    """

    def __init__(self, store: PipelineStore) -> None:
        self.store = store

    def __call__(self, task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
        """Run a step on a batch."""
        stages = task.stages
        with stages("fetch"):
            rows = self.store.read_ahead(batch.nodes, batch.shared.around).wait()
        targets, others = rows.split(batch.num_written)
        with stages("update"):
            updated = task.apply_mail(targets)
        with stages("write"):
            task.commit(task.make_mails(updated, batch))
        if len(others.memory):
            with stages("update"):
                supporting = task.apply_mail(others)
                memory = torch.cat([updated.memory, supporting.memory])
                updated = UpdatedRows(memory, torch.cat([updated.memory_time, supporting.memory_time]))
        with stages("embed"):
            embeddings = stages.embedded(batch, task.embed(updated, batch))
        with stages("score"):
            return task.score(embeddings, batch)
