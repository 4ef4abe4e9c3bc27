"""Checks of the columns of an event stream; each raises `DataError` with the row that is wrong."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from lightning_tgnn.checks import DataError, RowError, check_int
from lightning_tgnn.data.arrays import FIRST_DOUBTFUL, as_array

_MAX_ID_PER_EVENT = 1000
_CALENDARS = {"%Y%m": 1e2, "%Y%m%d": 1e4, "%Y%m%d%H": 1e6, "%Y%m%d%H%M": 1e8, "%Y%m%d%H%M%S": 1e10}
"""Forms of a calendar in digits, with how many numbers a year has."""
_PARTS = {"m": (1, 12), "d": (1, 31), "H": (0, 23), "M": (0, 59), "S": (0, 60)}
_FEWEST_MONTHS = 4  # fewer numbers of six digits may happen to be months
_TIMES_LOOKED_AT = 1000
_SHORT_FLOATS = ("float32", "float16", "bfloat16")
_FORMS = {
    **dict.fromkeys(("src", "dst"), (("<i8",), (1,))),
    "time": (("<f8",), (1,)),
    **dict.fromkeys(("edge_features", "node_features"), (("<f4",), (2,))),
    "labels": (("b", "i", "u", "f"), (1, 2)),
    "node_ids": (("i", "u", "U"), (1,)),
}


def node_column(name: str, values: object) -> np.ndarray:
    """Return a column of node numbers as int64 [E]."""
    column = as_array(name, values)
    if column.dtype.kind not in "iu" or column.ndim != 1:
        received = f"{column.dtype} of shape {list(column.shape)}"
        cure = "leave out num_nodes, node_features and node_ids for other ids"
        raise DataError(name, "integers of shape [E]", received, cure)
    column = column.astype(np.int64)
    if len(column) and column.min() < 0:
        where = int(np.argmin(column))
        cure = "number nodes from 0, or leave out num_nodes, node_features and node_ids for other ids"
        raise DataError(f"{name}[{where}]", "at least 0", int(column[where]), cure)
    return column


def float_column(name: str, values: ArrayLike, dtype: type, *, ndim: int) -> np.ndarray:
    """Return a finite column of ``dtype``, [E] with ``ndim`` 1 or [rows, width] with 2."""
    given = as_array(name, values)
    try:
        if given.dtype.kind in "mM":  # NumPy would give whatever unit it has
            raise TypeError(f"{given.dtype}; give numbers, or the dates to read_events, in a DataFrame")
        with np.errstate(over="ignore"):  # which is looked at below
            column: np.ndarray = np.asarray(given, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(name, "numbers, every row as long", str(error), "check the rows") from None
    if column.ndim != ndim:
        shape = "[E]" if ndim == 1 else "[rows, width]"
        raise DataError(name, f"of shape {shape}", list(column.shape), "reshape it")
    _check_finite(name, column, "drop or repair that row", given)
    return column


def feature_names(names: object, features: np.ndarray | None) -> tuple[str, ...] | None:
    """Return the names of edge features, [d_edge]; None where they have none, or not one each that tells them apart."""
    if names is None:
        return None
    width = 0 if features is None else features.shape[1]
    if not isinstance(names, (list, tuple)) or len(names) != width or not all(isinstance(name, str) for name in names):
        cure = "name every column of edge_features, or leave the names out"
        raise DataError("edge_feature_names", f"{width} strings", names, cure)
    return tuple(names) if len(set(names)) == width and all(names) else None


def single_column(labels: np.ndarray) -> np.ndarray:
    """Return labels of one column [E, 1], which torch's binary cross entropy takes, as [E]; others as they are."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def label_column(values: ArrayLike) -> np.ndarray:
    """Return the labels of events, finite, as int64, float32 or float64, [E] or [E, L]; of one column [E, 1] as [E]."""
    column = single_column(as_array("labels", values))
    if column.dtype.kind not in "biuf":
        raise DataError("labels", "numeric", column.dtype, "encode classes as integers")
    if column.ndim not in (1, 2) or 0 in column.shape[1:]:
        cure = "give a number per event, or a column per class"
        raise DataError("labels", "of shape [E] or [E, L]", list(column.shape), cure)
    if column.dtype.kind == "f":
        with np.errstate(over="ignore"):  # which is looked at
            kept = column.astype(np.float32 if column.dtype.itemsize <= 4 else np.float64)
        _check_finite("labels", kept, "-1 stands for no label", column)
        return kept
    if column.dtype.kind == "u" and column.max(initial=0) > np.iinfo(np.int64).max:
        raise DataError("labels", "below 2^63", int(column.max()), "number the classes from 0")
    return column.astype(np.int64)


