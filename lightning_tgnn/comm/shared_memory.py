"""Tensors in memory that all ranks of a machine share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_tgnn.checks import DataError
from lightning_tgnn.comm.failure import peer_failure
from lightning_tgnn.files.unfinished import own, remove_if_abandoned

_ALIGNMENT = 64
_NEW, _NAMED = "lightning_tgnn_new-", "lightning_tgnn_shm-"
_FOLDER = Path("/dev/shm")  # in memory; elsewhere a temporary file is mapped

FREE_SOME = "free some (in a container, start it with more)"
_CURE = f"{FREE_SOME}, or take a store that is cut over the ranks"

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of tensors by name."""


class SharedBuffer:
    """Memory of this process that another process sees; it grows on demand.

    Args:
        show: Tells the other process the path and the size of a file, and returns once it has called `mapped`.
    """

    def __init__(self, show: Callable[[str, int], None]) -> None:
        self._show = show
        self._memory = torch.empty(0, dtype=torch.uint8)

    def views(self, shapes: Shapes) -> dict[str, Tensor]:
        """Return tensors in this memory, with arbitrary content.

        Raises:
            DataError: The host has too little shared memory.
        """
        size = room(shapes)
        if size > len(self._memory):
            with _made(2 * size) as (path, problem):
                if problem:
                    raise DataError("a batch's rows", "small enough for shared memory", problem, _CURE)
                self._memory = mapped(path, 2 * size)
                self._show(path, 2 * size)
        return views(self._memory, shapes)


def mapped(path: str, size: int) -> Tensor:
    """Return uint8 [size], the content of a file, which other processes see change."""
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


def room(shapes: Shapes) -> int:
    """Return the bytes that tensors of these shapes take."""
    return _places(shapes)[1]


def views(memory: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return tensors of these shapes that lie in memory, uint8 [bytes]."""
    starts, _ = _places(shapes)
    return {
        name: memory[starts[name] : starts[name] + _bytes(shape, dtype)].view(dtype).view(shape)
        for name, (shape, dtype) in shapes.items()
    }


def shared_tensors(
    shapes: Shapes,
    ranks: tuple[int, ...],
    rank: int,
    group: dist.ProcessGroup | None,
    *,
    what: str = "node state",
    cure: str = _CURE,
    show: Callable[[str, int], None] | None = None,
) -> dict[str, Tensor]:
    """Return tensors of zeros in memory that the ranks of a group share; all of them have to call it.

    The file behind the memory no longer has a name when this returns, so it vanishes however the ranks end.

    Args:
        shapes: Shapes and types of the tensors.
        ranks: Of the group, by their numbers in the run.
        rank: This rank.
        group: The process group; None for one rank.
        what: They are, in a refusal.
        cure: What to do if memory is short, for the error message.
        show: Called on every rank with the path and the size of the file while it has a name, to have a further
            process map it.

    Raises:
        DataError: The host has too little shared memory.
    """
    if len(ranks) == 1 and show is None:
        return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
    size = room(shapes)
    with _made(size) if rank == ranks[0] else nullcontext(("", "")) as made:
        received = [made]
        if len(ranks) > 1:
            with peer_failure("opening of shared memory"):
                dist.broadcast_object_list(received, src=ranks[0], group=group)
        path, problem = received[0]
        if problem:
            raise DataError(what, "small enough for shared memory", problem, cure)
        memory = mapped(path, size)
        if show is not None:
            show(path, size)
        if len(ranks) > 1:
            with peer_failure("opening of shared memory"):
                dist.barrier(group=group)
    return views(memory, shapes)


def shared_memory_left() -> int | None:
    """Return the bytes that processes can still share; None if a file on disk would be mapped."""
    return shutil.disk_usage(_FOLDER).free if _FOLDER.is_dir() else None


@contextmanager
def _made(size: int) -> Iterator[tuple[str, str]]:
    """Yield the path of a file of ``size`` bytes, all of which there are, or what is wrong.

    The file has its name inside the block alone.

    A process that is killed before leaves the file; the next one of its user removes it.
    """
    folder = _FOLDER if _FOLDER.is_dir() else Path(tempfile.gettempdir())
    remove_abandoned_memory()
    number, path = tempfile.mkstemp(prefix=_NEW, dir=folder)
    own(number)
    named = path.replace(_NEW, _NAMED)
    os.rename(path, named)  # locked ahead of the name by which others look for it
    try:
        problem = ""
        try:
            os.truncate(number, size)
            if hasattr(os, "posix_fallocate"):  # else a rank would die of SIGBUS where it writes
                os.posix_fallocate(number, 0, size)
        except OSError as error:
            problem = f"{size / 1e9:,.1f} GB in {folder}: {error.strerror}"
        yield ("", problem) if problem else (named, "")
    finally:
        os.unlink(named)
        os.close(number)


def remove_abandoned_memory() -> None:
    """Remove what killed processes of this user have left in shared memory."""
    folder = _FOLDER if _FOLDER.is_dir() else Path(tempfile.gettempdir())
    for path in folder.glob(f"{_NAMED}*"):
        remove_if_abandoned(path)


def _places(shapes: Shapes) -> tuple[dict[str, int], int]:
    starts, size = {}, 0
    for name, (shape, dtype) in shapes.items():
        starts[name] = size
        size += _bytes(shape, dtype) + -_bytes(shape, dtype) % _ALIGNMENT
    return starts, max(size, _ALIGNMENT)


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize
