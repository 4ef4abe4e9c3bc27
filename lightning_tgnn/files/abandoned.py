"""Files that have a name only while their owner works on them; once it has ended, the next process removes them."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
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


def remove_if_abandoned(path: Path, least_age: float = _LEAST_AGE) -> None:
    """Remove a file of this user whose owner has gone.

    Args:
        path: The file.
        least_age: Seconds since it was written last.
    """
    if fcntl is None:
        return
    with suppress(OSError):
        told = path.lstat()
        if told.st_uid != os.getuid() or time.time() - told.st_mtime < least_age or not path.is_file():
            return
        number = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where its owner lives
            path.unlink()
        finally:
            os.close(number)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes have left in a folder of files that were not complete."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                remove_if_abandoned(path)