def _check_finite(name: str, column: np.ndarray, cure: str, given: np.ndarray | None = None) -> None:
    """Refuse NaN and infinity, and what has become infinite in the type of the column, ``given`` in another."""
    finite = np.isfinite(column) if column.ndim == 1 else np.isfinite(column).all(axis=1)
    if not finite.all():
        where = int(np.argmin(finite))
        received = column[where] if column.ndim == 1 else "NaN or infinity"
        before = np.asarray(column[where] if given is None else given[where], np.float64)
        if np.isfinite(before).all():
            requirement = f"at most {np.finfo(column.dtype).max:.4g} in size, as {column.dtype} holds it"
            raise RowError(name, where, requirement, float(np.abs(before).max()), "scale it, or " + cure)
        raise RowError(name, where, "finite", str(received), cure)


def node_id_column(values: Sequence[Any] | np.ndarray | None) -> np.ndarray | None:
    """Return the users' ids of the nodes as integers or fixed-width strings, [N]."""
    if values is None:
        return None
    column = as_array("node_ids", values)
    if column.dtype == object and all(isinstance(value, str) for value in column.flat):
        column = column.astype(str)  # a pandas column of strings
    if column.dtype.kind not in "iuU" or column.ndim != 1:
        received = f"{column.dtype} of shape {list(column.shape)}"
        raise DataError("node_ids", "integers or strings of shape [N]", received, "convert them")
    return column


def notice_merged_integers(given: np.ndarray, *, stacklevel: int) -> None:
    """Warn where different times, integers [E], are the same in float64."""
    if given.dtype.kind not in "iu" or not len(given) or max(-int(given.min()), int(given.max())) < FIRST_DOUBTFUL:
        return
    order = np.sort(given, axis=None)
    rounded = order.astype(np.float64)
    if ((order[1:] != order[:-1]) & (rounded[1:] == rounded[:-1])).any():
        size = float(np.abs(rounded).max())
        notice = f"float64 does not tell all times of the size of {size:.4g} apart: some have become equal"
        warnings.warn(f"{notice}; subtract the first time, or give a coarser unit", stacklevel=stacklevel + 1)


def check_calendar(time: np.ndarray) -> None:
    """Refuse times that are a calendar written in digits, such as 20240131: their differences are no time.

    Args:
        time: float64 [E], ascending.

    Raises:
        DataError: All times read as years, months and so on.
    """
    first, last = float(time[0]), float(time[-1])
    form = next((form for form, unit in _CALENDARS.items() if 1900 * unit <= first and last < 2101 * unit), None)
    if form is None or first == last:
        return
    some = np.unique(time[:_TIMES_LOOKED_AT])
    some = some if len(some) > 1 else np.array([first, last])
    if len(some) < _FEWEST_MONTHS and form == "%Y%m":
        return
    for piece in (some, time):  # most streams end at the first few
        if not _is_calendar(piece, form):
            return
    shown = f"{first:.0f}"
    cure = (
        "write dates such as 2024-01-31T12:00:00, in pandas by"
        f" pd.to_datetime(column.astype(str), format={form!r}), or subtract the first time where it is a number"
    )
    raise DataError("time", "numbers or dates", f"{shown}, as all are a calendar without dashes", cure)


def _is_calendar(time: np.ndarray, form: str) -> bool:
    """Whether all times read as dates of a form."""
    rest = time.astype(np.int64)
    if not np.array_equal(rest, time):
        return False
    for letter in reversed(form.replace("%", "")[1:]):
        rest, part = np.divmod(rest, 100)
        lowest, highest = _PARTS[letter]
        if ((part < lowest) | (part > highest)).any():
            return False
    return True


def notice_merged_times(time: np.ndarray, *, given: str = "float64", stacklevel: int) -> None:
    """Warn where times, float64 [E] and ascending, are so large that different ones may have become the same.

    That is so where some are equal and others as close as they can be; those far apart have only been rounded.

    Args:
        time: The times.
        given: The type in which they were given.
        stacklevel: Of the warning.
    """
    largest = max(abs(float(time[0])), abs(float(time[-1])))
    given = given if given in _SHORT_FLOATS else "float64"
    resolution = torch.finfo(getattr(torch, given)).eps
    if largest < 2 / resolution:  # whole numbers below are all distinguished
        return
    gaps, resolvable = np.diff(time), resolution * 2.0 ** math.floor(math.log2(largest))
    apart = gaps[gaps > 0]
    closest = float(apart.min()) if len(apart) else 0.0
    if len(apart) < len(gaps) and closest <= 2 * resolvable:
        size = f"{largest:.4g} apart that differ by less than {resolvable:g}"
        notice = f"{given} does not tell times of the size of {size}"
        cure = "subtract the first time, or give a coarser unit"
        if given != "float64":
            cure = "give float64 or integers, or subtract the first time ahead of converting"
        warnings.warn(f"{notice}: some may have become equal; {cure}", stacklevel=stacklevel + 1)


