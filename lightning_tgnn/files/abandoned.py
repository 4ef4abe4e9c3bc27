"""Files that have a name only while their owner works on them, and go when it has gone, however that came about."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_UNFINISHED = re.compile(r"\..+-[0-9a-f]{32}")
"""Names of `lightning_tgnn.files.whole.hidden_name`."""

_LEAST_AGE = 60.0  # seconds without a write; not every shared disk has locks


@contextmanager
def owned(number: int) -> Iterator[None]:
    """Hold the lock of an open file, by which others see that its owner lives.

    Args:
        number: Of the open file.
    """
    with suppress(OSError):  # of a disk without locks
        if fcntl is not None:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield


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
