"""Stores of node state: cut over the ranks by node, or whole on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_not_negative, refusal
from lightning_tgnn.comm import shared_tensors
from lightning_tgnn.state import PipelinedShards, PipelinedStateStore, ReplicatedStateStore, ShardedStateStore
from lightning_tgnn.state.nodes.pipelined import pipelined_shapes
from lightning_tgnn.strategies.parts.partition import choose_partition
from lightning_tgnn.types import (
    MessageExchange,
    NodeStateTask,
    PipelineStore,
    RankLayout,
    Run,
    ScheduledLoader,
    StateStore,
    StorePart,
    StreamData,
    datamodule_of,
    has_stages,
    missing_stages,
)
from lightning_tgnn.types.layout import COPIES, STATE
from lightning_tgnn.types.outline import ALL_GATHER, ALL_TO_ALL


@dataclass(frozen=True, eq=False)
class Sharded(StorePart):
    """Node state cut over the ranks by a partition of the nodes; rows travel in pieces, asked for ahead.

    Args:
        partition: ``"reflexbicut"``, ``"range"``, ``"interval"``, ``"metis"``, a file that ``lightning-tgnn partition``
            wrote, or int64 [N], the rank of every node.
        row_cache_mb: Megabytes of fetched rows that a rank keeps; 0 for none.
        omit_own_half: Do not send of a mail what lies in its row.
        features_by_event: Do not send a mail's edge features but the number of its event.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    partition: str | Path | Tensor = "reflexbicut"
    row_cache_mb: float = 256
    omit_own_half: bool = True
    features_by_event: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"events", "shared batches"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows", "pieces", "owners"})
    travels: ClassVar[Mapping[str, str]] = {"rows": ALL_TO_ALL, "updates": ALL_TO_ALL}

    def __post_init__(self) -> None:
        check_not_negative("row_cache_mb", self.row_cache_mb, cure="256 is usual, 0 keeps no rows")

    def open(self, run: Run) -> NodeState:
        """Return the state of this rank."""
        return NodeState(self)

    def store(self, run: Run, task: NodeStateTask[object]) -> ShardedStateStore:
        """Return the store of this rank."""
        num_nodes = task.state_spec.num_nodes
        owner = choose_partition(self.partition, num_nodes, run.ranks, run.trainer, run.broadcast)
        return ShardedStateStore(
            task.state_spec,
            owner,
            run.exchange,
            run.device,
            row_cache_mb=self.row_cache_mb,
            omit_own_half=self.omit_own_half,
            edge_features=_features(run) if self.features_by_event else None,
        )


