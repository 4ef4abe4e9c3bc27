"""Downloads that resume where they broke off, are verified and unpacked, and leave nothing that is not whole."""

from __future__ import annotations

import errno
import hashlib
import re
import time
import zipfile
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from ssl import SSLError
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.files.new_folder import new_folder
from lightning_tgnn.files.one_at_a_time import one_at_a_time
from lightning_tgnn.files.whole import refusal_to_write

_PIECE = 1 << 20
_SECONDS = 60
_TRIES = 5
_LONGEST_PAUSE = 60
_BUSY = (429, 500, 502, 503, 504)
_OUT_OF_RANGE = 416
_BROKEN_OFF = (HTTPException, ConnectionError, TimeoutError, SSLError)


def download(url: str, path: Path, *, checksum: str | None = None, instead: Path | None = None) -> None:
    """Write what is at ``url`` to ``path``, which appears only when it is complete.

    A connection that breaks off is taken up again where it ended (RFC 9110, section 14.2), five times in a row without
    progress at most; so is what an earlier call or another process has left. Servers that are busy are asked again.

    Args:
        url: Of the file.
        path: Where it is put; what is there is replaced.
        checksum: ``sha1:…``, ``sha256:…`` or another of `hashlib`'s; None where it is not known.
        instead: Where a user may put a file downloaded elsewhere; ``path`` if None.

    Raises:
        DataError: ``url`` cannot be reached, breaks off again and again, or sends a file with another checksum.
        InvalidArgumentError: ``path`` cannot be written.
    """
    with one_at_a_time(path):
        partial = PartialFile(path)
        try:
            _receive_all(url, partial, path.name)
            if checksum is not None:
                _verify(url, partial, checksum)
            partial.complete()
        except (URLError, *_BROKEN_OFF) as error:
            if not partial.is_resumable:
                partial.discard()
            cure = f"connect this machine, or download it elsewhere and put it at {instead or path}"
            raise DataError(url, "reachable", str(error), cure) from error
        except OSError as error:
            partial.discard()
            cure = "make room, or choose another place"
            raise InvalidArgumentError(str(path), "where the file can be written", str(error), cure) from error


def _receive_all(url: str, partial: PartialFile, name: str) -> None:
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=None)
        fruitless, begun, most = 0, False, partial.size
        while True:
            try:
                _receive(url, partial, lambda done, total: progress.update(task, completed=done, total=total))
                return
            except (URLError, *_BROKEN_OFF) as error:
                begun |= partial.size > 0
                # More than ever before: a server that makes us start again and again would never be given up.
                fruitless = 1 if partial.size > most else fruitless + 1
                most = max(most, partial.size)
                if fruitless == _TRIES or not _is_worth_another_try(error, begun):
                    raise
                time.sleep(_pause(error, fruitless))


def _receive(url: str, partial: PartialFile, report: Callable[[int, int | None], object]) -> None:
    """Receive what is missing; raises one of `_BROKEN_OFF` where less has come than was announced."""
    validator = partial.validator
    headers = {"Range": f"bytes={partial.size}-", "If-Range": validator} if partial.size and validator else {}
    try:
        with urlopen(Request(url, headers=headers), timeout=_SECONDS) as response:
            total = _append(response, partial, report)
    except HTTPError as error:
        if error.code != _OUT_OF_RANGE:
            raise
        total = _length_of_range(error.headers.get("Content-Range"))
        if total is None or total != partial.size:
            partial.discard()
            raise ConnectionError("the server has less of it than has come before") from None
    if total is not None and partial.size != total:
        raise ConnectionError(f"the connection ended after {partial.size:,} of {total:,} bytes")


def _append(response: HTTPResponse, partial: PartialFile, report: Callable[[int, int | None], object]) -> int | None:
    """Write what comes, and return how long the whole file is to be; None where the server does not say."""
    resumed = response.status == 206
    length = response.length
    total = _length_of_range(response.headers.get("Content-Range")) if resumed else length
    with partial.open(_validator(response), resumed=resumed) as file:
        done = file.tell()
        if resumed and _start_of_range(response.headers.get("Content-Range")) != done:
            raise ConnectionError(f"the server sent another range than the one from byte {done:,} on")
        while piece := response.read(_PIECE):
            file.write(piece)
            done += len(piece)
            report(done, total)
    return total


def _validator(response: HTTPResponse) -> str | None:
    """Return what names this version of the file; None where the server does not say that it can resume."""
    if response.headers.get("Accept-Ranges") != "bytes":
        return None
    tag = response.headers.get("ETag", "W/")  # weak ones must not be used to resume (RFC 9110, section 13.1.5)
    return response.headers.get("Last-Modified") if tag.startswith("W/") else tag


def _start_of_range(header: str | None) -> int | None:
    match = re.match(r"bytes (\d+)-", header or "")
    return int(match[1]) if match else None


def _length_of_range(header: str | None) -> int | None:
    match = re.search(r"/(\d+)$", header or "")
    return int(match[1]) if match else None


def _is_worth_another_try(error: Exception, begun: bool) -> bool:
    """A busy server and a broken connection are; an address that was never reached is not."""
    if isinstance(error, HTTPError):
        return error.code in _BUSY
    return begun or not isinstance(error, URLError)


def _pause(error: Exception, fruitless: int) -> float:
    """Return the seconds before the next try: what a busy server asks for, else 1, 2, 4, 8."""
    asked = error.headers.get("Retry-After", "") if isinstance(error, HTTPError) else ""
    return min(float(asked), _LONGEST_PAUSE) if asked.isdigit() else 2.0 ** (fruitless - 1)


def _verify(url: str, partial: PartialFile, checksum: str) -> None:
    algorithm, _, expected = checksum.partition(":")
    digest = hashlib.new(algorithm)
    with partial.path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    found = digest.hexdigest()
    if found != expected:
        partial.discard()
        cure = "try again; if it stays so, the file has been changed where it is published"
        raise DataError(url, f"the file of {algorithm} {expected}", found, cure)


class PartialFile:
    """What has come of a file so far, beside the place where the file will be.

    Args:
        path: Where the file will be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.path = path.with_name(f".{path.name}.part")
        self._validator = path.with_name(f".{path.name}.validator")

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def validator(self) -> str | None:
        """What the server called this version of the file (RFC 9110, section 8.8); None if it gave no name."""
        return self._validator.read_text() if self._validator.is_file() else None

    @property
    def is_resumable(self) -> bool:
        """Whether the rest can be asked for."""
        return self.size > 0 and self.validator is not None

    def open(self, validator: str | None, *, resumed: bool) -> BinaryIO:
        """Open for writing, at the end where ``resumed``, else empty."""
        if not resumed:
            self.discard()
            if validator is not None:
                self._validator.write_text(validator)
        return self.path.open("ab")

    def complete(self) -> None:
        """Give the file its name."""
        self.path.replace(self._path)
        self.discard()

    def discard(self) -> None:
        """Remove what is there."""
        self.path.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)


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
            raise DataError(str(archive), "a complete zip file", str(error), cure) from error
        held = list(partial.iterdir())
        if len(held) == 1 and held[0].is_dir():
            around = held[0].rename(held[0].with_name(f".{held[0].name}"))  # what is in it may have its name
            for child in around.iterdir():
                child.rename(partial / child.name)
            around.rmdir()
