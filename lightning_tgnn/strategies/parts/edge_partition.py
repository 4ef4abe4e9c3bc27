"""The partition of the edges that a strategy takes: made here, given, or read from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.vertex_cut import CUT_METHODS, check_enough_edges, vertex_cut
from lightning_tgnn.files.partitions import given_partition


def choose_edge_partition(
    partition: str | Path | Tensor,
    edges: tuple[Tensor, Tensor, int],
    hosts: Tensor,
    trainer: Any,
    broadcast: Callable[[Any], Any],
) -> Tensor:
    """Return the rank of every edge, int32 [E]; all ranks get that of rank 0.

    Args:
        partition: A method, a file, or integers [E].
        edges: Sources and destinations, int32 or int64 [E] each, and N.
        hosts: int64 [P], the host of every rank.
        trainer: Its DataModule knows the graph.
        broadcast: Sends an object from rank 0 to all.

    Raises:
        InvalidArgumentError: There is no such method or file, it is of another graph or number of ranks, or there are
            more ranks than edges to cut.
    """
    src, dst, num_nodes = edges
    if isinstance(partition, Tensor) or str(partition) not in CUT_METHODS:
        given = partition if isinstance(partition, Tensor) else Path(partition)
        read = given_partition(given, "edges", len(src), len(hosts), trainer.datamodule, CUT_METHODS)
        return broadcast(read.to(torch.int32))
    check_enough_edges(len(src), len(hosts))  # on every rank: else the others would wait for the one that cuts
    # On one rank, for all: METIS need not repeat itself, and the others have nothing to do meanwhile.
    part = vertex_cut(src, dst, num_nodes, hosts, str(partition)) if trainer.global_rank == 0 else None
    return broadcast(part)
