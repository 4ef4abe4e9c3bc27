"""The partition of the nodes that a strategy takes: made here, given, or read from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.reflexbicut import reflexbicut
from lightning_tgnn.algorithms.partitions.simple import (
    PARTITION_METHODS,
    interval_partition,
    metis_partition,
    range_partition,
)
from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.files.partitions import given_partition


def choose_partition(
    partition: str | Path | Tensor, num_nodes: int, ranks: int, trainer: Any, broadcast: Callable[[Any], Any]
) -> Tensor:
    """Return the rank of every node, int64 [N]; all ranks get that of rank 0.

    Args:
        partition: A method, a file that ``lightning-tgnn partition`` wrote, or int64 [N].
        num_nodes: N.
        ranks: M.
        trainer: Its DataModule knows the stream.
        broadcast: Sends an object from rank 0 to all.

    Raises:
        InvalidArgumentError: There is no such method or file, or it is of another graph or number of ranks.
    """
    if isinstance(partition, Tensor):
        given = given_partition(partition, "nodes", num_nodes, ranks, trainer.datamodule, PARTITION_METHODS)
        return broadcast(given.long())
    if ranks == 1:
        return torch.zeros(num_nodes, dtype=torch.int64)
    if partition == "range":
        return range_partition(num_nodes, ranks)
    if partition == "interval":
        return interval_partition(num_nodes, ranks)
    if str(partition) not in PARTITION_METHODS:
        given = given_partition(Path(partition), "nodes", num_nodes, ranks, trainer.datamodule, PARTITION_METHODS)
        return broadcast(given.long())
    if trainer.datamodule is None:
        cure = "pass trainer.fit(model, datamodule=TemporalDataModule(...)), or partition='interval'"
        raise InvalidArgumentError(refusal("partition", "without a DataModule range or interval", partition, cure))
    # On one rank, for all: the others need neither the time nor a graph partitioner.
    owner = None
    if trainer.global_rank == 0:
        if partition == "metis":
            stream = trainer.datamodule.store
            owner = metis_partition(stream.src, stream.dst, num_nodes, ranks)
        else:
            owner = reflexbicut(trainer.datamodule.demand(ranks))
    return broadcast(owner)
