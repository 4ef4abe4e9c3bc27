"""Tables of typed columns: pandas and polars DataFrames, Arrow tables, Parquet files."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import narwhals as nw
import numpy as np

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.readers.csv_columns import check_columns, has_jodie_names, jodie_roles, roles_of, usual_columns
from lightning_tgnn.data.readers.frame_columns import Column
from lightning_tgnn.data.readers.rows import Rows
from lightning_tgnn.data.readers.table import Table
from lightning_tgnn.data.streams.node_ids import LONGEST_ID, check_longest_id

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    Frame: TypeAlias = pd.DataFrame | pl.DataFrame | pa.Table


@dataclass(frozen=True)
class FrameTable(Table):
    """A table in memory, or in a Parquet file, of typed columns.

    Attributes:
        frames: Returns the rows, some at a time, with positions for names.
        has_dates: Whether times are dates.
    """

    frames: Callable[[], Iterable[nw.DataFrame[Any]]] = tuple
    has_dates: bool = False

    def columns(self, roles: Mapping[int, str]) -> Iterator[Mapping[int, Column]]:
        """Yield columns by their positions, some rows at a time."""
        path, rows = self.rows.path, self.rows
        names = {position: f"{path}: {role} (column {rows.name(position)})" for position, role in roles.items()}
        for frame in filter(len, self.frames()):
            yield {position: Column(frame[str(position)], name, self.longest_id) for position, name in names.items()}

    def check_ids(self, ids: np.ndarray) -> None:
        """Do nothing: columns refuse such ids themselves."""


def frame_table(
    source: Frame,
    *,
    columns: Mapping[str, Any] | None = None,
    bipartite: bool | None = None,
    longest_id: int = LONGEST_ID,
) -> FrameTable:
    """Return the table in a DataFrame; `read_events` says how nodes are numbered and what ``columns`` means.

    Ids are integers or strings, as the column is typed; dates become seconds since 1970 (UTC where they name no zone).

    Args:
        source: A pandas or polars DataFrame, or an Arrow table.
        columns: Roles to names or positions; None goes by JODIE's names, else by the usual ones.
        bipartite: Number sources and destinations apart; None does so where the names are JODIE's.
        longest_id: Bytes of UTF-8 that an id may have. All ids are stored as wide as the longest.

    Raises:
        InvalidArgumentError: ``columns`` is no mapping of roles to columns, or ``longest_id`` no positive integer.
        DataError: A column is missing or doubled, or there is no row.
    """
    check_longest_id(longest_id)
    columns = None if columns is None else check_columns(columns)
    names, frame = _by_position(source, columns or {})
    return _table("the DataFrame", names, lambda: [frame], columns, bipartite, longest_id)


def _table(
    name: str,
    names: tuple[str, ...],
    frames: Callable[[], Iterable[nw.DataFrame[Any]]],
    columns: Mapping[str, Any] | None,
    bipartite: bool | None,
    longest_id: int,
) -> FrameTable:
    first = next(filter(len, frames()), None)
    if first is None:
        raise DataError(name, "a table with a row per event", "no row", "check how it was made")
    rows = Rows(Path(name), ",", 0, names, 1, tuple(map(str, first.row(0))))
    is_jodie = columns is None and has_jodie_names(names)
    if is_jodie:
        roles = jodie_roles(names, rows.width, name)
    else:
        roles = roles_of(usual_columns(rows) if columns is None else columns, rows)
    dates = Column(first[str(roles.time)], "").holds_dates
    apart = is_jodie or None if bipartite is None else bipartite
    return FrameTable(rows, roles, apart, longest_id, frames=frames, has_dates=dates)


_MAGIC = b"PAR1"
_ROWS_AT_ONCE = 1 << 18


def is_parquet(path: Path) -> bool:
    """Whether ``path`` is a file that begins as Parquet does."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def parquet_table(
    path: Path, *, columns: Mapping[str, Any] | None, bipartite: bool | None, longest_id: int
) -> FrameTable:
    """Return the table in a Parquet file, of which some rows at a time are in memory; see `frame_table`.

    Raises:
        DataError: The file is damaged, a column is missing or doubled, or there is no row.
    """
    found = _parquet(path, columns or {})
    names = next(found)[0]
    found.close()
    return _table(
        str(path), names, lambda: (frame for _, frame in _parquet(path, columns or {})), columns, bipartite, longest_id
    )


def _parquet(
    path: Path, columns: Mapping[str, Any]
) -> Generator[tuple[tuple[str, ...], nw.DataFrame[Any]], None, None]:
    """Yield the names of the columns and some rows, first none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield _by_position(file.schema_arrow.empty_table(), columns)
            rows = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                rows += len(batch)
                yield _by_position(pa.Table.from_batches([batch]), columns)
            if rows != file.metadata.num_rows:
                raise ValueError(f"{rows} rows, where it says {file.metadata.num_rows}")
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        cure = "it was cut short or damaged: write, copy or download it again"
        raise DataError(str(path), "a complete Parquet file", str(error), cure) from error


def _by_position(source: Frame, columns: Mapping[str, Any]) -> tuple[tuple[str, ...], nw.DataFrame[Any]]:
    """Return the names of the columns, and the table with positions for names: names may occur twice."""
    if nw.dependencies.is_pyarrow_table(source):
        named = [given if isinstance(given, list | tuple) else [given] for given in columns.values()]
        source = without_row_numbers(source, chain.from_iterable(named))
        names, positions = source.column_names, [str(p) for p in range(source.num_columns)]
        renamed = _with_plain_texts(source.rename_columns(positions))
    else:
        names, positions = list(source.columns), [str(p) for p in range(len(source.columns))]
        if nw.dependencies.is_polars_dataframe(source):
            renamed = source.rename(dict(zip(names, positions, strict=True)))
        else:
            renamed = source.set_axis(positions, axis=1)
    return tuple(str(name).strip() for name in names), nw.from_native(renamed, eager_only=True)


def without_row_numbers(table: pa.Table, wanted: Iterable[object] = ()) -> pa.Table:
    """Return an Arrow table without the unnamed index of a pandas DataFrame, which mostly numbers the rows.

    Args:
        table: The table.
        wanted: Names of columns; an index among them stays.
    """
    kept = (table.schema.pandas_metadata or {}).get("index_columns", [])
    unnamed = [name for name in kept if isinstance(name, str) and re.fullmatch(r"__index_level_\d+__", name)]
    left = {*table.column_names} - {name for name in wanted if isinstance(name, str)}
    return table.drop_columns([name for name in unnamed if name in left])


def _with_plain_texts(table: pa.Table) -> pa.Table:
    """Return an Arrow table whose texts are not views: Arrow cannot take rows of these."""
    types = {field.name: "large_string" for field in table.schema if str(field.type) == "string_view"}
    for name, type_ in types.items():
        position = table.schema.get_field_index(name)
        table = table.set_column(position, name, table.column(name).cast(type_))
    return table
