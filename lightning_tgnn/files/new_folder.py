"""Folders that appear only when they are complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.files.abandoned import owned_folder, remove_unfinished
from lightning_tgnn.files.whole import hidden_name, not_writable, writing_to


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
    partial = hidden_name(folder)
    remove_unfinished(folder.parent)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise not_writable(folder, error) from error
    try:
        with owned_folder(partial), writing_to(folder):
            yield partial
        _rename(partial, folder, keep_other)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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
