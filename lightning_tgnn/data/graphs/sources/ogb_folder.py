"""Node-property folders of the Open Graph Benchmark (Hu et al., NeurIPS 2020), converted once into a graph folder."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.graphs.sources.folder import GraphWriter, open_graph
from lightning_tgnn.files.new_folder import new_folder
from lightning_tgnn.files.npz_stream import npz_stream

_VALUES_PER_PIECE = 1 << 22
CONVERTED = "graph"
_SPLIT_FILES = {"train": "train.csv.gz", "val": "valid.csv.gz", "test": "test.csv.gz"}


def is_ogb_folder(folder: Path) -> bool:
    """Whether ``folder`` looks like one of OGB's."""
    return (folder / "raw").is_dir()


def convert_ogb(folder: Path) -> Path:
    """Return the graph folder inside an OGB folder, made if it is not there yet.

    The raw files are tables (``edge``, ``node-feat``, ``node-label``, ``num-node-list``, all ``.csv.gz``), or archives
    (``data.npz`` with ``edge_index`` and ``node_feat``, ``node-label.npz`` with ``node_label``). Edges are as in the
    files, which for an undirected graph hold one direction. A label that is NaN becomes -1, a vertex in no file of the
    split is in no mask.

    Args:
        folder: With ``raw`` and ``split/<name>``.

    Raises:
        DataError: A file is missing, damaged, or holds something that must not be trained on.
        InvalidArgumentError: The folder cannot be written.
    """
    converted = folder / CONVERTED
    if converted.is_dir():
        return converted
    split = _split_of(folder)
    raw = folder / "raw"
    source: Archives | Tables = Archives(raw) if (raw / "data.npz").is_file() else Tables(raw)
    from lightning.pytorch.utilities.rank_zero import rank_zero_info  # not what is only looked at

    rank_zero_info(f"converting {folder} into {converted}, once")
    with new_folder(converted) as partial:
        with GraphWriter(partial, source.num_nodes) as writer:
            source.write_edges(writer.append)
            source.write_features(writer.append)
            writer.append("labels", source.labels())
            _write_masks(split, source.num_nodes, writer.append)
        open_graph(partial)  # what must not be trained on is not kept
    return converted


def _split_of(folder: Path) -> Path:
    splits = sorted(path.parent for path in (folder / "split").glob("*/train.csv.gz"))
    if len(splits) != 1:
        received = [str(path.relative_to(folder)) for path in splits] or "none"
        cure = "take the folder as OGB ships it"
        raise DataError(str(folder), "a folder with one split/<name>/train.csv.gz", received, cure)
    return splits[0]


def _write_masks(split: Path, num_nodes: int, append: Callable[[str, np.ndarray], None]) -> None:
    for name, file in _SPLIT_FILES.items():
        mask = np.zeros(num_nodes, bool)
        for nodes in read_table(split / file, np.int64, width=1):
            if nodes.min() < 0 or nodes.max() >= num_nodes:
                wrong, cure = int(nodes.min() if nodes.min() < 0 else nodes.max()), "download it again"
                raise DataError(str(split / file), f"vertices 0 .. {num_nodes - 1}", wrong, cure)
            mask[nodes[:, 0]] = True
        append(name, mask)


class Archives:
    """``data.npz`` and ``node-label.npz`` of a folder ``raw``.

    Attributes:
        num_nodes: N.
    """

    def __init__(self, raw: Path) -> None:
        self._raw, self._data = raw, raw / "data.npz"
        with npz_stream(self._data, "node_feat") as features:
            is_matrix = len(features.shape) == 2 and min(features.shape) > 0
            if not is_matrix or (features.fortran_order and min(features.shape) > 1):
                received = f"{list(features.shape)}{', by columns' if features.fortran_order else ''}"
                raise DataError(f"node_feat of {self._data}", "[N, F], by rows", received, "save it by rows")
            self.num_nodes, self._width = features.shape

    def write_edges(self, append: Callable[[str, np.ndarray], None]) -> None:
        """Hand over sources and destinations."""
        with npz_stream(self._data, "edge_index") as edges:
            if len(edges.shape) != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
                received = f"{edges.dtype} {list(edges.shape)}"
                raise DataError(f"edge_index of {self._data}", "integers [2, E]", received, "save it again")
            sources = edges.shape[1]  # that many of the values are still to come; destinations follow
            for values in edges.values(_VALUES_PER_PIECE):
                numbers = values.astype(np.int64)
                if edges.fortran_order:
                    append("src", numbers[::2])
                    append("dst", numbers[1::2])
                else:
                    append("src", numbers[:sources])
                    append("dst", numbers[sources:])
                    sources = max(sources - len(numbers), 0)

    def write_features(self, append: Callable[[str, np.ndarray], None]) -> None:
        """Hand over the features."""
        rows = max(_VALUES_PER_PIECE // max(self._width, 1), 1)
        with npz_stream(self._data, "node_feat") as features:
            for values in features.values(rows * self._width):
                append("features", values.reshape(-1, self._width).astype(np.float32))

    def labels(self) -> np.ndarray:
        """Return the labels, int64 [N]."""
        path = self._raw / "node-label.npz"
        with npz_stream(path, "node_label") as labels:
            return classes(path, labels.whole())


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
            raise DataError(str(path), "of one graph", f"{len(counts)} graphs", cure)
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
        raise DataError(str(path), "a table", "no such file", "take the folder as OGB ships it")
    try:
        columns = pd.read_csv(path, header=None, nrows=1).shape[1]
        if width not in (None, columns):
            raise DataError(str(path), f"a table of {width} columns", columns, "take the folder as OGB ships it")
        piece = max(_VALUES_PER_PIECE // columns, 1)
        with pd.read_csv(path, header=None, dtype=dtype, chunksize=piece) as table:
            for rows in table:
                yield rows.to_numpy()
    except DataError:
        raise
    except (ValueError, OverflowError, OSError, EOFError, zlib.error) as error:
        raise DataError(str(path), f"a table of {np.dtype(dtype)}", str(error), "download it again") from error


def classes(path: Path, labels: np.ndarray) -> np.ndarray:
    """Return labels [N] or [N, 1] as int64 [N], -1 for NaN.

    Raises:
        DataError: A vertex has several labels, or a label is no whole number.
    """
    if labels.ndim == 0 or labels.size != len(labels):
        received, cure = list(labels.shape), "give a dataset with one label for each vertex"
        raise DataError(str(path), "one label for each vertex", received, cure)
    labels = np.nan_to_num(labels.ravel(), nan=-1, posinf=np.inf, neginf=-np.inf)
    with np.errstate(invalid="ignore"):  # of infinity, which the next line finds
        whole = labels.astype(np.int64)
    if (whole != labels).any():
        wrong, cure = float(labels[np.argmax(whole != labels)]), "number the classes from 0; NaN stands for none"
        raise DataError(str(path), "of whole numbers", wrong, cure)
    return whole
