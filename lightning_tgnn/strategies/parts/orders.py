"""Orders of a step's stages: one after the other, overlapping exchange and computation, or computed by owners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar, cast

import torch
from torch import Tensor

from lightning_tgnn.algorithms.schedules.outlines import in_order, pipelined, updated_by_owners
from lightning_tgnn.algorithms.schedules.pipetgl import HOST, SHARDED, PipeTGLOutline, whole_turns
from lightning_tgnn.checks import InvalidArgumentError, check_int, refusal
from lightning_tgnn.state import ShardedStateStore
from lightning_tgnn.state.nodes.owner_update import update_at_owners
from lightning_tgnn.state.nodes.step_fetch import ANNOUNCED_PIECES
from lightning_tgnn.strategies.parts.announcements import announce_batches
from lightning_tgnn.strategies.parts.stores import HostMemory, HostShards
from lightning_tgnn.types import (
    EventBatch,
    GroupOrder,
    NodeStateTask,
    OrderedTask,
    OrderPart,
    PiecewiseStore,
    PipelineStore,
    Run,
    SnapshotTask,
    StageOrder,
    StorePart,
    UpdatedRows,
    has_stages,
)
from lightning_tgnn.types.outline import Stage

ADAPTIVE = "adaptive"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class InOrder(OrderPart):
    """The stages one after the other, in the task's own order."""

    needs: ClassVar[frozenset[str]] = frozenset({"rows"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> StageOrder:
        """Return the task's own order."""
        assert task is not None
        return task.default_stage_order

    def stages(self, store: StorePart) -> tuple[Stage, ...]:
        """Return the stages of a turn."""
        if isinstance(store, HostMemory | HostShards):
            return whole_turns(SHARDED if isinstance(store, HostShards) else HOST)
        return in_order(**store.travels)


@dataclass(frozen=True)
class Pipelined(OrderPart):
    """Rows in micro-batches, and those of the next batch asked for ahead; see `PipelinedOrder`.

    Args:
        micro_batches: n, or ``"adaptive"``: what an `AdaptiveMicroBatch` callback finds to be the fastest.
        fetch_ahead: Fetch the rows of the next batch that this one leaves alone behind this one's computation.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    micro_batches: str | int = 1
    fetch_ahead: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"rows", "pieces"})

    def __post_init__(self) -> None:
        if self.micro_batches == ADAPTIVE:
            return
        cure = "give a number, for example 2, or 'adaptive'"
        if isinstance(self.micro_batches, str):
            raise InvalidArgumentError(refusal("micro_batches", "a number or 'adaptive'", self.micro_batches, cure))
        check_int("micro_batches", self.micro_batches, minimum=1, cure=cure)

    def open(self, run: Run, task: NodeStateTask[object] | None) -> PipelinedOrder:
        """Return the order over the task's store."""
        assert task is not None
        store = task.state_store
        assert isinstance(store, PiecewiseStore)
        count = self.micro_batches if isinstance(self.micro_batches, int) else 1
        if count <= ANNOUNCED_PIECES and self.micro_batches != ADAPTIVE:  # which measures requests
            announce_batches(run, store)
        return PipelinedOrder(store, count, fetch_ahead=self.fetch_ahead, on_arrival=run.send_gradients)

    def stages(self, store: StorePart) -> tuple[Stage, ...]:
        """Return the stages of a turn, as if no row could be asked for ahead: how many can depends on the stream."""
        return pipelined(self.micro_batches if isinstance(self.micro_batches, int) else 1)


@dataclass(frozen=True)
class UpdatedByOwners(OrderPart):
    """Owners apply the mails of their nodes and send the result; see `OwnersOrder`."""

    needs: ClassVar[frozenset[str]] = frozenset({"rows", "owners"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> OwnersOrder:
        """Return the order over the task's store."""
        assert task is not None
        assert isinstance(task.state_store, ShardedStateStore)
        return OwnersOrder(task.state_store)

    def stages(self, store: StorePart) -> tuple[Stage, ...]:
        """Return the stages of a turn."""
        return updated_by_owners()


@dataclass(frozen=True)
class TargetsFirst(OrderPart):
    """What the batch writes comes first, so that the next batch can go on; see `TargetsFirstOrder`."""

    needs: ClassVar[frozenset[str]] = frozenset({"rows", "rows ahead"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> TargetsFirstOrder:
        """Return the order over the task's store."""
        assert task is not None
        assert isinstance(task.state_store, PipelineStore)
        return TargetsFirstOrder(task.state_store)

    def stages(self, store: StorePart) -> tuple[Stage, ...]:
        """Return the stages of a turn; half of the rows change from batch to batch, for that depends on the stream."""
        assert isinstance(store, HostMemory | HostShards)
        where = SHARDED if isinstance(store, HostShards) else HOST
        return PipeTGLOutline(pass_on=store.pass_on, store=where).stages()


@dataclass(frozen=True)
class WholeStep(OrderPart):
    """The step of a task on a whole graph, as it stands: its layers exchange what replicas have aggregated."""

    needs: ClassVar[frozenset[str]] = frozenset({"sums"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> None:
        """Leave the step as it is."""


def give_order(run: Run, part: OrderPart) -> None:
    """Have a task follow an order of a plan, or its own where the plan has none.

    It is always set: an earlier strategy may have left an order that goes to its own store.
    """
    task: object = run.task
    order = part.open(run, task if has_stages(task) else None)
    if isinstance(task, OrderedTask):
        task.stage_order = cast(StageOrder, order or task.default_stage_order)
    elif isinstance(task, SnapshotTask):
        task.group_order = cast(GroupOrder, order or task.default_group_order)


class PipelinedOrder:
    """Two-level pipeline (Sven, section 3.3.2), over the distinct rows of a batch.

    The rows are cut in n micro-batches: first those that are here, then those that travel meanwhile. Mails of one are
    applied while the next is on its way; what the batch writes is sent behind the embeddings. Every row is fetched and
    updated once whatever n is, so the result is that of n = 1. Beyond the paper, the next batch's rows are asked for
    already in this step, and those that this one leaves alone travel behind the rest of it.

    Args:
        store: Where the rows come from.
        micro_batches: n, at least 1.
        fetch_ahead: Ask for the next batch's rows already in this step.
        on_arrival: Called in training once all rows of a step are here and nobody waits for the links any more.
    """

    def __init__(
        self,
        store: PiecewiseStore,
        micro_batches: int = 1,
        *,
        fetch_ahead: bool = True,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.micro_batches = micro_batches
        self.fetch_ahead = fetch_ahead
        self.on_arrival = on_arrival

    def __call__(self, task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
        """Run a step on a batch."""
        stages = task.stages
        with stages("fetch"):
            handles = self.store.fetch_pieces(batch.nodes, self.micro_batches, batch.shared.announced)
        pieces: list[tuple[Tensor, UpdatedRows]] = []
        for handle in handles:
            with stages("fetch"):
                rows = handle.wait()
            if len(handle.places) or not pieces:
                with stages("update"):
                    pieces.append((handle.places, task.apply_mail(rows)))
        with stages("fetch"):
            updated = _joined(pieces)
        training = torch.is_grad_enabled()
        upcoming = batch.shared.upcoming
        if training and self.fetch_ahead and upcoming is not None:
            with stages("fetch"):
                announced = batch.shared.upcoming_announced
                self.store.ask_ahead(upcoming, batch.shared.changed, self.micro_batches, announced)
        with stages("write"):
            task.commit(task.make_mails(updated, batch))  # the next fetch waits for it
        if training and self.on_arrival is not None:
            with stages("fetch"):
                self.store.carry_on()  # small messages first: behind the gradients they would be late
            self.on_arrival()
        with stages("embed"):
            embeddings = stages.embedded(batch, task.embed(updated, batch))
        with stages("fetch"):
            self.store.carry_on()
        with stages("score"):
            answer = task.score(embeddings, batch)
        with stages("fetch"):
            self.store.carry_on()
        return answer


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
            handle = self.store.read_ahead(batch.nodes, batch.shared.around)
            if batch.shared.upcoming is not None and batch.shared.upcoming_around is not None:
                self.store.announce(batch.shared.upcoming, batch.shared.upcoming_around)
            rows = handle.wait()
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


def _joined(pieces: list[tuple[Tensor, UpdatedRows]]) -> UpdatedRows:
    """Return the rows of all pieces, each given with its places, in the order of the places."""
    if len(pieces) == 1:
        return pieces[0][1]
    back = torch.cat([places for places, _ in pieces]).argsort()
    memory = torch.cat([piece.memory for _, piece in pieces]).index_select(0, back)
    time = torch.cat([piece.memory_time for _, piece in pieces]).index_select(0, back)
    return UpdatedRows(memory, time)
