"""The partition of the nodes that a strategy takes: made here, given, or read from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partition import (
    PARTITION_METHODS,
    interval_partition,
    metis_partition,
    range_partition,
)
from lightning_tgnn.algorithms.reflexbicut import reflexbicut
from lightning_tgnn.checks import InvalidArgumentError, refusal

_CURE = "make one with `lightning-tgnn partition` for this stream and number of ranks"


def choose_partition(
    partition: str | Path | Tensor, num_nodes: int, ranks: int, trainer: Any, broadcast: Callable[[Any], Any]
) -> Tensor:
    """Return the rank of every node, int64 [N].

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
        return _checked(partition.long(), num_nodes, ranks)
    if ranks == 1:
        return torch.zeros(num_nodes, dtype=torch.int64)
    if partition == "range":
        return range_partition(num_nodes, ranks)
    if partition == "interval":
        return interval_partition(num_nodes, ranks)
    if str(partition) not in PARTITION_METHODS:
        return _from_file(Path(partition), num_nodes, ranks, trainer.datamodule)
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


def save_partition(path: Path, owner: Tensor, ranks: int, method: str, fingerprint: str) -> None:
    """Write a partition for `SvenStrategy(partition=path)`."""
    torch.save({"owner": owner, "ranks": ranks, "method": method, "fingerprint": fingerprint}, path)


def _from_file(path: Path, num_nodes: int, ranks: int, datamodule: Any) -> Tensor:
    if not path.is_file():
        requirement = f"one of {', '.join(PARTITION_METHODS)}, or a file"
        raise InvalidArgumentError(refusal("partition", requirement, path, _CURE))
    try:
        saved = torch.load(path, weights_only=True)
        owner, saved_ranks, fingerprint = saved["owner"], saved["ranks"], saved["fingerprint"]
    except Exception as error:
        raise InvalidArgumentError(refusal("partition", "a file of a partition", path, _CURE)) from error
    if saved_ranks != ranks:
        raise InvalidArgumentError(refusal("partition", f"for {ranks} ranks", f"{saved_ranks} ranks in {path}", _CURE))
    if datamodule is not None and datamodule.info.fingerprint != fingerprint:
        raise InvalidArgumentError(refusal("partition", "of this graph", f"that of another in {path}", _CURE))
    return _checked(owner, num_nodes, ranks)


def _checked(owner: Tensor, num_nodes: int, ranks: int) -> Tensor:
    if owner.shape != (num_nodes,):
        raise InvalidArgumentError(
            refusal("partition", f"a rank for each of {num_nodes} nodes", list(owner.shape), _CURE)
        )
    if num_nodes and not 0 <= int(owner.min()) <= int(owner.max()) < ranks:
        wrong = int(owner.min()) if int(owner.min()) < 0 else int(owner.max())
        raise InvalidArgumentError(refusal("partition", f"ranks in 0 .. {ranks - 1}", wrong, _CURE))
    return owner
