"""The columns of a stream as files of a folder, written and rewritten piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from lightning_tgnn.files.npy_file import NpyWriter, map_npy
from lightning_tgnn.files.pieces import pieces


class ColumnFiles(ExitStack):
    """Writes columns side by side, each with the type of its first rows; leaving the context completes the files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._files: dict[str, NpyWriter] = {}

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Write the next rows of every column."""
        for name, values in rows.items():
            if name not in self._files:
                path = self._folder / f"{name}.npy"
                self._files[name] = self.enter_context(NpyWriter(path, values.dtype))
            self._files[name].append(values)


def rewrite(path: Path, dtype: DTypeLike, change: Callable[[np.ndarray], Iterator[np.ndarray]]) -> None:
    """Put what ``change`` makes of a column's array, mapped, in its place."""
    changed = path.with_suffix(".changed")
    with NpyWriter(changed, dtype) as file:
        for rows in change(map_npy(path)):
            file.append(rows)
    changed.replace(path)


def rows_of(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of an array, some millions of values at a time."""
    for piece in pieces(len(array), array[:1].size):
        yield array[piece]
