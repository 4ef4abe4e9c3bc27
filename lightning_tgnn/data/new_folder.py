"""Folders that appear only when they are complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from lightning_tgnn.checks import InvalidArgumentError, refusal


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that gets the name ``folder`` at the end, or goes if an exception ends the context.

    Where another process has made ``folder`` in the meantime, that one stays.

    Raises:
        InvalidArgumentError: Nothing can be written there.
    """
    partial = folder.with_name(f".{folder.name}-{uuid4().hex}")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        cure = "choose another place, or change its permissions"
        raise InvalidArgumentError(refusal(str(folder), "where files can be written", str(error), cure)) from error
    try:
        yield partial
        _rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _rename(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
