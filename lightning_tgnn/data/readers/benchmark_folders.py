"""Folders as DyGLib and TGB-Seq have them: a table of events, whose nodes count from 1, and arrays beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.files.npy_file import map_npy

if TYPE_CHECKING:
    import pandas as pd

_CURE = "take all files of the folder from the same place"


def is_dyglib_folder(folder: Path) -> bool:
    """Whether ``folder`` has the table ``ml_NAME.csv`` of DyGLib."""
    return folder.is_dir() and len(list(folder.glob("ml_*.csv"))) == 1


def read_dyglib(folder: Path) -> EventStore:
    """Return the events of a folder of DyGLib: ``ml_NAME.csv``, and ``ml_NAME.npy`` and ``ml_NAME_node.npy`` if there.

    Nodes get DyGLib's numbers less 1. Row 0 of its arrays stands for no event and no node. Arrays of zeros are left
    out: where a stream has no features, DyGLib writes them.

    Raises:
        DataError: A file is damaged, or they do not fit together.
    """
    (path,) = folder.glob("ml_*.csv")
    table = _table(path, ("u", "i", "ts", "label", "idx"))
    features, nodes = (_array(folder / f"{path.stem}{suffix}.npy") for suffix in ("", "_node"))
    rows = table["idx"].to_numpy()
    if features is not None and not 0 < rows.min() <= rows.max() < len(features):
        requirement = f"of a row for each idx of {path.name}, up to {rows.max()}"
        raise DataError(str(folder / f"{path.stem}.npy"), requirement, f"{len(features)} rows", _CURE)
    labels = table["label"].to_numpy()
    return _store(path, table, ("u", "i", "ts"), None if features is None else features[rows], nodes, labels)


def is_tgb_seq_folder(folder: Path) -> bool:
    """Whether ``folder`` has the negatives ``NAME_test_ns.npy`` of TGB-Seq."""
    return folder.is_dir() and len(list(folder.glob("*_test_ns*.npy"))) == 1


def read_tgb_seq(folder: Path) -> EventStore:
    """Return the events of a folder of TGB-Seq: ``NAME.csv``, and arrays of features if there.

    Nodes get TGB-Seq's numbers less 1. An array may have a row 0 for no event, or no node.

    Raises:
        DataError: A file is damaged, or they do not fit together.
    """
    path, version = tgb_seq_table(folder)
    table = _table(path, ("src", "dst", "time", "split"))
    name = path.stem.removesuffix(version)
    features, nodes = (_array(folder / f"{name}_{kind}_feat{version}.npy") for kind in ("edge", "node"))
    if features is not None:
        features = features[len(features) - len(table) :] if len(features) == len(table) + 1 else features
        if len(features) != len(table):
            requirement = f"of a row per event of {path.name}, which has {len(table)}"
            raise DataError(f"{folder}: edge features", requirement, f"{len(features)} rows", _CURE)
    return _store(path, table, ("src", "dst", "time"), features, nodes, None)


def tgb_seq_table(folder: Path) -> tuple[Path, str]:
    """Return the table of a folder of TGB-Seq, and the version in the names of its files, such as ``_v2``.

    Raises:
        DataError: There is no such table.
    """
    (negatives,) = folder.glob("*_test_ns*.npy")
    name, _, version = negatives.stem.partition("_test_ns")
    path = folder / f"{name}{version}.csv"
    if not path.is_file():
        raise DataError(str(folder), f"a folder with {path.name} beside {negatives.name}", "none", _CURE)
    return path, version


def _table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    try:
        table = pd.read_csv(path, usecols=list(columns))
    except (ValueError, OSError) as error:
        raise DataError(str(path), f"a table with the columns {', '.join(columns)}", str(error), _CURE) from error
    if not len(table):
        raise DataError(str(path), "a table with events", "none", _CURE)
    for name in columns[:2]:
        if table[name].dtype != np.int64 or table[name].min() < 1:
            received = f"{table[name].dtype}, from {table[name].min()} on"
            raise DataError(f"{path}: {name}", "integers from 1 on", received, _CURE)
    return table


def _array(path: Path) -> np.ndarray | None:
    """Return a matrix of features, mapped; None without a file, and where all of it is 0."""
    if not path.is_file():
        return None
    array = map_npy(path, cure=_CURE)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise DataError(str(path), "a matrix of numbers", f"{array.dtype} {list(array.shape)}", _CURE)
    return array if array.any() else None


def _store(
    path: Path,
    table: pd.DataFrame,
    names: Sequence[str],
    features: np.ndarray | None,
    nodes: np.ndarray | None,
    labels: np.ndarray | None,
) -> EventStore:
    src, dst, time = (table[name].to_numpy() for name in names)
    count = int(max(src.max(), dst.max()))
    if nodes is not None:
        if len(nodes) not in (count, count + 1):
            requirement = f"of a row for each of the {count} nodes of {path.name}"
            raise DataError(f"{path}: node features", requirement, f"{len(nodes)} rows", _CURE)
        nodes = nodes[len(nodes) - count :]
    if labels is not None and not labels.any():
        labels = None
    ids = np.arange(1, count + 1)
    return EventStore.from_arrays(src - 1, dst - 1, time.astype(np.float64), features, nodes, labels, node_ids=ids)
