"""Tables of questions and answers: CSV, plain or gzipped, or Parquet, piece by piece."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import narwhals as nw
from numpy.typing import ArrayLike

from lightning_tgnn.checks import DataError, RowError, check_choice
from lightning_tgnn.data.readers.dates import is_date, seconds_of_dates
from lightning_tgnn.data.readers.frame import without_row_numbers
from lightning_tgnn.data.readers.frame_columns import Column
from lightning_tgnn.data.readers.rows import iterate, to_number
from lightning_tgnn.data.readers.table import level_name, one_hot
from lightning_tgnn.data.readers.text_file import open_text
from lightning_tgnn.files.whole import new_file

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.parquet as pq

_SUFFIXES = (".csv", ".csv.gz", ".parquet")
_CSV, _PACKED, PARQUET = _SUFFIXES
_FEW = 5
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def check_suffix(argument: str, path: str | Path) -> str:
    """Return the format of a table by the ending of its name.

    Raises:
        InvalidArgumentError: The ending is none of ``.csv``, ``.csv.gz`` and ``.parquet``.
    """
    found = Path(path).suffixes[-1:]
    if [name.lower() for name in Path(path).suffixes[-2:]] == [".csv", ".gz"]:
        found = [_PACKED]
    return check_choice(f"the ending of {argument}", "".join(found).lower(), _SUFFIXES)


def check_table(argument: str, path: str | Path) -> str:
    """Return the format of an existing table.

    Raises:
        DataError: The file does not exist.
        InvalidArgumentError: The name has another ending.
    """
    suffix = check_suffix(argument, path)
    if not Path(path).is_file():
        raise DataError(argument, "a file", str(path), "check the name")
    return suffix


def read_pieces(
    argument: str,
    path: str | Path,
    ids: tuple[str, ...],
    *,
    rows: int,
    other_names: Mapping[str, str] | None = None,
    texts: Collection[str] = (),
) -> Iterator[pd.DataFrame]:
    """Yield the rows of a table, ``rows`` at a time, at least one piece; the index counts the rows of the table.

    Args:
        argument: Name of the table in an error message.
        path: The file.
        ids: Required columns that hold node ids. In a CSV they are read as strings, as written.
        rows: Per piece.
        other_names: What columns may be called as well, by their names. Those that are have their names in the
            attribute ``attrs`` of each piece, in the same way.
        texts: Columns that a CSV holds as text, where an empty field is an empty text.

    Raises:
        DataError: The file is missing or damaged, lacks a column or has it twice, or holds a gap or a time in words.
    """
    suffix = check_table(argument, path)
    names = other_names or {}
    pieces = (
        _parquet_pieces(path, rows, names) if suffix == PARQUET else _csv_pieces(Path(path), ids, rows, names, texts)
    )
    try:
        for piece in pieces:
            _check_piece(argument, path, piece, ids)
            yield piece
    except (ValueError, OSError) as error:
        if isinstance(error, DataError):
            raise
        reason = str(error).partition("\n")[0]
        raise DataError(argument, f"a {suffix[1:]} table", f"{path}: {reason}", "check how it was made") from None


def _called(header: Sequence[str], other_names: Mapping[str, str]) -> dict[str, str]:
    """Return which columns of a table have their other names."""
    return {name: other for name, other in other_names.items() if name not in header and other in header}


def _renamed(piece: pd.DataFrame, called: Mapping[str, str]) -> pd.DataFrame:
    piece = piece.rename(columns={other: name for name, other in called.items()})
    piece.attrs = {name: other for name, other in called.items()}
    return piece


def _csv_pieces(
    path: Path, ids: tuple[str, ...], rows: int, names: Mapping[str, str], texts: Collection[str]
) -> Iterator[pd.DataFrame]:
    import pandas as pd

    options: dict[str, Any] = {
        "dtype": dict.fromkeys((*ids, *(names[name] for name in ids if name in names), *texts), str),
        "keep_default_na": False,
        "na_values": [""],
        "skipinitialspace": True,
    }
    # With a row below it, for pandas refuses a row of more fields than all those above, but not than the header.
    with open_text(path) as lines:
        header = [str(name).strip() for name in pd.read_csv(lines, nrows=2, header=None, dtype=str).iloc[0]]
    if len(set(header)) < len(header):
        raise ValueError(f"a column twice in {header}")  # pandas would rename the second
    called, times = _called(header, names), _Times(path)
    read: dict[str, Any] = {"chunksize": rows, "index_col": False} | _exact_numbers() | options
    with open_text(path) as lines, pd.read_csv(lines, **read) as pieces:
        while (piece := _next(pieces)) is not None:
            # pandas fills short rows up, which shows in the last column.
            if piece.iloc[:, -1].isna().any():
                _refuse_short_rows(path, len(header))
            piece = piece.fillna(dict.fromkeys({*texts} & {*piece.columns}, ""))
            yield _renamed(times.read(_renamed(piece, called)), called) if called else times.read(piece)


def _exact_numbers() -> dict[str, Any]:
    """Return the option that lets pandas read every number as Python does: from 3.1 on it does, and deprecates it."""
    import pandas as pd

    version = tuple(int(number) for number in pd.__version__.split(".")[:2])
    return {"float_precision": "round_trip"} if version < (3, 1) else {}


def _next(pieces: Iterator[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the next piece, and refuse a row that is too long, because pandas would cut off its end."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return next(pieces, None)
        except pd.errors.ParserWarning as warning:
            raise ValueError("a row that is longer than the header") from warning


def _refuse_short_rows(path: Path, width: int) -> None:
    for line, fields in iterate(path, ",", 1):
        if len(fields) != width:
            raise ValueError(f"line {line} has {len(fields)} of {width} columns")


class _Times:
    """Reads the times of a CSV as numbers, or as dates in seconds since 1970 if the first one is a date."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._has_dates: bool | None = None

    def read(self, piece: pd.DataFrame) -> pd.DataFrame:
        """Return the next rows with times as numbers; gaps stay."""
        import pandas as pd

        if "time" not in piece.columns or not piece["time"].notna().any():
            return piece
        given = piece["time"].dropna()
        if self._has_dates is None:
            self._has_dates = is_date(str(given.iloc[0]))
        if not self._has_dates:
            if given.dtype.kind not in "iuf":  # what pandas has not read as numbers
                self._refuse(piece, given[pd.to_numeric(given.astype(str), errors="coerce").isna()], "a number")
            return piece
        try:
            seconds = seconds_of_dates(given.astype(str))
        except ValueError:
            self._refuse(piece, given[[not is_date(str(date)) for date in given]], "a date, as in the first row")
            raise
        return piece.assign(time=pd.Series(seconds, given.index))

    def _refuse(self, piece: pd.DataFrame, wrong: pd.Series, requirement: str) -> None:
        if len(wrong):
            row = int(wrong.index[0]) - int(piece.index[0])
            cure = "repair that row; write times as numbers or all as dates such as 2024-02-29T12:30:00"
            raise RowError("time", row, requirement, wrong.iloc[0], cure).in_file(self._path, piece.index[0])


