"""Data sets of the Temporal Graph Benchmark as RelBench publishes them: tables in Parquet, and TGB's own negatives.

Robinson et al., "RelBench: a benchmark for deep learning on relational databases" (NeurIPS 2024 Datasets and
Benchmarks).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_tgnn.checks import DataError
from lightning_tgnn.files.npy_file import map_npy

_CURE = "take all files of the folder from the same place"
_TYPED = "events_edge_type_"
_ENDS = "src_id", "dst_id"


def is_relbench_folder(folder: Path) -> bool:
    """Whether ``folder`` has the tables of events of a TGB data set in RelBench's form."""
    return any((folder / "db").glob("events*.parquet"))


@dataclass
class RelBenchSet:
    """A data set of TGB in RelBench's form; takes the place of a ``LinkPropPredDataset``. Build one with `open`.

    Attributes:
        name: Of its folder.
        full_data: Columns of the events by TGB's names, nodes by TGB's numbers.
        node_type: int64 [N], the type of each node in the sets ``thgl-*``; None in others.
        folder: Where its files lie.
    """

    name: str
    full_data: Mapping[str, Any]
    node_type: np.ndarray | None
    folder: Path
    node_feat: None = None
    negative_sampler: _Negatives = field(init=False)

    def __post_init__(self) -> None:
        self.negative_sampler = _Negatives(self.node_type is not None)

    @classmethod
    def open(cls, folder: Path) -> RelBenchSet:
        """Read the tables of a folder: ``db/*.parquet``, with ``mappings/*.npy`` where nodes have types.

        Raises:
            DataError: A file is missing or damaged, or they do not fit together.
        """
        tables = sorted((folder / "db").glob("events*.parquet"), key=lambda path: (len(path.stem), path.stem))
        numbers = _Numbers(folder)
        pieces = [_events(path, numbers) for path in tables]
        data: dict[str, Any] = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        weight = data.pop("weight")
        # RelBench keeps TGB's weights, and none of its features; most sets have the same weight everywhere.
        data["edge_feat"] = None if (weight == weight[0]).all() else weight[:, None]
        typed = tables[0].stem.startswith(_TYPED)
        if typed:
            relations = [int(path.stem.removeprefix(_TYPED)) for path in tables]
            data["edge_type"] = np.repeat(relations, [len(piece["weight"]) for piece in pieces])
        if (folder / "db" / "label_events.parquet").is_file():
            data["node_label_dict"] = _labels(folder / "db", numbers)
        return cls(folder.absolute().name, data, numbers.types() if typed else None, folder)

    @property
    def _ends(self) -> np.ndarray:
        """[2], the last times of the training and validation splits, as ``py-tgb`` finds them."""
        return np.quantile(self.full_data["timestamps"], [0.7, 0.85])

    @property
    def train_mask(self) -> np.ndarray:
        """Bool [E], the events of the training split."""
        return self.full_data["timestamps"] <= self._ends[0]

    @property
    def val_mask(self) -> np.ndarray:
        """The same of the validation split."""
        return ~self.train_mask & ~self.test_mask

    @property
    def test_mask(self) -> np.ndarray:
        """The same of the test split."""
        return self.full_data["timestamps"] > self._ends[1]

    def load_val_ns(self) -> None:
        """Read the negatives of the validation split."""
        self.negative_sampler.load(self.folder / "negatives" / "val_ns.pkl", "val")

    def load_test_ns(self) -> None:
        """Read the negatives of the test split."""
        self.negative_sampler.load(self.folder / "negatives" / "test_ns.pkl", "test")


class _Negatives:
    """TGB's files of negatives, nodes by (source, destination, time), or with types by (time, source, relation)."""

    def __init__(self, typed: bool) -> None:
        self._key = (2, 0, 3) if typed else (0, 1, 2)
        self._of_split: dict[str, Mapping[tuple[int, ...], np.ndarray]] = {}

    def load(self, path: Path, split: str) -> None:
        """Read a file; nothing in it runs.

        Raises:
            OSError: The file is missing.
            ValueError: The file holds anything but numbers and arrays.
        """
        with path.open("rb") as file:
            try:
                self._of_split[split] = _ArrayUnpickler(file).load()
            except Exception as error:  # on garbage, that of pickle is anything
                raise ValueError(f"{path}: {error}") from error

    def query_batch(self, *columns: np.ndarray, split_mode: str) -> list[np.ndarray]:
        """Return the negatives of events, from their sources, destinations, times and, with types, relations.

        Raises:
            ValueError: An event has no negatives.
        """
        held = self._of_split[split_mode]
        try:
            return [held[key] for key in zip(*(columns[place].tolist() for place in self._key), strict=True)]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{split_mode}_ns.pkl without {error}") from error


_MODULES = {"numpy", *(f"numpy.{core}.{part}" for core in ("core", "_core") for part in ("multiarray", "numeric"))}


class _ArrayUnpickler(pickle.Unpickler):
    """Reads tuples, numbers and arrays of numpy, and refuses whatever else a pickle may name."""

    def find_class(self, module: str, name: str) -> object:
        if module.partition(".")[0] == "numpy" and name in {
            "_reconstruct",
            "_frombuffer",
            "ndarray",
            "dtype",
            "scalar",
        }:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no array")


