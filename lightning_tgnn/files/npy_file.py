"""``.npy`` files larger than memory: headers looked at first, columns mapped for reading and written piece by piece."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from lightning_tgnn.checks import DataError

_VERSIONS = {(1, 0), (2, 0), (3, 0)}
_VALUES_PER_PIECE = 1 << 22


@dataclass(frozen=True)
class NpyHeader:
    """What a header says.

    Attributes:
        shape: Of the array.
        dtype: Of the array; no Python objects.
        fortran_order: Whether its first index varies fastest.
        length: Bytes of the header itself.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool
    length: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, which follow the header."""
        return prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], total: int) -> NpyHeader:
    """Return the header at the beginning of ``file``, which has ``total`` bytes.

    Raises:
        ValueError: The header is invalid, or the file has another length than it says; the message is one line.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read(file)
    except Exception as error:  # numpy reads it as Python: what that raises on garbage is anything
        raise ValueError(str(error).partition("\n")[0]) from error
    if version not in _VERSIONS or dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"an array of {dtype}, version {version}")
    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise ValueError(f"an array of shape {shape}")
    header = NpyHeader(shape, dtype, fortran_order, file.tell())
    if header.length + header.num_bytes != total:
        raise ValueError(f"{header.num_bytes} bytes of values by its header, but {total - header.length} are there")
    return header


def pieces(rows: int, width: int = 1) -> Iterator[slice]:
    """Yield slices that cover ``rows`` rows of ``width`` values, some millions of values each."""
    step = max(_VALUES_PER_PIECE // max(width, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, start + step)


def refuse_link(path: Path) -> Path:
    """Return the path of a file that lies where it seems to lie.

    Raises:
        DataError: The path is a symbolic link, which may lead anywhere.
    """
    if path.is_symlink():
        cure = "copy what it leads to in its place, as cp -L does"
        raise DataError(str(path), "a file of its own", "a symbolic link", cure)
    return path


def map_npy(path: Path, mode: Literal["r", "c"] = "r", cure: str = "save it again") -> np.ndarray:
    """Return a file's array, mapped.

    Args:
        path: The file.
        mode: ``"r"`` for read-only, ``"c"`` for writable in memory, while the file stays as it is.
        cure: What to do about a damaged one.

    Raises:
        DataError: The file is missing, is no ``.npy`` file, or has another length than its header says.
    """
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError("no such file")
        with path.open("rb") as file:
            header = read_header(file, path.stat().st_size)
        order: Literal["C", "F"] = "F" if header.fortran_order else "C"
        return np.memmap(path, header.dtype, mode, header.length, header.shape, order)
    except (OSError, ValueError) as error:
        raise DataError(str(path), "a complete .npy file", str(error), cure) from error


def mapped_tensor(array: np.ndarray) -> Tensor:
    """Return a tensor over a mapped array, without a copy; a write to it would end the process.

    A private, writable mapping would not, but the system counts it as memory and refuses one larger than it has.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def allocate_npy(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return a new int64 file of ``shape``, mapped, and written once.

    To touch a page that the disk has no room for would end the process.
    """
    with NpyWriter(path, np.int64) as file:
        for piece in pieces(shape[0], prod(shape[1:])):
            file.append(np.zeros((len(range(*piece.indices(shape[0]))), *shape[1:]), np.int64))
    return np.lib.format.open_memmap(path, mode="r+")


class NpyWriter:
    """Writes an ``.npy`` file piece by piece; leaving the context completes it.

    Args:
        path: The file, overwritten.
        dtype: Of the array.
    """

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._file = path.open("wb")
        self._rows = 0
        self._width: tuple[int, ...] | None = None

    def append(self, rows: np.ndarray) -> None:
        """Write rows, as wide as those before them."""
        if self._width is None:
            self._width = rows.shape[1:]
            self._write_header()
        assert rows.shape[1:] == self._width, "all rows are as wide as the first ones"
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self._rows += len(rows)

    def _write_header(self) -> None:
        shape = (self._rows, *(self._width or ()))
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, *error: object) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()  # NumPy leaves room in it for any number of rows
