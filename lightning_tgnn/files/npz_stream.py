"""Arrays of a NumPy archive (``.npz``), read whole or piece by piece, without unpacking it."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from lightning_tgnn.checks import DataError
from lightning_tgnn.files.memory import check_fits
from lightning_tgnn.files.npy_file import read_header

_VALUES_PER_PIECE = 1 << 22


class _DamagedError(Exception):
    """What an archive holds cannot be read."""


@dataclass(frozen=True)
class NpzStream:
    """An array of an archive.

    Attributes:
        shape: Its shape.
        dtype: Its type.
        fortran_order: Whether its first index varies fastest.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool
    file: IO[bytes]

    def values(self, count: int) -> Iterator[np.ndarray]:
        """Yield the values in the order of the file, ``count`` at a time; the last ones may be fewer."""
        left = math.prod(self.shape)
        while left:
            wanted = min(count, left)
            with _reading():
                data = self.file.read(wanted * self.dtype.itemsize)
                if len(data) < wanted * self.dtype.itemsize:
                    raise EOFError(f"{left} values of {self.file.name} are missing")
            yield np.frombuffer(data, self.dtype)
            left -= wanted
        with _reading():
            if self.file.read(1):  # at the end the checksum is compared
                raise EOFError(f"{self.file.name} has more values than it says")

    def whole(self) -> np.ndarray:
        """Return the array, in this machine's byte order.

        Raises:
            DataError: Memory does not hold it.
        """
        self._check_fits()
        with _reading():
            array = np.empty(math.prod(self.shape), self.dtype.newbyteorder("="))
        start = 0
        for values in self.values(_VALUES_PER_PIECE):
            array[start : start + len(values)] = values
            start += len(values)
        return array.reshape(self.shape, order="F" if self.fortran_order else "C")

    def _check_fits(self) -> None:
        # Packed zeros take a thousandth of their size: only the header says what they unpack to.
        needed = math.prod(self.shape) * self.dtype.itemsize
        what = f"{self.dtype} of shape {list(self.shape)}"
        cure = "use a machine with more memory, or fewer rows or columns"
        check_fits(str(self.file.name), what, needed, cure=cure)


@contextmanager
def npz_stream(path: Path, name: str) -> Iterator[NpzStream]:
    """Open the array ``name`` of an archive.

    Raises:
        DataError: The archive is damaged, or has no array of numbers under ``name``; also while the array is read.
    """
    if not path.is_file():
        raise DataError(str(path), "an archive", "no such file", "take the folder as OGB ships it")
    with _open(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            received = ", ".join(member.removesuffix(".npy") for member in archive.namelist())
            raise DataError(str(path), f"an archive with {name}", received, "take the folder as OGB ships it")
        with _member(archive, f"{name}.npy") as stream:
            if stream.dtype.kind not in "iuf":
                raise _DamagedError(f"{name}.npy holds {stream.dtype}, no numbers")
            yield stream


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an archive by name.

    Raises:
        DataError: The archive is damaged, larger than memory when unpacked, or holds something that is no array of
            plain values.
    """
    held = {}
    with _open(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        cure = "use a machine with more memory, or a graph of fewer nodes or features"
        check_fits(str(path), "its arrays, unpacked", unpacked, cure=cure)
        for name in archive.namelist():
            with _member(archive, name) as stream:
                held[name.removesuffix(".npy")] = stream.whole()
    return held


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with ExitStack() as stack:
            with _reading():
                archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(path.open("rb"))))
                if len(set(archive.namelist())) < len(archive.namelist()):
                    raise ValueError("an archive with a name twice")
            yield archive
    except _DamagedError as error:
        raise DataError(str(path), "a complete archive of numbers", str(error), "download or save it again") from error


@contextmanager
def _member(archive: zipfile.ZipFile, name: str) -> Iterator[NpzStream]:
    with ExitStack() as stack:
        with _reading():
            file = stack.enter_context(archive.open(name))
            header = read_header(file, archive.getinfo(name).file_size)
        yield NpzStream(header.shape, header.dtype, header.fortran_order, file)


@contextmanager
def _reading() -> Iterator[None]:
    """Tell damage apart from what goes wrong where values are written to."""
    try:
        yield
    except Exception as error:  # what the readers of archives raise on garbage is anything
        raise _DamagedError(str(error).partition("\n")[0]) from error
