"""Places for what a command writes at its end."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryFile

from lightning_tgnn.checks import InvalidArgumentError, refusal


def check_place(argument: str, path: str | Path) -> None:
    """Refuse a place where no file can be written, before there is anything to write; makes its folder.

    Raises:
        InvalidArgumentError: It is such a one.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        cure = "choose another place, or make room"
        raise InvalidArgumentError(refusal(argument, "where files can be written", str(error), cure)) from error
