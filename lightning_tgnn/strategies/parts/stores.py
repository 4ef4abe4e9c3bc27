"""Stores of node state: cut over the ranks by node, whole on every rank, shared by a machine's, or served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_bool, check_not_negative
from lightning_tgnn.comm import shared_tensors
from lightning_tgnn.files.partitions import check_partition_type
from lightning_tgnn.state import (
    PipelinedStateStore,
    ReplicatedStateStore,
    ServedStateStore,
    ShardedStateStore,
)
from lightning_tgnn.state.nodes.pipelined import pipelined_shapes
from lightning_tgnn.strategies.parts.memory_budget import check_copies_fit
from lightning_tgnn.strategies.parts.node_state import NodeState
from lightning_tgnn.strategies.parts.partition import choose_partition
from lightning_tgnn.types import NodeStateTask, Run, StorePart, StreamData, datamodule_of
from lightning_tgnn.types.layout import STATE
from lightning_tgnn.types.outline import ALL_GATHER, ALL_TO_ALL


@dataclass(frozen=True, eq=False)
class Sharded(StorePart):
    """Node state cut over the ranks by a partition of the nodes; rows travel in pieces, asked for ahead.

    Args:
        partition: ``"reflexbicut"``, ``"range"``, ``"interval"``, ``"metis"``, a file that ``lightning-tgnn partition``
            wrote, or int64 [N], the rank of every node.
        row_cache_mb: Megabytes of fetched rows that a rank keeps; 0 for none.
        omit_own_half: Leave out the half of a mail that equals the memory in its row.
        features_by_event: Send a mail's event number instead of its edge features.

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
        check_partition_type(self.partition)
        _check_flags(self, "omit_own_half", "features_by_event")

    def open(self, run: Run) -> NodeState:
        """Return the state of this rank."""
        return NodeState(self)

    def store(self, run: Run, task: NodeStateTask[object]) -> ShardedStateStore:
        """Return the store of this rank."""
        num_nodes, ranks = task.state_spec.num_nodes, len(run.layout.group_of(STATE, run.rank))
        owner = choose_partition(self.partition, num_nodes, ranks, run)
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
    """The whole node state on every rank; reading is local, every update goes to all.

    Args:
        make_mails: Send only the written memories, from which every rank makes the mails.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    make_mails: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"events", "shared batches"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows"})
    travels: ClassVar[Mapping[str, str]] = {"updates": ALL_GATHER}

    def __post_init__(self) -> None:
        _check_flags(self, "make_mails")

    def open(self, run: Run) -> NodeState:
        """Return the state of this rank."""
        return NodeState(self)

    def store(self, run: Run, task: NodeStateTask[object]) -> ReplicatedStateStore:
        """Return the store of this rank."""
        return ReplicatedStateStore(
            task.state_spec,
            run.exchange,
            run.device,
            makes_mails=self.make_mails,
            edge_features=_features(run) if self.make_mails else None,
        )


@dataclass(frozen=True)
class HostMemory(StorePart):
    """Node state in memory that the ranks of a machine share; they read and write it in the order of their batches.

    Args:
        pass_on: Send rows that the next batch also writes straight to the rank of that batch, not to the shared memory
            (PipeTGL, section 4.2). Between ranks that share memory it costs more than it saves.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    pass_on: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"events", "pipeline"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows", "rows ahead"})

    def __post_init__(self) -> None:
        check_bool("pass_on", self.pass_on, usual=False)

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
        """Return the store of this rank.

        Raises:
            InvalidArgumentError: A machine has no memory for its copies.
        """
        check_copies_fit(run, task.state_spec)
        ranks = run.layout.group_of(STATE, run.rank)
        tables = shared_tensors(pipelined_shapes(task.state_spec), ranks, run.rank, run.group_of(STATE))
        # Not over NCCL: the tables are on the host, and a first message of a GPU waits until its receiver asks for it,
        # who may be sending a first gradient to this rank at that moment.
        messages = run.host_messages(STATE, "rows in order")
        return PipelinedStateStore(task.state_spec, messages, tables, run.device, passes_on=self.pass_on)


@dataclass(frozen=True)
class Served(StorePart):
    """Node state in a process of its own on the ranks' machine, which reads and writes in the order of the batches."""

    needs: ClassVar[frozenset[str]] = frozenset({"events"})
    offers: ClassVar[frozenset[str]] = frozenset({"rows"})

    def open(self, run: Run) -> NodeState:
        """Return the state of this rank.

        Raises:
            InvalidArgumentError: The ranks of a copy are on several machines.
        """
        ranks = run.layout.group_of(STATE, run.rank)
        check_one_machine(len({run.layout.hosts[rank] for rank in ranks}))
        return NodeState(self)

    def store(self, run: Run, task: NodeStateTask) -> ServedStateStore:
        """Return the store of this rank.

        Raises:
            InvalidArgumentError: A machine has no memory for its copies.
        """
        check_copies_fit(run, task.state_spec)
        ranks, group = run.layout.group_of(STATE, run.rank), run.group_of(STATE)
        lanes = run.schedule.lanes(run.layout)
        return ServedStateStore(
            task.state_spec, ranks, run.rank, group, lanes=lanes, device=run.device, count_wait=run.count_wait
        )


def _check_flags(part: StorePart, *names: str) -> None:
    for name in names:
        check_bool(name, getattr(part, name), usual=True)


def _features(run: Run) -> Tensor | None:
    """Return the edge features of the stream, float32 [E, d_edge]; None where it is not known."""
    data = datamodule_of(run.trainer)
    return data.store.edge_features if isinstance(data, StreamData) else None


def check_one_machine(count: int) -> None:
    """Refuse ranks on several machines.

    Raises:
        InvalidArgumentError: ``count`` is above 1.
    """
    if count > 1:
        cure = "let groups be the number of machines or a multiple of it, or take strategy='sven'"
        requirement = "so many that the ranks of each are on one machine, whose memory they share"
        raise InvalidArgumentError("groups", requirement, f"ranks of a group on {count} machines", cure)
