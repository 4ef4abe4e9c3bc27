"""Checks of the columns of an event stream; each raises `DataError` with the row that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_tgnn.checks import DataError, RowError, refusal

_MAX_ID_PER_EVENT = 1000


def node_column(name: str, values: Any) -> np.ndarray:
    """Return a column of node numbers as int64 [E]."""
    column = np.asarray(values)
    if column.dtype.kind not in "iu" or column.ndim != 1:
        received = f"{column.dtype} of shape {list(column.shape)}"
        cure = "map other ids first: nodes, column = np.unique(ids, return_inverse=True)"
        raise DataError(refusal(name, "integers of shape [E]", received, cure))
    column = column.astype(np.int64)
    if len(column) and column.min() < 0:
        where = int(np.argmin(column))
        cure = "number nodes from 0, or map ids: nodes, column = np.unique(ids, return_inverse=True)"
        raise DataError(refusal(f"{name}[{where}]", "at least 0", int(column[where]), cure))
    return column


def float_column(name: str, values: Any, dtype: type, *, ndim: int) -> np.ndarray:
    """Return a finite column of ``dtype``, [E] with ``ndim`` 1 or [rows, width] with 2."""
    try:
        column: np.ndarray = np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise DataError(refusal(name, "numbers, every row as long", str(error), "check the rows")) from None
    if column.ndim != ndim:
        shape = "[E]" if ndim == 1 else "[rows, width]"
        raise DataError(refusal(name, f"of shape {shape}", list(column.shape), "reshape it"))
    finite = np.isfinite(column) if ndim == 1 else np.isfinite(column).all(axis=1)
    if not finite.all():
        where = int(np.argmin(finite))
        received = column[where] if ndim == 1 else "NaN or infinity"
        raise RowError(name, where, "finite", str(received), "drop or repair that row")
    return column


def id_column(values: Sequence[Any] | np.ndarray | None) -> np.ndarray | None:
    """Return the users' ids of the nodes as integers or fixed-width strings, [N]."""
    if values is None:
        return None
    column = np.asarray(values)
    if column.dtype == object and all(isinstance(value, str) for value in column):
        column = column.astype(str)  # a pandas column of strings
    if column.dtype.kind not in "iuU" or column.ndim != 1:
        received = f"{column.dtype} of shape {list(column.shape)}"
        raise DataError(refusal("node_ids", "integers or strings of shape [N]", received, "convert them"))
    return column


def count_nodes(src: np.ndarray, dst: np.ndarray, node_features: np.ndarray | None, node_ids: np.ndarray | None) -> int:
    """Return N, from the columns that have a row per node or else from the highest number."""
    highest = int(max(src.max(), dst.max()))
    given = {"node_features": node_features, "node_ids": node_ids}
    lengths = {name: len(values) for name, values in given.items() if values is not None}
    for name, length in lengths.items():
        if highest >= length:
            raise DataError(refusal(name, f"a row for every node up to {highest}", f"{length} rows", "add the rows"))
    if len(set(lengths.values())) > 1:
        raise DataError(refusal("node_ids", "as many as node_features", lengths, "give both for the same nodes"))
    if not lengths and highest > _MAX_ID_PER_EVENT * max(len(src), 1000):
        cure = "number nodes without gaps: nodes, column = np.unique(ids, return_inverse=True)"
        raise DataError(refusal("src and dst", "numbers close to 0 .. N-1", f"{highest} in {len(src)} events", cure))
    return next(iter(lengths.values()), highest + 1)
