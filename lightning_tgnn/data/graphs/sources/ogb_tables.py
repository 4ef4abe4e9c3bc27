"""OGB's raw files as compressed tables, as of ogbn-arxiv and ogbn-products."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lightning_tgnn.checks import DataError, refusal

_VALUES_PER_PIECE = 1 << 22


class Tables:
    """The tables of a folder ``raw``.

    Attributes:
        num_nodes: N.
    """

    def __init__(self, raw: Path) -> None:
        self._raw = raw
        path = raw / "num-node-list.csv.gz"
        counts = np.concatenate([rows for rows in read_table(path, np.int64, width=1)])
        if len(counts) != 1:
            cure = "give a dataset for the prediction of vertices"
            raise DataError(refusal(str(path), "of one graph", f"{len(counts)} graphs", cure))
        self.num_nodes = int(counts[0, 0])

    def write_edges(self, append: Callable[[str, np.ndarray], None]) -> None:
        """Hand over sources and destinations."""
        for rows in read_table(self._raw / "edge.csv.gz", np.int64, width=2):
            append("src", rows[:, 0])
            append("dst", rows[:, 1])

    def write_features(self, append: Callable[[str, np.ndarray], None]) -> None:
        """Hand over the features."""
        for rows in read_table(self._raw / "node-feat.csv.gz", np.float32):
            append("features", rows)

    def labels(self) -> np.ndarray:
        """Return the labels, int64 [N]."""
        path = self._raw / "node-label.csv.gz"
        return classes(path, np.concatenate([rows for rows in read_table(path, np.float64, width=1)]))


def read_table(path: Path, dtype: type[np.number], width: int | None = None) -> Iterator[np.ndarray]:
    """Yield the rows of a table of numbers, some millions of values at a time.

    Args:
        path: A table without a header.
        dtype: Type of the numbers.
        width: How many columns there have to be, if that is known.

    Raises:
        DataError: The table is missing, damaged, or holds something else.
    """
    import pandas as pd

    if not path.is_file():
        raise DataError(refusal(str(path), "a table", "no such file", "take the folder as OGB ships it"))
    try:
        columns = pd.read_csv(path, header=None, nrows=1).shape[1]
        if width not in (None, columns):
            cure = "take the folder as OGB ships it"
            raise DataError(refusal(str(path), f"a table of {width} columns", columns, cure))
        piece = max(_VALUES_PER_PIECE // columns, 1)
        with pd.read_csv(path, header=None, dtype=dtype, chunksize=piece) as table:
            for rows in table:
                yield rows.to_numpy()
    except DataError:
        raise
    except (ValueError, OverflowError, OSError, EOFError, zlib.error) as error:
        form = f"a table of {np.dtype(dtype)}"
        raise DataError(refusal(str(path), form, str(error), "download it again")) from error


def classes(path: Path, labels: np.ndarray) -> np.ndarray:
    """Return labels [N] or [N, 1] as int64 [N], -1 for NaN.

    Raises:
        DataError: A vertex has several labels, or a label is no whole number.
    """
    if labels.ndim == 0 or labels.size != len(labels):
        received, cure = list(labels.shape), "give a dataset with one label for each vertex"
        raise DataError(refusal(str(path), "one label for each vertex", received, cure))
    labels = np.nan_to_num(labels.ravel(), nan=-1, posinf=np.inf, neginf=-np.inf)
    with np.errstate(invalid="ignore"):  # of infinity, which the next line finds
        whole = labels.astype(np.int64)
    if (whole != labels).any():
        wrong, cure = float(labels[np.argmax(whole != labels)]), "number the classes from 0; NaN stands for none"
        raise DataError(refusal(str(path), "of whole numbers", wrong, cure))
    return whole
