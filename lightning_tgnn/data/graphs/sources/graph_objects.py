"""Graphs from NumPy archives, DGL and PyG."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable
from zipfile import is_zipfile

import numpy as np
import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.arrays import as_ends, as_numbers, as_whole
from lightning_tgnn.data.dgl_graphs import DGLEdges, edges_of_dgl
from lightning_tgnn.data.graphs.checks import check_edge_weights
from lightning_tgnn.data.graphs.graph import SPLITS, Graph
from lightning_tgnn.data.graphs.sources.names import GRAPH_NAMES
from lightning_tgnn.files.memory import check_fits
from lightning_tgnn.files.npz_stream import read_npz

FORMS = (
    "an .npz file, a graph folder, a folder of tables, an OGB folder, a dgl.DGLGraph, a PyG Data, a Graph, or one of "
    f"{', '.join((*GRAPH_NAMES, 'synthetic'))}"
)


OF_EVENTS = "events are read by TemporalDataModule, or by SnapshotDataModule without edge_counts"
"""The notice about a source that may hold events."""
_WEIGHTS = ("edge_weight", "weight", "w", "adj_data")
_UNREAD = ("edge_attr",)
_Held = TypeVar("_Held")
Values: TypeAlias = np.ndarray | Tensor
"""A column of an archive, or of a graph in memory."""


@runtime_checkable
class DGLGraph(DGLEdges, Protocol):
    """A `dgl.DGLGraph`."""

    @property
    def ndata(self) -> Mapping[str, Tensor]:
        """Data of the vertices, by name."""
        ...


@runtime_checkable
class PyGData(Protocol):
    """A PyG ``Data``."""

    @property
    def edge_index(self) -> Tensor:
        """int64 [2, E], sources and destinations."""
        ...


GraphSource: TypeAlias = str | Path | Graph | DGLGraph | PyGData
"""A file or folder, a name, or an object that holds a graph."""


def read_graph(source: GraphSource, split: int | None = None) -> Graph:
    """Return the graph that a source holds.

    An ``.npz`` file has ``edge_index`` [2, E], or an adjacency in compressed rows (``adj_indices``,
    ``adj_indptr``); features dense (``features``) or in compressed rows (``feat_*`` or ``attr_*``);
    ``label`` or ``labels``; and ``train_mask``, ``val_mask``, ``test_mask``. A `dgl.DGLGraph` has ``feat``, ``label``
    and the masks as vertex data, a PyG ``Data`` has ``x``, ``y`` and the masks. Labels are [N], or [N, C] of 0 and 1.
    Weights of edges [E], above 0, are named ``edge_weight``, ``weight`` or ``w``, or are the values of the adjacency
    (``adj_data``). Of other columns of edges a warning says that nothing reads them.

    Args:
        source: Of the graph.
        split: Which column of masks [N, k]; None for masks [N].

    Raises:
        DataError: The source lacks something, or holds something that must not be trained on.
        InvalidArgumentError: The file does not exist, or the source is of another kind.
    """
    if isinstance(source, (str, Path)):
        return _from_npz(Path(source), split)
    if isinstance(source, DGLGraph):
        src, dst = edges_of_dgl(source)
        weights = _weights(type(source).__name__, getattr(source, "edata", {}), len(src))
        return _graph(src, dst, _of(source.ndata, "feat"), _of(source.ndata, "label"), source.ndata, split, weights)
    if isinstance(source, PyGData):
        named = {name: getattr(source, name, None) for name in ("x", "y", *(f"{name}_mask" for name in SPLITS))}
        held = {name: value for name, value in named.items() if value is not None}
        columns = {name: getattr(source, name, None) for name in (*_WEIGHTS, *_UNREAD)}
        if source.edge_index is None:
            cure = "give it one; after ToSparseTensor, take the Data from before"
            raise DataError("source", "a PyG Data with an edge_index", "none", cure)
        src, dst = as_ends("edge_index", source.edge_index)
        weights = _weights(type(source).__name__, columns, len(src))
        return _graph(src, dst, _of(held, "x"), _of(held, "y"), held, split, weights)
    raise InvalidArgumentError("source", FORMS, type(source).__name__, "give one of these")


def _from_npz(path: Path, split: int | None) -> Graph:
    if not path.is_file():
        is_path = path.suffix.lower() == ".npz" or path != Path(path.name)
        requirement = "a file or folder that is there" if is_path else FORMS
        raise InvalidArgumentError("source", requirement, str(path), "correct the path or the name")
    if path.suffix.lower() != ".npz" and not is_zipfile(path):
        raise InvalidArgumentError("source", FORMS, str(path), OF_EVENTS)
    held = read_npz(path)
    features = features_of(held)
    src, dst = edges_of(held, len(features) if features.ndim else 0)
    labels = numbers_of(held, "label" if "label" in held and "labels" not in held else "labels")
    return _graph(src, dst, features, labels, held, split, _weights(path, held, len(src)))


def _weights(source: object, held: Mapping[str, object], num_edges: int) -> Tensor | None:
    """Return the weights of edges, float32 [E]; None where all are 1. Warn of columns that nothing reads."""
    found = None
    for name in (*_WEIGHTS, *_UNREAD):
        values = held.get(name)
        if not isinstance(values, Values):
            continue
        numbers = as_numbers(name, values.to_dense() if isinstance(values, Tensor) else values)
        if (numbers == 1).all():
            continue
        if name in _UNREAD or found is not None or numbers.shape not in ((num_edges,), (num_edges, 1)):
            cure = "weights of edges are edge_weight, [E]"
            warnings.warn(f"{source}: nothing reads the column(s) {name!r}; {cure}", stacklevel=3)
            continue
        found = numbers.flatten().float()
        check_edge_weights(found, num_edges, name)
    return found


def _of(held: Mapping[str, _Held], name: str) -> _Held:
    if name not in held:
        raise missing(held, name)
    return held[name]


def _graph(
    src: Values,
    dst: Values,
    features: Values,
    labels: Values,
    held: Mapping[str, Values],
    split: int | None,
    weights: Tensor | None,
) -> Graph:
    return Graph(
        src=as_whole("src", src),
        dst=as_whole("dst", dst),
        features=as_numbers("features", features).float(),
        labels=_one_each(as_whole("labels", labels, "give integers, and -1 for no label")),
        **{name: _mask(f"{name}_mask", _of(held, f"{name}_mask"), split) for name in SPLITS},
        edge_weights=weights,
    )


def _one_each(labels: Tensor) -> Tensor:
    """Return labels [N] of a column or a row of them; others as they are."""
    return labels.flatten() if labels.ndim == 2 and 1 in labels.shape else labels


def _mask(name: str, values: Values, split: int | None) -> Tensor:
    given = as_numbers(name, values)
    if given.ndim == 2:
        if split is None or not 0 <= split < given.shape[1]:
            cure = f"give FullGraphDataModule(split=...), 0 .. {given.shape[1] - 1}"
            raise DataError(name, f"one of {given.shape[1]} splits", f"split={split}", cure)
        given = given[:, split]
    elif split is not None:
        raise DataError("split", "left out where masks are [N]", split, "leave split out: there is one")
    mask = given.bool()
    if not torch.equal(mask.to(given.dtype), given):
        wrong = given[mask.to(given.dtype) != given][0].item()
        raise DataError(name, "of truth values, or of 0 and 1", wrong, "compare with a number first")
    return mask


_CURE = "save the archive anew"


def edges_of(held: Mapping[str, np.ndarray], vertices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sources and destinations [E], of ``edge_index`` or of ``adj_*`` in compressed rows, one for each vertex.

    Raises:
        DataError: An array is missing, or they do not fit together.
    """
    if "edge_index" not in held and any(name in held for name in ("adj_indptr", "adj_indices")):
        entries = _entries(held, "adj")
        if len(held["adj_indptr"]) != vertices + 1:
            received = f"{len(held['adj_indptr']) - 1} rows"
            raise DataError("adj_indptr", f"of a row for each of {vertices} vertices", received, _CURE)
        return entries
    src, dst = as_ends("edge_index", numbers_of(held, "edge_index"))
    return src.numpy(), dst.numpy()


