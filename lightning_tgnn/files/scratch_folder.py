"""Temporary folders that do not outlive their process for long, however it ends."""

from __future__ import annotations

import glob
import os
import re
import shutil
import socket
import weakref
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout


class ScratchFolder:
    """A new folder that goes with this object, or, if its process is killed, when the next one is made beside it.

    A lock beside the folder is held as long as its owner lives, which the system sees to. A folder of this host whose
    lock is free has lost its owner. Folders of other hosts are left alone, for not every shared disk has locks.

    Args:
        place: Where it is made; has to exist.
        prefix: What its name begins with.

    Raises:
        OSError: Nothing can be written there.
    """

    def __init__(self, place: Path, prefix: str) -> None:
        own = f"{prefix}-{re.sub(r'[^A-Za-z0-9.-]', '_', socket.gethostname())}-"
        remove_abandoned(place, own)
        self.path = place / f"{own}{uuid4().hex}"
        lock = FileLock(_lock_of(self.path), thread_local=False)
        lock.acquire()  # ahead of the folder: whoever finds a folder finds its lock held
        self.path.mkdir()
        self.remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())


def remove_abandoned(place: Path, prefix: str) -> None:
    """Remove the folders in ``place`` whose names begin with ``prefix`` and whose owners have gone."""
    for held in place.glob(f"{glob.escape(prefix)}*.lock"):
        lock = FileLock(held, thread_local=False)
        with suppress(Timeout, OSError):  # of a process that lives, or of another user
            lock.acquire(blocking=False)
            _remove(held.with_suffix(""), lock, os.getpid())


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path, lock: FileLock, owner: int) -> None:
    if os.getpid() != owner:  # a fork of it, which has the same lock
        return
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        if not folder.exists():
            _lock_of(folder).unlink()  # while it is held: who waits for it sees that it has gone, and makes another
    lock.release()
