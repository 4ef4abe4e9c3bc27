"""The partition of nodes or edges that a store takes: made here, given, or read from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import lightning.pytorch as pl
import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import Demand
from lightning_tgnn.algorithms.partitions.reflexbicut import reflexbicut
from lightning_tgnn.algorithms.partitions.simple import (
    PARTITION_METHODS,
    interval_partition,
    metis_partition,
    range_partition,
)
from lightning_tgnn.algorithms.partitions.vertex_cut import CUT_METHODS, check_enough_edges, vertex_cut
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.files.partitions import given_partition
from lightning_tgnn.types import Broadcast, StreamData, datamodule_of


@runtime_checkable
class DemandingData(StreamData, Protocol):
    """A DataModule of an event stream that knows which rank will read which rows how often."""

    def demand(self, ranks: int) -> Demand:
        """Return that for the batches of an epoch, dealt out to so many ranks."""
        ...


def choose_partition(
    partition: str | Path | Tensor, num_nodes: int, ranks: int, trainer: pl.Trainer, broadcast: Broadcast
) -> Tensor:
    """Return the rank of every node, int64 [N]; all ranks get that of rank 0.

    Args:
        partition: A method, a file that ``lightning-tgnn partition`` wrote, or int64 [N].
        num_nodes: N.
        ranks: M.
        trainer: Its DataModule knows the stream.
        broadcast: Sends a value from rank 0 to all.

    Raises:
        InvalidArgumentError: There is no such method or file, or it is of another graph or number of ranks.
    """
    data = datamodule_of(trainer)
    if isinstance(partition, Tensor):
        given = given_partition(partition, "nodes", num_nodes, ranks, data, PARTITION_METHODS)
        return broadcast(given.long())
    if ranks == 1:
        return torch.zeros(num_nodes, dtype=torch.int64)
    if partition == "range":
        return range_partition(num_nodes, ranks)
    if partition == "interval":
        return interval_partition(num_nodes, ranks)
    if str(partition) not in PARTITION_METHODS:
        given = given_partition(Path(partition), "nodes", num_nodes, ranks, data, PARTITION_METHODS)
        return broadcast(given.long())
    if not isinstance(data, DemandingData):
        cure = "pass trainer.fit(model, datamodule=TemporalDataModule(...)), or partition='interval'"
        raise InvalidArgumentError(refusal("partition", "without a DataModule range or interval", partition, cure))
    # On one rank, for all: the others need neither the time nor a graph partitioner.
    owner = None
    if trainer.global_rank == 0:
        if partition == "metis":
            owner = metis_partition(data.store.src, data.store.dst, num_nodes, ranks)
        else:
            owner = reflexbicut(data.demand(ranks))
    chosen = broadcast(owner)
    assert chosen is not None
    return chosen


def choose_edge_partition(
    partition: str | Path | Tensor,
    edges: tuple[Tensor, Tensor, int],
    hosts: Tensor,
    trainer: pl.Trainer,
    broadcast: Broadcast,
) -> Tensor:
    """Return the rank of every edge, int32 [E]; all ranks get that of rank 0.

    Args:
        partition: A method, a file, or integers [E].
        edges: Sources and destinations, int32 or int64 [E] each, and N.
        hosts: int64 [P], the host of every rank.
        trainer: Its DataModule knows the graph.
        broadcast: Sends a value from rank 0 to all.

    Raises:
        InvalidArgumentError: There is no such method or file, it is of another graph or number of ranks, or there are
            more ranks than edges to cut.
    """
    src, dst, num_nodes = edges
    if isinstance(partition, Tensor) or str(partition) not in CUT_METHODS:
        given = partition if isinstance(partition, Tensor) else Path(partition)
        read = given_partition(given, "edges", len(src), len(hosts), datamodule_of(trainer), CUT_METHODS)
        return broadcast(read.to(torch.int32))
    check_enough_edges(len(src), len(hosts))  # on every rank: else the others would wait for the one that cuts
    # On one rank, for all: METIS need not repeat itself, and the others have nothing to do meanwhile.
    owner = vertex_cut(src, dst, num_nodes, hosts, str(partition)) if trainer.global_rank == 0 else None
    chosen = broadcast(owner)
    assert chosen is not None
    return chosen
