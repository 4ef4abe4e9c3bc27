"""The header of ``.npy`` data, looked at before anything is allocated for what it claims."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import IO

import numpy as np

_VERSIONS = {(1, 0), (2, 0), (3, 0)}


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
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], total: int) -> NpyHeader:
    """Return the header at the beginning of ``file``, which has ``total`` bytes.

    Raises:
        ValueError: It is none, or what follows is not as long as it says; the message is one line.
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