def features_of(held: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return features [N, F], of ``features`` or of ``feat_*`` or ``attr_*`` in compressed rows.

    Raises:
        DataError: An array is missing, or they do not fit together.
    """
    if "features" in held or not any(name in held for name in ("feat_indptr", "attr_indptr")):
        return numbers_of(held, "features")
    prefix = "feat" if "feat_indptr" in held else "attr"
    rows, columns = _entries(held, prefix)
    values, shape = numbers_of(held, f"{prefix}_data"), _integers(held, f"{prefix}_shape")
    features = _zeros(f"{prefix}_shape", shape)
    starts = len(held[f"{prefix}_indptr"])
    if starts != len(features) + 1 or values.shape != columns.shape:
        received = f"{starts} starts, {len(columns)} indices, values {list(values.shape)}"
        raise DataError(f"{prefix}_indptr", f"of {len(features)} rows and all indices", received, _CURE)
    if len(columns) and not 0 <= columns.min() <= columns.max() < features.shape[1]:
        wrong = columns.min() if columns.min() < 0 else columns.max()
        raise DataError(f"{prefix}_indices", f"columns 0 .. {features.shape[1] - 1}", int(wrong), _CURE)
    with np.errstate(over="ignore"):  # infinity is refused with the features
        np.add.at(features, (rows, columns), values.astype(np.float32))  # a place that is there twice holds the sum
    return features


def numbers_of(held: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return an array of numbers.

    Raises:
        DataError: No array has that name, or the array holds no numbers.
    """
    if name not in held:
        raise missing(held, name)
    if held[name].dtype.kind not in "biuf":
        raise DataError(name, "of numbers", str(held[name].dtype), _CURE)
    return held[name]


def missing(held: Mapping[str, object], name: str) -> DataError:
    """Return the refusal of a source that lacks something."""
    cure = "add it, or rename the array that holds it"
    return DataError("source", f"with {name}", ", ".join(sorted(map(str, held))), cure)


def _entries(held: Mapping[str, np.ndarray], prefix: str) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of every entry of compressed rows."""
    starts, columns = _integers(held, f"{prefix}_indptr"), _integers(held, f"{prefix}_indices")
    is_whole = len(starts) and starts[0] == 0 and starts[-1] == len(columns) and not (starts[1:] < starts[:-1]).any()
    if not is_whole:
        received = f"{len(starts)} starts, {len(columns)} indices"
        raise DataError(f"{prefix}_indptr", "ascending from 0 to the number of indices", received, _CURE)
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts)), columns


def _integers(held: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    array = numbers_of(held, name)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise DataError(name, "a vector of integers", f"{array.dtype} {list(array.shape)}", _CURE)
    return array.astype(np.int64, copy=False)


def _zeros(name: str, shape: np.ndarray) -> np.ndarray:
    if len(shape) != 2 or (shape < 0).any():
        raise DataError(name, "two lengths, rows and columns", shape[:5].tolist(), _CURE)
    cure = "leave columns out: features are held as a dense matrix"
    size = f"a matrix of {int(shape[0]):,} rows and {int(shape[1]):,} columns"
    check_fits(name, size, 4 * int(shape[0]) * int(shape[1]), cure=cure)
    try:
        return np.zeros(shape, np.float32)
    except (MemoryError, ValueError) as error:
        raise DataError(name, "of a matrix that memory holds", shape.tolist(), cure) from error
