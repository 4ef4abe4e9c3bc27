"""Downloads that leave nothing half done."""

from __future__ import annotations

import zipfile
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen
from uuid import uuid4

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.new_folder import new_folder

_PIECE = 1 << 20
_SECONDS = 60


def download(url: str, path: Path) -> None:
    """Write what is at ``url`` to ``path``, which appears only when it is complete.

    Raises:
        DataError: It cannot be reached, or the connection ends too early.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        with urlopen(url, timeout=_SECONDS) as response, partial.open("wb") as file:
            _copy(response, file, path.name)
        partial.replace(path)
    except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
        cure = f"connect this machine, or download it elsewhere and put it at {path}"
        raise DataError(refusal(url, "reachable", str(error), cure)) from error
    finally:
        partial.unlink(missing_ok=True)


def _copy(response: IO[bytes], file: IO[bytes], name: str) -> None:
    length = getattr(response, "length", None)
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    received = 0
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=length)
        while piece := response.read(_PIECE):
            file.write(piece)
            received += len(piece)
            progress.update(task, completed=received)
    if length is not None and received < length:
        raise ConnectionError(f"the connection ended after {received:,} of {length:,} bytes")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip file as ``folder``, which appears only when it is complete; a single folder around all goes.

    Raises:
        DataError: The file is no zip file, or a damaged one.
    """
    with new_folder(folder) as partial:
        try:
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(partial)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            cure = "delete it, so that it is downloaded again"
            raise DataError(refusal(str(archive), "a complete zip file", str(error), cure)) from error
        held = list(partial.iterdir())
        if len(held) == 1 and held[0].is_dir():
            for child in held[0].iterdir():
                child.rename(partial / child.name)
            held[0].rmdir()
