"""Files that have a name only while their owner works on them; once it has ended, the next process removes them."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MARK = ".lightning_tgnn-"
"""Stands in the names of files and folders that are not complete, and in no other."""

_UNFINISHED = re.compile(rf"\..+{re.escape(MARK)}[0-9a-f]{{32}}")

_LEAST_AGE = 60.0  # seconds without a write; not every shared disk has locks


def own(number: int) -> None:
    """Lock an open file until it is closed, by which others see that its owner lives.

    Args:
        number: Of the open file.
    """
    with suppress(OSError):  # of a disk without locks
        if fcntl is not None:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def owned_folder(path: Path) -> Iterator[None]:
    """Lock a folder inside the block, by which others see that its owner lives."""
    if fcntl is None:
        yield
        return
    number = os.open(path, os.O_RDONLY)
    try:
        own(number)
        yield
    finally:
        os.close(number)


def remove_if_abandoned(path: Path, least_age: float = _LEAST_AGE) -> None:
    """Remove a file or a folder of this user whose owner has gone.

    Args:
        path: The file or folder.
        least_age: Seconds since it, or a file in it, was written last.
    """
    if fcntl is None:
        return
    with suppress(OSError):
        told = path.lstat()
        is_folder = stat.S_ISDIR(told.st_mode)
        if told.st_uid != os.getuid() or not (is_folder or stat.S_ISREG(told.st_mode)):
            return
        written = max([told.st_mtime, *(one.lstat().st_mtime for one in path.rglob("*"))])
        if time.time() - written < least_age:
            return
        number = os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if is_folder else os.O_RDWR))
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where its owner lives
            shutil.rmtree(path) if is_folder else path.unlink()
        finally:
            os.close(number)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes have left in a folder: files and folders that were not complete."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                remove_if_abandoned(path)
