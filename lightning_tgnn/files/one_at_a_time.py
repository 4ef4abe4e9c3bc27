"""One process at a time, on whatever machine that shares the folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from lightning_tgnn.checks import InvalidArgumentError


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Wait until no other process is in this context for ``path``, which need not exist; its folder is made.

    Raises:
        InvalidArgumentError: Nothing can be written there.
    """
    file = path.with_name(f".{path.name}.lock")
    lock = FileLock(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        cure = "choose another place, or change its permissions"
        raise InvalidArgumentError(str(path), "where files can be written", str(error), cure) from error
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()  # while it is held: who waits for it sees that it has gone, and makes another
        lock.release()
