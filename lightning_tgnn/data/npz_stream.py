"""Arrays of a NumPy archive (``.npz``) read piece by piece, without unpacking it."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from lightning_tgnn.checks import DataError, refusal


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
        left = int(np.prod(self.shape, dtype=np.int64))
        while left:
            wanted = min(count, left)
            data = self.file.read(wanted * self.dtype.itemsize)
            if len(data) < wanted * self.dtype.itemsize:
                raise EOFError(f"{left} values of {self.file.name} are missing")
            yield np.frombuffer(data, self.dtype)
            left -= wanted
        if self.file.read(1):  # at the end the checksum is compared
            raise EOFError(f"{self.file.name} has more values than it says")


@contextmanager
def npz_stream(path: Path, name: str) -> Iterator[NpzStream]:
    """Open the array ``name`` of an archive.

    Raises:
        DataError: The archive is damaged or has no such array of numbers; also while the array is read.
    """
    if not path.is_file():
        raise DataError(refusal(str(path), "an archive", "no such file", "take the folder as OGB ships it"))
    try:
        with zipfile.ZipFile(path) as archive:
            if f"{name}.npy" not in archive.namelist():
                received = ", ".join(member.removesuffix(".npy") for member in archive.namelist())
                raise DataError(
                    refusal(str(path), f"an archive with {name}", received, "take the folder as OGB ships it")
                )
            with archive.open(f"{name}.npy") as file:
                yield _opened(file)
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        cure = "download or save it again"
        raise DataError(refusal(str(path), "a complete archive of numbers", str(error), cure)) from error


def _opened(file: IO[bytes]) -> NpzStream:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read(file)
    except ValueError as error:
        raise EOFError(str(error)) from error
    if dtype.kind not in "iuf":
        raise EOFError(f"{file.name} holds {dtype}, no numbers")
    return NpzStream(shape, dtype, fortran_order, file)
