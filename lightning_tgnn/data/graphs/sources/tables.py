"""Static graphs as two tables, CSV or Parquet: one of the edges, one of the vertices."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.arrays import as_numbers, as_whole
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

    - ``id``, numbers or texts, which ``src`` and ``dst`` refer to; without it they are numbers of rows, from 0;
    - ``label``, the number of a class, empty for none; or ``label_0``, ``label_1`` and so on of 0 and 1;
    - ``split``: ``train``, ``val``, ``test``, or empty;
    - features, in all other columns, numbers.

    Raises:
        DataError: A table or column is missing, or holds something that must not be trained on.
    """
    edges, vertices = _table(folder, "edges"), _table(folder, "vertices")
    where = str(folder)
    unread = [str(name) for name in edges if name not in ("src", "dst", "weight")]
    if unread:
        warnings.warn(f"{where}: nothing reads the column(s) {', '.join(unread)} of the edges", stacklevel=2)
    names = [str(name) for name in vertices]
    labels = [name for name in names if name == "label" or name.startswith("label_")]
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
            raise DataError(refusal(f"{where}: {table}", f"with {column}", found, "add or rename a column"))
    splits = vertices["split"].fillna("").astype(str).str.strip()
    wrong = splits[~splits.isin([*SPLITS, ""])]
    if len(wrong):
        cure = "leave it empty for a vertex in no split"
        raise DataError(refusal(f"{where}: split", "train, val, test or empty", wrong.iloc[0], cure))
    return Graph(
        src=_ends(where, "src", edges, vertices),
        dst=_ends(where, "dst", edges, vertices),
        features=torch.stack([as_numbers(name, vertices[name].to_numpy()).float() for name in features], dim=1),
        labels=as_whole(
            "label", _filled(vertices[labels]), "number the classes from 0, and leave out where there is none"
        ),
        **{name: torch.from_numpy((splits == name).to_numpy()) for name in SPLITS},
        edge_weights=as_numbers("weight", edges["weight"].to_numpy()).float() if "weight" in edges else None,
    )


def _table(folder: Path, name: str) -> pd.DataFrame:
    import pandas as pd

    paths = [folder / f"{name}{ending}" for ending in _ENDINGS if (folder / f"{name}{ending}").is_file()]
    if len(paths) != 1:
        received, cure = ", ".join(path.name for path in paths) or "none", f"give {name}.csv or {name}.parquet"
        raise DataError(refusal(str(folder), f"a folder with one table of the {name}", received, cure))
    (path,) = paths
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ValueError, OSError, EOFError) as error:  # what pandas and pyarrow raise of a damaged file
        form = "a table of Parquet" if path.suffix == ".parquet" else "a table of CSV with a header"
        raise DataError(refusal(str(path), form, str(error), "write it anew")) from error


def _ends(where: str, end: str, edges: pd.DataFrame, vertices: pd.DataFrame) -> torch.Tensor:
    """Return the rows of ``vertices`` that the edges have at one end, int64 [E]."""
    if "id" not in vertices:
        return as_whole(end, edges[end].to_numpy(), "give numbers of rows, or the vertices a column id")
    import pandas as pd

    ids = pd.Index(vertices["id"])
    if not ids.is_unique:
        twice = vertices["id"][ids.duplicated()].iloc[0]
        raise DataError(refusal(f"{where}: id", "different for each vertex", twice, "give each vertex one row"))
    rows = ids.get_indexer(edges[end])
    if (rows < 0).any():
        stranger = edges[end][rows < 0].iloc[0]
        raise DataError(refusal(f"{where}: {end}", "of ids of vertices", stranger, "give every vertex a row"))
    return torch.from_numpy(rows.astype(np.int64))


def _filled(labels: pd.DataFrame) -> np.ndarray:
    """Return labels with -1 where there is none, [N] or [N, C]."""
    values = labels.fillna(-1).to_numpy()
    return values[:, 0] if list(labels) == ["label"] else values