def _parquet_pieces(path: str | Path, rows: int, names: Mapping[str, str]) -> Iterator[pd.DataFrame]:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if file.metadata.num_rows == 0:
                yield without_row_numbers(file.schema_arrow.empty_table()).to_pandas(ignore_metadata=True)
            start = 0
            for batch in file.iter_batches(rows):
                piece = without_row_numbers(pa.Table.from_batches([batch])).to_pandas(ignore_metadata=True)
                piece.index = pd.RangeIndex(start, start + len(piece))
                start += len(piece)
                yield _renamed(piece, _called(list(piece.columns), names))
            if start < file.metadata.num_rows:
                raise ValueError(f"{start} rows of the {file.metadata.num_rows} that the file says")
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


def _check_piece(argument: str, path: str | Path, piece: pd.DataFrame, ids: tuple[str, ...]) -> None:
    missing = [name for name in ids if name not in piece.columns]
    if missing:
        cure = f"its first line names the columns, and the columns of nodes {' and '.join(ids)}"
        raise DataError(argument, f"a table with {', '.join(missing)}", f"{path} with {list(piece)}", cure)
    for name in [name for name in (*ids, "time") if name in piece.columns]:
        gaps = piece[name].isna()
        if gaps.any():
            row = int(gaps.to_numpy().argmax())
            raise RowError(name, row, "there", "nothing", "drop or repair that row").in_file(path, piece.index[0])


