"""Unpack archives."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.files.new_folder import new_folder
from lightning_tgnn.files.whole import refusal_to_write

_SMALL, _DENSEST = 1 << 28, 100  # bytes that are unpacked in any case, and times the size of the archive
_OF_NAMES = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}  # errors that names in an archive make


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip file as ``folder``, which appears only when it is complete; a single folder around all goes.

    Nothing is written outside ``folder``: `zipfile` drops what in a name would lead out of it.

    Raises:
        DataError: The file is no zip file, or a damaged one.
    """
    with new_folder(folder) as partial:
        try:
            with archive.open("rb") as file, zipfile.ZipFile(file) as zipped:
                names = zipped.namelist()
                if len(set(names)) < len(names):
                    raise zipfile.BadZipFile("a name twice")
                size, packed = sum(member.file_size for member in zipped.infolist()), archive.stat().st_size
                if size > max(_SMALL, _DENSEST * packed):
                    raise zipfile.BadZipFile(f"{packed:,} bytes that unpack to {size:,}")
                zipped.extractall(partial)
        except Exception as error:  # what the reader of archives raises on garbage is anything
            is_name_error = isinstance(error, OSError) and error.errno in _OF_NAMES
            if isinstance(error, OSError) and not is_name_error and refusal_to_write(folder, error) is not None:
                raise
            cure = "delete it, so that it is downloaded again"
            raise DataError(refusal(str(archive), "a complete zip file", str(error), cure)) from error
        held = list(partial.iterdir())
        if len(held) == 1 and held[0].is_dir():
            around = held[0].rename(held[0].with_name(f".{held[0].name}"))  # what is in it may have its name
            for child in around.iterdir():
                child.rename(partial / child.name)
            around.rmdir()