@dataclass(frozen=True)
class Replicated(StorePart):
    """The whole node state on every rank; reading is local, every update goes to all."""

    needs: ClassVar[frozenset[str]] = frozenset({"events", "shared batches"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows"})
    travels: ClassVar[Mapping[str, str]] = {"updates": ALL_GATHER}

    def open(self, run: Run) -> NodeState:
        """Return the state of this rank."""
        return NodeState(self)

    def store(self, run: Run, task: NodeStateTask[object]) -> ReplicatedStateStore:
        """Return the store of this rank."""
        return ReplicatedStateStore(task.state_spec, run.exchange, run.device)


@dataclass(frozen=True)
class HostMemory(StorePart):
    """Node state in memory that the ranks of a machine share; they read and write it in the order of their batches.

    Args:
        pass_on: Send rows that the next batch writes as well straight to its rank, in place of the shared memory
            (PipeTGL, section 4.2).
    """

    pass_on: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"events", "pipeline"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows", "rows ahead"})

    def open(self, run: Run) -> NodeState:
        """Return the state of this rank.

        Raises:
            InvalidArgumentError: The ranks are on several machines.
        """
        layout = run.layout
        ranks = layout.group_of(STATE, run.rank)
        check_one_machine(len({layout.hosts[rank] for rank in ranks}))
        return NodeState(self)

    def store(self, run: Run, task: NodeStateTask) -> PipelinedStateStore:
        """Return the store of this rank."""
        ranks = run.layout.group_of(STATE, run.rank)
        tables = shared_tensors(pipelined_shapes(task.state_spec), ranks, run.rank, run.group_of(STATE))
        return PipelinedStateStore(task.state_spec, run.messages(STATE), tables, run.device, passes_on=self.pass_on)


@dataclass(frozen=True, eq=False)
class HostShards(StorePart):
    """Node state cut over the memory of the ranks' hosts; owners serve its rows in the order of the batches.

    One machine need not hold it, and ranks may be on several.

    Args:
        partition: As of `Sharded`.
        pass_on: Send rows that the next batch writes as well straight to its rank, in place of their owner (PipeTGL,
            section 4.2).
        omit_own_half: Do not send of a mail what lies in its row.
        features_by_event: Do not send a mail's edge features but the number of its event.
    """

    partition: str | Path | Tensor = "reflexbicut"
    pass_on: bool = True
    omit_own_half: bool = True
    features_by_event: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"events", "pipeline"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows", "rows ahead"})

    def open(self, run: Run) -> NodeState:
        """Return the state of this rank."""
        return NodeState(self)

    def store(self, run: Run, task: NodeStateTask[object]) -> PipelinedShards:
        """Return the store of this rank."""
        spec, ranks = task.state_spec, len(run.layout.group_of(STATE, run.rank))
        return PipelinedShards(
            spec,
            choose_partition(self.partition, spec.num_nodes, ranks, run.trainer, run.broadcast),
            lambda way: run.host_messages(STATE, way),
            passes_on=self.pass_on,
            omit_own_half=self.omit_own_half,
            edge_features=_features(run) if self.features_by_event else None,
        )


def _features(run: Run) -> Tensor | None:
    """Return the edge features of the stream, float32 [E, d_edge]; None where it is not known."""
    data = datamodule_of(run.trainer)
    return data.store.edge_features if isinstance(data, StreamData) else None


def check_one_machine(count: int) -> None:
    """Refuse ranks on several machines.

    Raises:
        InvalidArgumentError: There are so many machines.
    """
    if count > 1:
        cure = "let groups be the number of machines or a multiple of it, or take store='sharded'"
        requirement = "so many that the ranks of each are on one machine, whose memory they share"
        raise InvalidArgumentError(refusal("groups", requirement, f"ranks of a group on {count} machines", cure))


def _sharing(layout: RankLayout) -> list[int]:
    """Return how many ranks share each copy of node state."""
    return [len(ranks) for ranks in layout.copies]


class NodeState:
    """Node state that the ranks of a run share.

    Args:
        part: Makes the store.
    """

    def __init__(self, part: Sharded | Replicated | HostMemory | HostShards) -> None:
        self._part = part
        self._store: StateStore | None = None
        self._run: Run | None = None
        self._copies: MessageExchange | None = None

    def give(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Put our store behind the task, with the state that it has from an earlier run.

        Raises:
            InvalidArgumentError: The task has not the stages of a memory-based temporal GNN.
        """
        task: object = run.task
        if not has_stages(task):
            missing = ", ".join(missing_stages(task))
            requirement = f"a task with the stages of a memory-based temporal GNN; {missing} missing"
            cure = "subclass lightning_tgnn.tasks.MemoryTask, or take strategy='cdfgnn' for a static graph"
            raise InvalidArgumentError(refusal("model", requirement, type(task).__name__, cure))
        self._run, self._copies = run, run.messages(COPIES)
        held = task.state_store if task.has_state_store else None
        if self._store is None or held is not self._store:
            if self._store is not None:
                _ = self._store.position  # nothing of it may be on its way behind what the new one sends
            self._store = self._part.store(run, task)
            if held is not None:
                self._store.load_state_dict(run.broadcast(held.state_dict()))
            task.state_store = self._store
            self._give_copy(run, saved.get(COPIES))
        elif saved:
            self._give_copy(run, saved.get(COPIES))

    def _give_copy(self, run: Run, saved: Mapping[str, Any] | None) -> None:
        """Have further copies of node state go on where they have ended; empty where other ranks have shared them."""
        copy, _ = run.layout.copy_of(run.rank)
        if run.trainer.state.fn != "fit" or len(run.layout.copies) == 1:
            return
        goes_on = saved is not None and saved["ranks"] == _sharing(run.layout)
        if run.trainer.ckpt_path is not None and not goes_on:
            rank_zero_info("copies of node state beside the first begin empty: other ranks have shared them before")
        if copy:
            assert self._store is not None
            if saved is not None and goes_on:
                self._store.load_state_dict(saved["states"][copy])
            else:
                self._store.reset()

    def loader(self, loader: object) -> object:
        """Return a loader that follows the plan's schedule.

        Raises:
            InvalidArgumentError: There are several ranks, and it can follow none.
        """
        assert self._run is not None
        if not isinstance(loader, ScheduledLoader):
            if self._run.ranks == 1:
                return loader  # a user's own, which has all events in its order
            cure = "take the loaders of TemporalDataModule"
            received = type(loader).__name__
            raise InvalidArgumentError(refusal("dataloader", "one that can be cut over ranks", received, cure))
        return loader.follow(self._run.schedule, self._run.layout, self._run.rank)

    def begin_turn(self) -> None:
        """Do nothing: batches say what they need."""

    def forget(self) -> None:
        """Do nothing: node state is the task's."""

    def take_back(self) -> None:
        """Leave the store behind the task: it holds what was trained. Nothing of it is on its way any more."""
        if self._run is None or self._run.trainer.interrupted:
            return  # not all ranks may be there
        if isinstance(self._store, PipelineStore):
            _ = self._store.position  # else the next run, by the same process groups, would receive it

    def state_dict(self) -> dict[str, Any]:
        """Return the further copies of node state; the task saves the first."""
        assert self._run is not None
        assert self._copies is not None
        if self._copies.ranks == 1:
            return {}
        assert self._store is not None
        state = self._store.state_dict()
        _, place = self._run.layout.copy_of(self._run.rank)
        states = self._copies.gather(state) if place == 0 else []
        return {COPIES: {"ranks": _sharing(self._run.layout), "states": [None, *states[1:]]}} if states else {}
