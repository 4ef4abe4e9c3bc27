"""Folders that appear only when they are complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.files.unfinished import OwnedFolder
from lightning_tgnn.files.whole import not_writable, writing_to


def check_new(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        InvalidArgumentError: The folder exists and is not empty, or cannot be looked into.
    """
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise not_writable(folder, error) from error
    if taken:
        raise InvalidArgumentError("folder", "new or empty", str(folder), "choose another or remove it")


@contextmanager
def new_folder(folder: Path, *, keep_other: bool = True) -> Iterator[Path]:
    """Yield a temporary folder that gets the name ``folder`` at the end, or goes if an exception ends the context.

    Args:
        folder: Its name at the end.
        keep_other: Leave it at what another process has put there in the meantime; otherwise refuse that.

    Raises:
        InvalidArgumentError: Nothing can be written there, or not all of it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = OwnedFolder(folder)
    except OSError as error:
        raise not_writable(folder, error) from error
    try:
        with writing_to(folder):
            yield partial.path
        _rename(partial.path, folder, keep_other)
    finally:
        partial.remove()


def _rename(partial: Path, folder: Path, keep_other: bool) -> None:
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        if not keep_other:
            cure = "choose another or remove it"
            received = f"{folder}, which another process has just made"
            raise InvalidArgumentError("folder", "new or empty", received, cure) from None
