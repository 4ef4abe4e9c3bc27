"""Folders that appear only when they are complete."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from lightning_tgnn.checks import InvalidArgumentError, refusal

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}


def check_new(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        InvalidArgumentError: It exists and is not empty, or cannot be looked into.
    """
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise _not_writable(folder, error) from error
    if taken:
        raise InvalidArgumentError(refusal("folder", "new or empty", str(folder), "choose another or remove it"))


@contextmanager
def new_folder(folder: Path, *, keep_other: bool = True) -> Iterator[Path]:
    """Yield a temporary folder that gets the name ``folder`` at the end, or goes if an exception ends the context.

    Args:
        folder: Its name at the end.
        keep_other: Leave it at what another process has put there in the meantime; otherwise refuse that.

    Raises:
        InvalidArgumentError: Nothing can be written there, or not all of it.
    """
    partial = folder.with_name(f".{folder.name}-{uuid4().hex}")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise _not_writable(folder, error) from error
    try:
        with writing_to(folder):
            yield partial
        _rename(partial, folder, keep_other)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Say of a disk that is full, of a file that may not grow and of a folder that may not be written which it is.

    Raises:
        InvalidArgumentError: In the place of the system's error.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            cure = "free space or choose another place; what was written of it is removed"
            raise InvalidArgumentError(refusal(str(path), "where it fits", str(error), cure)) from error
        if error.errno in _NOT_WRITABLE:
            raise _not_writable(path, error) from error
        raise


def is_no_place(error: Exception) -> bool:
    """Whether it is an error for which `writing_to` blames the place that is written to."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM | _NOT_WRITABLE


def _not_writable(path: Path, error: OSError) -> InvalidArgumentError:
    cure = "choose another place, or change its permissions"
    return InvalidArgumentError(refusal(str(path), "where files can be written", str(error), cure))


def _rename(partial: Path, folder: Path, keep_other: bool) -> None:
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        if not keep_other:
            cure = "choose another or remove it"
            received = f"{folder}, which another process has just made"
            raise InvalidArgumentError(refusal("folder", "new or empty", received, cure)) from None
