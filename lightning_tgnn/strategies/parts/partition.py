"""The partition of nodes or edges that a store takes: made here, given, or read from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import DemandSample
from lightning_tgnn.algorithms.partitions.partition_cost import balance_report
from lightning_tgnn.algorithms.partitions.reflexbicut import reflexbicut
from lightning_tgnn.algorithms.partitions.simple import (
    PARTITION_METHODS,
    interval_partition,
    metis_partition,
    range_partition,
)
from lightning_tgnn.algorithms.partitions.vertex_cut import AUTO, CUT_METHODS, best_cut, check_enough_edges, vertex_cut
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError, check_path
from lightning_tgnn.files.partitions import check_is_file, given_partition
from lightning_tgnn.types import Run, StreamData, datamodule_of
from lightning_tgnn.types.layout import GRADIENTS


@runtime_checkable
class DemandingData(Protocol):
    """A DataModule that knows which rank will read which rows how often."""

    def demand(self, ranks: int, schedule: DataParallel) -> tuple[DemandSample, DemandSample | None]:
        """Return two samples of demand from an epoch's batches: one to fit a partition on, one to judge it on.

        The second is None where there is only one batch.
        """
        ...


def choose_partition(partition: str | Path | Tensor, num_nodes: int, ranks: int, run: Run) -> Tensor:
    """Return the rank of every node, int64 [N]; all ranks get the owners of rank 0.

    Args:
        partition: A method, a file that ``lightning-tgnn partition`` wrote, or int64 [N].
        num_nodes: N.
        ranks: M.
        run: Its DataModule knows the stream.

    Raises:
        InvalidArgumentError: The method or file is unknown, or the partition is of another graph or number of ranks.
    """
    data = datamodule_of(run.trainer)
    if not isinstance(partition, Tensor):
        if str(partition) not in PARTITION_METHODS:
            check_is_file(check_path("partition", partition), PARTITION_METHODS)  # on one rank, too
        if ranks == 1:
            return torch.zeros(num_nodes, dtype=torch.int64)
        if partition == "range":
            return range_partition(num_nodes, ranks)
        if partition == "interval":
            return interval_partition(num_nodes, ranks)
    if isinstance(partition, Tensor) or str(partition) not in PARTITION_METHODS:
        given = partition if isinstance(partition, Tensor) else check_path("partition", partition)
        read = given_partition(given, "nodes", num_nodes, ranks, data, PARTITION_METHODS)
        return from_first_rank(run, read, num_nodes).long()
    if not (isinstance(data, StreamData) and isinstance(data, DemandingData)):
        cure = "pass trainer.fit(model, datamodule=TemporalDataModule(...)), or partition='interval'"
        raise InvalidArgumentError("partition", "without a DataModule range or interval", partition, cure)
    # On one rank, for all: the others need neither the time nor a graph partitioner.
    owner = None
    if run.rank == 0:
        if partition == "metis":
            owner = metis_partition(data.store.src, data.store.dst, num_nodes, ranks)
        else:
            schedule = run.schedule if isinstance(run.schedule, DataParallel) else DataParallel()
            owner = _balanced(*data.demand(ranks, schedule))
    return from_first_rank(run, owner, num_nodes).long()


def from_first_rank(run: Run, owner: Tensor | None, count: int) -> Tensor:
    """Return the partition of rank 0 on all ranks, int32 [count]; it travels as it is, not pickled.

    Args:
        run: All of its ranks have to ask.
        owner: Integers [count]; the others may have None.
        count: Nodes or edges.
    """
    return broadcast_of(run)(_from_this_rank(owner, count))


def broadcast_of(run: Run) -> Callable[[Tensor], Tensor]:
    """Return what gives all ranks of a run the values of rank 0; theirs have the same type and shape."""
    messages = run.messages(GRADIENTS)
    return lambda values: messages.broadcast(values.to(messages.device), "partition").cpu()


def _from_this_rank(owner: Tensor | None, count: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(count, dtype=dtype) if owner is None else owner.to(dtype)


def _balanced(fitted: DemandSample, judged: DemandSample | None) -> Tensor:
    """Return a partition that is fitted on some batches, and tell what it gains on them and on others."""
    demand = fitted.demand
    owner = reflexbicut(demand, reliability=fitted.reliability)
    simple = interval_partition(demand.num_nodes, demand.num_ranks)
    samples = {"batches that it was fitted on": fitted, "others": judged}
    gains = [
        f"{round(-_gain(sample, owner, simple), 3) + 0.0:+.1%} in {len(sample.numbers)} {which}"
        for which, sample in samples.items()
        if sample is not None
    ]
    fullest = float(torch.bincount(owner).max()) * demand.num_ranks / demand.num_nodes
    rank_zero_info(
        f"partition: rows that the busiest rank moves with reflexbicut, against interval: {', '.join(gains)};"
        f" the fullest rank has {fullest:.2f} times the mean of rows"
    )
    return owner


def _gain(sample: DemandSample, owner: Tensor, other: Tensor) -> float:
    """Return by which share the busiest rank has less to do than with another partition."""
    return 1 - balance_report(sample.demand, owner).maximum / max(balance_report(sample.demand, other).maximum, 1)


def choose_edge_partition(
    partition: str | Path | Tensor,
    edges: tuple[Tensor, Tensor, int],
    hosts: Tensor,
    trainer: pl.Trainer,
    broadcast: Callable[[Tensor], Tensor],
    *,
    relay: bool = True,
) -> Tensor:
    """Return the rank of every edge, uint8 [E], int32 for more than 256 ranks; all ranks get the owners of rank 0.

    Args:
        partition: A method, a file, or integers [E].
        edges: Sources and destinations, int32 or int64 [E] each, and N.
        hosts: int64 [P], the host of every rank.
        trainer: Its DataModule knows the graph.
        broadcast: Returns the values of rank 0; the values of other ranks have the same type and shape.
        relay: Whether one replica on a host speaks for all of them there, for ``"auto"``.

    Raises:
        InvalidArgumentError: The method or file is unknown, the partition is of another graph or number of ranks, or
            there are more ranks than edges to cut.
    """
    src, dst, num_nodes = edges
    dtype = torch.uint8 if len(hosts) <= 256 else torch.int32  # it is kept as long as the graph
    methods = (*CUT_METHODS, AUTO)
    if isinstance(partition, Tensor) or str(partition) not in methods:
        given = partition if isinstance(partition, Tensor) else check_path("partition", partition)
        read = given_partition(given, "edges", len(src), len(hosts), datamodule_of(trainer), methods)
        return broadcast(_from_this_rank(read, len(src), dtype))
    check_enough_edges(len(src), len(hosts))  # on every rank: else the others would wait for the one that cuts
    # On one rank, for all: METIS need not repeat itself, and the others have nothing to do meanwhile.
    owner = None
    if trainer.global_rank == 0 and partition == AUTO:
        owner, rows = best_cut(src, dst, num_nodes, hosts, relay=relay)
        tried = ", ".join(f"{count:,} by {method}" for method, count in rows.items())
        least = min(rows, key=rows.__getitem__)
        rank_zero_info(f"partition: {least}; rows that a gather moves between ranks, or hosts: {tried}")
    elif trainer.global_rank == 0:
        owner = vertex_cut(src, dst, num_nodes, hosts, str(partition))
    return broadcast(_from_this_rank(owner, len(src), dtype))