def first_destination(ids: np.ndarray, src: np.ndarray, dst: np.ndarray) -> int | None:
    """Return where the destinations begin whose ids are also ids of sources; None where every id is of one node.

    Args:
        ids: [N], the user's ids of all nodes.
        src: Numbers of the sources, [E].
        dst: The same of the destinations, [E].

    Raises:
        DataError: An id stands for two nodes that are not a source and a destination, numbered one after the other.
    """
    import pandas as pd

    column = pd.Series(ids)
    again = np.flatnonzero(column.duplicated())
    if not len(again):
        return None
    # Ids have to be distinct before the cut and behind it.
    lowest = max(int(src.max()), int(np.flatnonzero(column.duplicated(keep="last"))[-1])) + 1
    highest = min(int(dst.min()), int(again[0]))
    if lowest > highest:
        cure = "give each node an id of its own, or number the sources first, then the destinations"
        raise DataError("node_ids", "distinct", ids[again[0]].item(), cure)
    return lowest


def count_nodes(
    src: np.ndarray,
    dst: np.ndarray,
    *,
    num_nodes: int | None,
    node_features: np.ndarray | None,
    node_ids: np.ndarray | None,
) -> int:
    """Return N, which at least one of the last three says, and check that they agree and hold every number."""
    highest = int(max(src.max(), dst.max()))
    given = {"node_features": node_features, "node_ids": node_ids}
    lengths = {name: len(values) for name, values in given.items() if values is not None}
    for name, length in lengths.items():
        if highest >= length:
            raise DataError(name, f"a row for every node up to {highest}", f"{length} rows", "add the rows")
    if num_nodes is not None:
        check_int("num_nodes", num_nodes, minimum=1, cure="give N, where nodes are 0 .. N-1")
        if highest >= num_nodes:
            cure = "give N, where nodes are 0 .. N-1, or leave it out for other ids"
            raise DataError("num_nodes", f"above the highest node, {highest}", num_nodes, cure)
        if not lengths and num_nodes > _MAX_ID_PER_EVENT * max(len(src), 1000) + 1:
            cure = "leave num_nodes out: ids with gaps are then numbered without"
            raise DataError("num_nodes", f"in proportion to the {len(src)} events", num_nodes, cure)
        lengths["num_nodes"] = num_nodes
    if len(set(lengths.values())) > 1:
        cure = "give all for the same nodes"
        raise DataError(" and ".join(lengths), "of as many nodes", list(lengths.values()), cure)
    return next(iter(lengths.values()))


def highest_count(src: np.ndarray, dst: np.ndarray) -> int:
    """Return one more than the highest of node numbers, which is N where nothing else says it; at least 1."""
    return max(int(src.max(initial=0)), int(dst.max(initial=0))) + 1


def check_forms(folder: Path, arrays: Mapping[str, np.ndarray | None], num_nodes: int) -> None:
    """Refuse columns of a saved stream that are not of its types and lengths; ``src`` has to be there."""
    there = {name: column for name, column in arrays.items() if column is not None}
    events = there["src"].size
    if not any(name.startswith("node_") for name in there) and num_nodes > _MAX_ID_PER_EVENT * max(events, 1000) + 1:
        raise DataError(str(folder), "of nodes without gaps", f"{num_nodes} nodes", "save the store again")
    for name, column in there.items():
        kinds, dimensions = _FORMS[name]
        rows = num_nodes if name.startswith("node_") else events
        fits = column.dtype.kind in kinds or column.dtype.str in kinds
        if not fits or column.ndim not in dimensions or len(column) != rows or not rows:
            form = f"{' or '.join(kinds)} of {' or '.join(map(str, dimensions))} dimension(s) and {max(rows, 1)} row(s)"
            received = f"{column.dtype.str} of shape {list(column.shape)}"
            raise DataError(str(folder / f"{name}.npy"), form, received, "save the store again")