def by_name(values: ArrayLike, names: tuple[str, ...] | None) -> ArrayLike:
    """Return the columns of a table of edge features in the order of training, if their names are known.

    Args:
        values: A DataFrame or an Arrow table; any other value is returned as it is.
        names: Names of the features in training; None if they are unknown.

    Raises:
        DataError: The table lacks one, has a name twice, or has not been read.
    """
    try:
        table = nw.from_native(values, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        if names is None:
            return values
        raise DataError("edge_features", "a table with distinct names", str(error), "rename one") from None
    if isinstance(table, nw.LazyFrame):
        raise DataError("edge_features", "a table that has been read", "a LazyFrame", "call its collect()")
    if names is None or not isinstance(table, nw.DataFrame):
        return values
    table = _with_categories(table, names)
    missing = [name for name in names if name not in table.columns]
    if missing:
        cure = "name the columns as the stream of training does, in any order"
        categories = category_columns(names)
        wanted = [name for name in names if name.partition("=")[0] not in categories] + [*categories]
        lacks = [name for name in wanted if name not in table.columns]
        received = f"none of the name(s) {', '.join(lacks)} in {list(map(str, table.columns))}"
        raise DataError("edge_features", f"a table with {', '.join(wanted)}", received, cure)
    return table.select(names).to_native()


def category_columns(names: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the values that columns of categories had in training, by the names of the features made of them.

    >>> category_columns(["price", "channel=app", "channel=web"])
    {'channel': ['app', 'web']}
    """
    found: dict[str, list[str]] = {}
    for name in names or ():
        column, mark, level = name.partition("=")
        if mark:
            found.setdefault(column, []).append(level)
    return found


def _with_categories(table: nw.DataFrame[Any], names: tuple[str, ...]) -> nw.DataFrame[Any]:
    """Return a table with the features that training has made of categories, 0 for a value that it did not have."""
    for column, levels in category_columns(names).items():
        if column not in table.columns or level_name(column, levels[0]) in table.columns:
            continue
        texts = Column(table[column], f"edge_features[{column!r}]").texts()
        if unknown := sorted(set(texts) - set(levels)):
            some = ", ".join(map(repr, unknown[:_FEW])) + (" ..." if len(unknown) > _FEW else "")
            notice = f"{column}: training had no {some}, only {', '.join(map(repr, levels[:_FEW]))}"
            warnings.warn(
                f"{notice}{' ...' if len(levels) > _FEW else ''}; such a value is none of these", stacklevel=4
            )
        made = one_hot(texts, levels)
        backend = table.implementation
        table = table.with_columns(
            nw.new_series(level_name(column, level), made[:, place], backend=backend)
            for place, level in enumerate(levels)
        )
    return table


@contextmanager
def answer_table(path: str | Path, *, quotes_formulas: bool = True) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Yield a function that adds a DataFrame to a table; the table appears at ``path`` only if no error occurs.

    Args:
        path: The table.
        quotes_formulas: Put ``'`` before texts of a CSV that a spreadsheet would run as formulas, such as ``=cmd``.

    Raises:
        InvalidArgumentError: The ending is unknown, ``path`` cannot be written, or the disk is full.
    """
    suffix = check_suffix("output", path)
    with new_file(Path(path)) as partial:
        table = (
            _ParquetWriter(partial)
            if suffix == PARQUET
            else _CSVWriter(partial, packed=suffix == _PACKED, quotes=quotes_formulas)
        )
        with closing(table) as writer:
            yield writer.add


def _quoted(value: object) -> object:
    """Return a text so that no spreadsheet takes it for a formula; a number stays.

    >>> _quoted("=cmd|' /C calc'!A0"), _quoted("-5"), _quoted("shop")
    ("'=cmd|' /C calc'!A0", '-5', 'shop')
    """
    is_formula = isinstance(value, str) and value[:1] in _FORMULAS and to_number(value) is None
    return f"'{value}" if is_formula and value else value


class _CSVWriter:
    def __init__(self, path: Path, *, packed: bool, quotes: bool) -> None:
        self._path, self._packed, self._quotes, self._has_header = path, packed, quotes, False

    def add(self, piece: pd.DataFrame) -> None:
        if self._quotes:
            piece = piece.apply(lambda column: column.map(_quoted) if column.dtype.kind not in "iufbM" else column)
        with self._path.open("ab") as file:
            # Without a name and a time, so that the same answers are the same file.
            packed = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if self._packed else nullcontext(file)
            with packed as target:
                piece.to_csv(target, mode="wb", header=not self._has_header, index=False)
        self._has_header = True

    def close(self) -> None:
        """Do nothing, because no file is kept open."""


class _ParquetWriter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None

    def add(self, piece: pd.DataFrame) -> None:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        table = pa.Table.from_pandas(piece, preserve_index=False)
        if self._writer is None:
            self._writer = ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