class _Numbers:
    """TGB's numbers of nodes, which the tables of events count from 0 in each table of nodes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of_table: dict[str, np.ndarray] = {}

    def __call__(self, path: Path, column: str, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of nodes, int64 [n], from their rows in the table that a column refers to.

        Raises:
            DataError: The table is unknown, or a row is not in it.
        """
        table = self._referred(path).get(column, "")
        if table not in self._of_table:
            self._of_table[table] = self._read(table)
        numbers = self._of_table[table]
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(numbers):
            requirement = f"of rows of {table}.parquet, 0 .. {len(numbers) - 1}"
            raise DataError(f"{path}: {column}", requirement, f"{rows.min()} to {rows.max()}", _CURE)
        return numbers[rows]

    def types(self) -> np.ndarray:
        """Return the type of each node, int64 [N], of the sets with types."""
        tables = [path.stem for path in (self._folder / "db").glob("nodes_type_*.parquet")]
        numbers = {table: self._read(table) for table in tables}
        types = np.zeros(max(int(some.max(initial=-1)) for some in numbers.values()) + 1, dtype=np.int64)
        for table, some in numbers.items():
            types[some] = int(table.removeprefix("nodes_type_"))
        return types

    def _referred(self, path: Path) -> Mapping[str, str]:
        """Return the table of each column that refers to one: the manifest has them, or the table itself."""
        manifest = self._folder / "manifest.yaml"
        if manifest.is_file():
            import yaml

            try:
                return yaml.safe_load(manifest.read_bytes())["tables"][path.stem]["fkeys"]
            except (yaml.YAMLError, LookupError, TypeError) as error:
                raise DataError(str(manifest), f"one that names the fkeys of {path.stem}", str(error), _CURE) from error
        import pyarrow.parquet  # which takes a while

        held = (pyarrow.parquet.read_schema(path).metadata or {}).get(b"fkey_col_to_pkey_table", b"{}")
        return json.loads(held)

    def _read(self, table: str) -> np.ndarray:
        if table.startswith("nodes_type_"):
            mapping = self._folder / "mappings" / f"globals_type_{table.removeprefix('nodes_type_')}.npy"
            return np.asarray(map_npy(mapping, cure=_CURE))
        first = self._num_rows("src_nodes") if table == "dst_nodes" else 0
        return np.arange(first, first + self._num_rows(table))

    def _num_rows(self, table: str) -> int:
        import pyarrow.parquet

        path = self._folder / "db" / f"{table}.parquet"
        try:
            return pyarrow.parquet.read_metadata(path).num_rows
        except (OSError, ValueError) as error:
            raise DataError(str(path), "a Parquet table of nodes", str(error), _CURE) from error


def _events(path: Path, numbers: _Numbers) -> dict[str, np.ndarray]:
    table = _table(path, (*_ENDS, "event_ts", "weight"))
    sources, destinations = (numbers(path, name, table[name]) for name in _ENDS)
    return {
        "sources": sources,
        "destinations": destinations,
        "timestamps": table["event_ts"],
        "weight": table["weight"],
    }


def _labels(folder: Path, numbers: _Numbers) -> dict[int, dict[int, np.ndarray]]:
    """Return the labels of nodes, ``{time: {node: vector}}``."""
    path, of_items = folder / "label_events.parquet", folder / "label_event_items.parquet"
    events = _table(path, ("label_event_id", "src_id", "label_ts"))
    items = _table(of_items, ("label_event_id", "label_id", "label_weight"))
    classes = len(_table(folder / "labels.parquet", ("label_id",))["label_id"])
    vectors = np.zeros((len(events["src_id"]), classes), dtype=np.float32)
    try:
        vectors[items["label_event_id"], items["label_id"]] = items["label_weight"]
        rows = vectors[events["label_event_id"]]
    except IndexError as error:
        raise DataError(str(of_items), "rows of label_events and labels", str(error), _CURE) from error
    labels: dict[int, dict[int, np.ndarray]] = {}
    nodes = numbers(path, "src_id", events["src_id"])
    for time, node, row in zip(events["label_ts"].tolist(), nodes.tolist(), rows, strict=True):
        labels.setdefault(time, {})[node] = row
    return labels


def _table(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return columns of a table: ids int64, times int64 in seconds, weights float32.

    Raises:
        DataError: The file is missing or damaged, or a column is missing, has gaps or another type.
    """
    import pyarrow as pa
    import pyarrow.parquet

    types = {"weight": pa.float32(), "label_weight": pa.float32()}
    columns = {}
    try:
        table = pyarrow.parquet.read_table(path, columns=list(names))
        for name in names:
            column = table[name]
            if column.null_count:
                raise ValueError(f"{name} has gaps")
            if name.endswith("_ts"):
                column = column.cast(pa.timestamp("s", tz="UTC"))
            columns[name] = column.cast(types.get(name, pa.int64())).to_numpy()
    except (OSError, KeyError, ValueError, NotImplementedError) as error:  # Arrow's own are of these
        raise DataError(str(path), f"a Parquet table with the columns {', '.join(names)}", str(error), _CURE) from error
    return columns
