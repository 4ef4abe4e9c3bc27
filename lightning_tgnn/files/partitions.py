"""Partitions in files: which rank owns each node, or each edge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, did_you_mean
from lightning_tgnn.files.tensors import load_tensors
from lightning_tgnn.files.whole import write_tensors

_WIDE_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_CURE = "make one with `lightning-tgnn partition` for this graph and number of ranks"
_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *_WIDE_UNSIGNED}


class _Info(Protocol):
    @property
    def fingerprint(self) -> str: ...


@runtime_checkable
class KnowsGraph(Protocol):
    """A DataModule of a stream or a graph, which has a fingerprint."""

    @property
    def info(self) -> _Info:
        """What there is to know of it."""
        ...


def save_partition(path: Path, owner: Tensor, ranks: int, method: str, fingerprint: str) -> None:
    """Write a partition for a strategy's ``partition=path``.

    Args:
        path: Where to.
        owner: Integers, the rank of every node or edge.
        ranks: How many there are.
        method: What it was made with.
        fingerprint: Of the graph.

    Raises:
        InvalidArgumentError: ``path`` cannot be written, or the disk is full.
    """
    write_tensors(path, {"owner": owner, "ranks": ranks, "method": method, "fingerprint": fingerprint})


def check_partition_type(partition: object) -> None:
    """Refuse what can be neither the name of a method nor a file nor a partition.

    Raises:
        InvalidArgumentError: ``partition`` is no name, path or tensor.
    """
    if not isinstance(partition, str | Path | Tensor):
        cure = "give a list as torch.tensor(list)"
        raise InvalidArgumentError("partition", "a name, a path or a tensor", partition, cure)


def check_is_file(partition: Path, methods: Sequence[str]) -> None:
    """Refuse what is neither a file nor, by its name, one of the methods.

    Raises:
        InvalidArgumentError: ``partition`` is no file, and no name of a method.
    """
    if not partition.is_file():
        requirement = f"one of {', '.join(methods)}, or a file"
        raise InvalidArgumentError("partition", requirement, str(partition), did_you_mean(partition, methods) or _CURE)


def given_partition(
    partition: Path | Tensor, things: str, count: int, ranks: int, datamodule: object, methods: Sequence[str]
) -> Tensor:
    """Return a partition that is not to be made but given, integers [count].

    Args:
        partition: A file of `save_partition`, or integers [count].
        things: What is cut: ``"nodes"`` or ``"edges"``.
        count: How many of them there are.
        ranks: How many ranks there are.
        datamodule: Knows the graph; may be None.
        methods: What else could have been given.

    Raises:
        InvalidArgumentError: The file cannot be read, or the partition is of another graph or number of ranks.
    """

    def refused(requirement: str, received: object) -> InvalidArgumentError:
        return InvalidArgumentError("partition", requirement, received, _CURE)

    owner = partition
    if not isinstance(owner, Tensor):
        check_is_file(owner, methods)
        try:
            saved = load_tensors(owner)
            owner, saved_ranks, fingerprint = saved["owner"], saved["ranks"], saved["fingerprint"]
        except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
            raise refused(f"a file of a partition of {things}", str(partition)) from error
        if not isinstance(owner, Tensor) or owner.layout != torch.strided:
            raise refused("a file with a vector of ranks", type(owner).__name__)
        if type(saved_ranks) is not int or saved_ranks != ranks:
            raise refused(f"for {ranks} ranks", f"{saved_ranks} ranks in {partition}")
        assert datamodule is None or isinstance(datamodule, KnowsGraph)
        if datamodule is not None and datamodule.info.fingerprint != fingerprint:
            raise refused("of this graph", f"the partition of another graph in {partition}")
    if owner.dtype not in _INTEGERS:
        raise refused("of integers", str(owner.dtype))
    if owner.is_meta:
        raise refused("of values", "a tensor without any")
    if owner.shape != (count,):
        raise refused(f"a rank for each of {count} {things}", list(owner.shape))
    owner = _signed(owner)
    if count and not 0 <= int(owner.min()) <= int(owner.max()) < ranks:
        raise refused(f"ranks in 0 .. {ranks - 1}", int(owner.min()) if int(owner.min()) < 0 else int(owner.max()))
    return owner


def _signed(owner: Tensor) -> Tensor:
    """Return ranks in a type that torch compares and counts, which unsigned ones wider than a byte are not."""
    if owner.dtype not in _WIDE_UNSIGNED:
        return owner
    same_bits = owner.contiguous().view(_WIDE_UNSIGNED[owner.dtype]).long()
    bits = 8 * owner.element_size()
    if bits == 64:
        return torch.where(same_bits < 0, torch.iinfo(torch.int64).max, same_bits)  # far beyond any rank
    return same_bits & ((1 << bits) - 1)
