"""Files and folders that are not complete: they have a hidden name and an owner, and go once the owner has ended."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_HOST = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())  # not every shared disk has locks
_MARK = f".lightning_tgnn-{_HOST}-"
_UNFINISHED = re.compile(rf"\..+{re.escape(_MARK)}[0-9a-f]{{32}}")


def hidden_name(path: Path) -> Path:
    """Return a new name beside ``path`` for what is not complete yet; its last 32 letters are a number."""
    # Of all names with "ckpt_" in them Lightning takes the digits behind it for the number of a checkpoint.
    return path.with_name(f".{path.name.replace('ckpt_', 'ckpt-')}{_MARK}{uuid4().hex}")


def own(number: int) -> None:
    """Lock an open file or folder until it is closed, by which others see that its owner lives.

    Args:
        number: Of the open file.
    """
    with suppress(OSError):  # of a disk without locks
        if fcntl is not None:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def owned_file(path: Path) -> Iterator[Path]:
    """Yield the hidden name of a new file beside ``path``, which goes at the end if it still has that name."""
    made, hidden = path.with_name(f".{path.name}-{uuid4().hex}"), hidden_name(path)
    with made.open("xb") as file:
        own(file.fileno())  # ahead of the name by which others look for it
        made.rename(hidden)
        try:
            yield hidden
        finally:
            with suppress(OSError):
                hidden.unlink()


class OwnedFolder:
    """A new folder with a hidden name beside ``path``, which goes with this object.

    Where its process is killed, it goes when the next one is made beside it.

    Args:
        path: What the hidden name is made of; its folder has to exist.

    Raises:
        OSError: Nothing can be written there.
    """

    def __init__(self, path: Path) -> None:
        remove_unfinished(path.parent)
        made, self.path = path.with_name(f".{path.name}-{uuid4().hex}"), hidden_name(path)
        made.mkdir()
        number = None if fcntl is None else os.open(made, os.O_RDONLY)
        if number is not None:
            own(number)
        made.rename(self.path)
        self.remove = weakref.finalize(self, _remove, self.path, number, os.getpid())


def _remove(folder: Path, number: int | None, owner: int) -> None:
    if os.getpid() == owner:  # no fork of it, which has the same lock
        shutil.rmtree(folder, ignore_errors=True)
        if number is not None:
            os.close(number)


def remove_if_abandoned(path: Path) -> None:
    """Remove a file or a folder of this user whose owner has gone."""
    if fcntl is None:
        return
    with suppress(OSError):
        found = path.lstat()
        is_folder = stat.S_ISDIR(found.st_mode)
        if found.st_uid != os.getuid() or not (is_folder or stat.S_ISREG(found.st_mode)):
            return
        number = os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if is_folder else os.O_RDWR))
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where its owner lives
            shutil.rmtree(path) if is_folder else path.unlink()
        finally:
            os.close(number)


def remove_unfinished(folder: Path) -> None:
    """Remove the files and folders in a folder that killed processes of this host have not completed."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                remove_if_abandoned(path)
