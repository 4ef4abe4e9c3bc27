"""The partition of the edges that a strategy takes: made here, given, or read from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.vertex_cut import CUT_METHODS, vertex_cut
from lightning_tgnn.checks import InvalidArgumentError, refusal

_CURE = "make one with lightning_tgnn.strategies.edge_partition.save_edge_partition for this graph and number of ranks"


def choose_edge_partition(
    partition: str | Path | Tensor,
    edges: tuple[Tensor, Tensor, int],
    hosts: Tensor,
    trainer: Any,
    broadcast: Callable[[Any], Any],
) -> Tensor:
    """Return the rank of every edge, int32 [E].

    Args:
        partition: A method, a file, or integers [E].
        edges: Sources and destinations, int64 [E] each, and N.
        hosts: int64 [P], the host of every rank.
        trainer: Its DataModule knows the graph.
        broadcast: Sends an object from rank 0 to all.

    Raises:
        InvalidArgumentError: There is no such method or file, or it is of another graph or number of ranks.
    """
    src, dst, num_nodes = edges
    if isinstance(partition, Tensor):
        return _checked(partition, len(src), len(hosts))
    if str(partition) not in CUT_METHODS:
        return _from_file(Path(partition), len(src), len(hosts), trainer.datamodule)
    # On one rank, for all: METIS need not repeat itself, and the others have nothing to do meanwhile.
    part = vertex_cut(src, dst, num_nodes, hosts, str(partition)) if trainer.global_rank == 0 else None
    return broadcast(part)


def save_edge_partition(path: Path, part: Tensor, ranks: int, method: str, fingerprint: str) -> None:
    """Write a partition for `CDFGNNStrategy(partition=path)`."""
    torch.save({"part": part, "ranks": ranks, "method": method, "fingerprint": fingerprint}, path)


def _from_file(path: Path, count: int, ranks: int, datamodule: Any) -> Tensor:
    if not path.is_file():
        requirement = f"one of {', '.join(CUT_METHODS)}, or a file"
        raise InvalidArgumentError(refusal("partition", requirement, path, _CURE))
    try:
        saved = torch.load(path, weights_only=True)
        part, saved_ranks, fingerprint = saved["part"], saved["ranks"], saved["fingerprint"]
    except Exception as error:
        raise InvalidArgumentError(refusal("partition", "a file of a partition of edges", path, _CURE)) from error
    if saved_ranks != ranks:
        raise InvalidArgumentError(refusal("partition", f"for {ranks} ranks", f"{saved_ranks} ranks in {path}", _CURE))
    if datamodule is not None and datamodule.info.fingerprint != fingerprint:
        raise InvalidArgumentError(refusal("partition", "of this graph", f"that of another in {path}", _CURE))
    return _checked(part, count, ranks)


def _checked(part: Tensor, count: int, ranks: int) -> Tensor:
    if part.shape != (count,):
        raise InvalidArgumentError(refusal("partition", f"a rank for each of {count} edges", list(part.shape), _CURE))
    if not 0 <= int(part.min()) <= int(part.max()) < ranks:
        wrong = int(part.min()) if int(part.min()) < 0 else int(part.max())
        raise InvalidArgumentError(refusal("partition", f"ranks in 0 .. {ranks - 1}", wrong, _CURE))
    return part.to(torch.int32)
