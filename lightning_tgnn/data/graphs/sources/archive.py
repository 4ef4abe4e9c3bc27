"""Edges and features of a graph from the arrays of a NumPy archive."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.arrays import as_ends
from lightning_tgnn.files.memory import check_fits

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
            raise DataError(refusal("adj_indptr", f"of a row for each of {vertices} vertices", received, _CURE))
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
        raise DataError(refusal(f"{prefix}_indptr", f"of {len(features)} rows and all indices", received, _CURE))
    if len(columns) and not 0 <= columns.min() <= columns.max() < features.shape[1]:
        wrong = columns.min() if columns.min() < 0 else columns.max()
        raise DataError(refusal(f"{prefix}_indices", f"columns 0 .. {features.shape[1] - 1}", int(wrong), _CURE))
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
        raise DataError(refusal(name, "of numbers", str(held[name].dtype), _CURE))
    return held[name]


def missing(held: Mapping[str, object], name: str) -> DataError:
    """Return the refusal of a source that lacks something."""
    cure = "add it, or rename the array that holds it"
    return DataError(refusal("source", f"with {name}", ", ".join(sorted(map(str, held))), cure))


def _entries(held: Mapping[str, np.ndarray], prefix: str) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of every entry of compressed rows."""
    starts, columns = _integers(held, f"{prefix}_indptr"), _integers(held, f"{prefix}_indices")
    is_whole = len(starts) and starts[0] == 0 and starts[-1] == len(columns) and not (starts[1:] < starts[:-1]).any()
    if not is_whole:
        received = f"{len(starts)} starts, {len(columns)} indices"
        raise DataError(refusal(f"{prefix}_indptr", "ascending from 0 to the number of indices", received, _CURE))
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts)), columns


def _integers(held: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    array = numbers_of(held, name)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise DataError(refusal(name, "a vector of integers", f"{array.dtype} {list(array.shape)}", _CURE))
    return array.astype(np.int64, copy=False)


def _zeros(name: str, shape: np.ndarray) -> np.ndarray:
    if len(shape) != 2 or (shape < 0).any():
        raise DataError(refusal(name, "two lengths, rows and columns", shape[:5].tolist(), _CURE))
    cure = "leave columns out: features are held as a dense matrix"
    size = f"a matrix of {int(shape[0]):,} rows and {int(shape[1]):,} columns"
    check_fits(name, size, 4 * int(shape[0]) * int(shape[1]), cure=cure)
    try:
        return np.zeros(shape, np.float32)
    except (MemoryError, ValueError) as error:
        raise DataError(refusal(name, "of a matrix that memory holds", shape.tolist(), cure)) from error
