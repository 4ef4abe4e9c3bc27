"""Static graphs as two tables, CSV or Parquet: one of the edges, one of the vertices."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.arrays import as_whole
from lightning_tgnn.data.graphs.graph import SPLITS, Graph

if TYPE_CHECKING:
    import pandas as pd

_ENDINGS = (".csv", ".csv.gz", ".parquet")


def is_folder_of_tables(folder: Path) -> bool:
    """Whether ``folder`` has a table of edges."""
    return any((folder / f"edges{ending}").is_file() for ending in _ENDINGS)


def read_tables(folder: Path) -> Graph:
    """Return the graph of the tables ``edges`` and ``vertices`` in a folder, ``.csv``, ``.csv.gz`` or ``.parquet``.

    A row of ``edges`` has ``src``, ``dst`` and perhaps ``weight``. A row of ``vertices`` has

    - ``id``, which ``src`` and ``dst`` refer to, compared as text; without it they are numbers of rows, from 0;
    - ``label``, the number of a class, empty for none; or ``label_0``, ``label_1`` and so on of 0 and 1;
    - ``split``: ``train``, ``val``, ``test``, or empty;
    - features, in all other columns, numbers.

    Raises:
        DataError: A table or column is missing, or holds something that must not be trained on.
    """
    vertices = _table(folder, "vertices", ("id", "split"))
    edges = _table(folder, "edges", ("src", "dst") if "id" in vertices else ())
    unread = [str(name) for name in edges if name not in ("src", "dst", "weight")]
    if unread:
        warnings.warn(f"{folder}: nothing reads the column(s) {', '.join(unread)} of the edges", stacklevel=2)
    names = [str(name) for name in vertices]
    labels = _label_columns(folder, names)
    features = [name for name in names if name not in {"id", "split", *labels}]
    for table, column, is_there in (
        ("edges", "src", "src" in edges),
        ("edges", "dst", "dst" in edges),
        ("vertices", "label", bool(labels)),
        ("vertices", "split", "split" in vertices),
        ("vertices", "features", bool(features)),
    ):
        if not is_there:
            found = ", ".join(map(str, edges if table == "edges" else vertices))
            raise DataError(f"{folder}: {table}", f"with {column}", found, "add or rename a column")
    splits = _texts(vertices["split"]).str.strip()
    wrong = splits[~splits.isin([*SPLITS, ""])]
    if len(wrong):
        cure = "leave it empty for a vertex in no split"
        raise DataError(f"{folder}: split", "train, val, test or empty", wrong.iloc[0], cure)
    classes = np.nan_to_num(np.stack([_numbers(folder, vertices[name]) for name in labels], axis=1), nan=-1)
    return Graph(
        src=_ends(folder, "src", edges, vertices),
        dst=_ends(folder, "dst", edges, vertices),
        features=torch.from_numpy(np.stack([_numbers(folder, vertices[name]) for name in features], axis=1)).float(),
        labels=as_whole("label", classes[:, 0] if labels == ["label"] else classes, "number the classes from 0"),
        **{name: torch.from_numpy((splits == name).to_numpy()) for name in SPLITS},
        edge_weights=torch.from_numpy(_numbers(folder, edges["weight"])).float() if "weight" in edges else None,
    )


def _label_columns(folder: Path, names: list[str]) -> list[str]:
    """Return ``label``, or ``label_0``, ``label_1`` and so on, in the order of their numbers."""
    several = sorted((name for name in names if re.fullmatch(r"label_\d+", name)), key=lambda name: int(name[6:]))
    one = ["label"] if "label" in names else []
    if (one and several) or several != [f"label_{number}" for number in range(len(several))]:
        requirement, cure = "label alone, or label_0, label_1 and so on without gaps", "rename the other columns"
        raise DataError(f"{folder}: columns of labels", requirement, ", ".join(one + several), cure)
    return one or several


def _table(folder: Path, name: str, texts: Sequence[str]) -> pd.DataFrame:
    """Return a table; in a CSV an empty field is NaN, but in the columns ``texts``, which are read as they are."""
    import pandas as pd

    paths = [folder / f"{name}{ending}" for ending in _ENDINGS if (folder / f"{name}{ending}").is_file()]
    if len(paths) != 1:
        received, cure = ", ".join(path.name for path in paths) or "none", f"give {name}.csv or {name}.parquet"
        raise DataError(str(folder), f"a folder with one table of the {name}", received, cure)
    (path,) = paths
    is_parquet = path.suffix == ".parquet"
    try:
        if is_parquet:
            table = pd.read_parquet(path)
            return table.reset_index() if any(level is not None for level in table.index.names) else table
        plain: dict[str, Any] = {"header": None, "keep_default_na": False}
        columns = [str(column).strip() for column in pd.read_csv(path, dtype=str, nrows=1, **plain).iloc[0]]
        if len({*columns, ""}) == len(columns) + 1:
            empty = {column: [""] for column in columns if column not in texts}
            types = dict.fromkeys(texts, str)
            return pd.read_csv(path, names=columns, skiprows=1, na_values=empty, dtype=types, **plain)
    except (ValueError, OSError, EOFError, zlib.error) as error:  # what pandas and pyarrow raise of a damaged file
        form = "a table of Parquet" if is_parquet else "a table of CSV with a header"
        raise DataError(str(path), form, str(error), "write it anew") from error
    cure = "name every column once; pandas writes no column of row numbers with index=False"
    raise DataError(str(path), "a table with a different name for each column", ", ".join(columns), cure)


def _texts(column: pd.Series) -> pd.Series:
    """Return the values as texts, empty where there is none."""
    return column.astype(object).where(column.notna(), "").astype(str)


def _numbers(folder: Path, column: pd.Series) -> np.ndarray:
    """Return the values as float64, NaN where there is none."""
    try:
        return column.to_numpy(dtype="float64", na_value=np.nan)
    except (ValueError, TypeError) as error:
        cure = "convert it, or leave the column out"
        raise DataError(f"{folder}: {column.name}", "of numbers", str(error), cure) from None


def _ends(folder: Path, end: str, edges: pd.DataFrame, vertices: pd.DataFrame) -> torch.Tensor:
    """Return the rows of ``vertices`` that the edges have at one end, int64 [E]."""
    if "id" not in vertices:
        return as_whole(end, edges[end].to_numpy(), "give numbers of rows, or the vertices a column id")
    import pandas as pd

    ids, ends = pd.Index(_texts(vertices["id"])), _texts(edges[end])
    if not ids.is_unique or (ids == "").any():
        wrong = "none" if (ids == "").any() else ids[ids.duplicated()][0]
        raise DataError(f"{folder}: id", "different for each vertex", wrong, "give each vertex one row")
    rows = ids.get_indexer(pd.Index(ends))
    if (rows < 0).any():
        stranger = ends[rows < 0].iloc[0] or "none"
        raise DataError(f"{folder}: {end}", "of ids of vertices", stranger, "give every vertex a row")
    return torch.from_numpy(rows.astype(np.int64))
