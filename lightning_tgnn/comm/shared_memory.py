"""Tensors that all ranks of a machine see."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.comm.failure import peer_failure

_ALIGNMENT = 64
_FOLDER = Path("/dev/shm")  # in memory; elsewhere a temporary file is mapped

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of tensors by name."""


def shared_tensors(
    shapes: Shapes, ranks: tuple[int, ...], rank: int, group: dist.ProcessGroup | None
) -> dict[str, Tensor]:
    """Return tensors of zeros in memory that the ranks of a group share; all of them have to call it.

    The file behind the memory has no name any more when this returns, so nothing stays behind, however the ranks end.

    Args:
        shapes: What is wanted.
        ranks: Of the group, by their numbers in the run.
        rank: This rank.
        group: The process group; None for one rank.

    Raises:
        DataError: There is not so much shared memory.
    """
    if len(ranks) == 1:
        return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
    starts, size = _places(shapes)
    told: list[tuple[str, str]] = [("", "")]
    if rank == ranks[0]:
        told = [_made(size)]
    try:
        with peer_failure("opening of shared memory"):
            dist.broadcast_object_list(told, src=ranks[0], group=group)
        path, problem = told[0]
        if problem:
            cure = "free some (in a container, start it with more), or take a store that is cut over the ranks"
            raise DataError(refusal("node state", "small enough for shared memory", problem, cure))
        memory = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        with peer_failure("opening of shared memory"):
            dist.barrier(group=group)
    finally:
        if rank == ranks[0] and told[0][0]:
            os.unlink(told[0][0])
    return {
        name: memory[starts[name] : starts[name] + _bytes(shape, dtype)].view(dtype).view(shape)
        for name, (shape, dtype) in shapes.items()
    }


def _made(size: int) -> tuple[str, str]:
    """Make a file of ``size`` bytes, all of which there are; return its path, or what is wrong."""
    folder = _FOLDER if _FOLDER.is_dir() else Path(tempfile.gettempdir())
    number, path = tempfile.mkstemp(prefix="lightning_tgnn-", dir=folder)
    try:
        os.truncate(number, size)
        if hasattr(os, "posix_fallocate"):  # else a rank would die of SIGBUS where it writes
            os.posix_fallocate(number, 0, size)
    except OSError as error:
        os.unlink(path)
        return "", f"{size / 1e9:,.1f} GB in {folder}: {error.strerror}"
    finally:
        os.close(number)
    return path, ""


def _places(shapes: Shapes) -> tuple[dict[str, int], int]:
    starts, size = {}, 0
    for name, (shape, dtype) in shapes.items():
        starts[name] = size
        size += _bytes(shape, dtype) + -_bytes(shape, dtype) % _ALIGNMENT
    return starts, max(size, _ALIGNMENT)


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize
