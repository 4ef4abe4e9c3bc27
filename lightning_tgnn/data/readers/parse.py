"""The columns of a text file, some rows at a time: as text, cut by Arrow, then in the types that lose nothing."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.arrays import FIRST_DOUBTFUL
from lightning_tgnn.data.readers.culprit import check_text_ids, find_culprit
from lightning_tgnn.data.readers.dates import is_date, seconds_of_dates
from lightning_tgnn.data.readers.rows import Rows, iterate
from lightning_tgnn.data.readers.table import Column, Table
from lightning_tgnn.data.readers.text_file import LONGEST_LINE, open_lines, open_text
from lightning_tgnn.data.streams.columns import notice_merged_integers

if TYPE_CHECKING:
    import pyarrow as pa

_BYTES_AT_ONCE = LONGEST_LINE + 1  # a row lies in two pieces at most
_ROWS_AT_ONCE = 1 << 16


class _UnreadableError(ValueError):
    """A chunk holds something that is not what its column needs."""


@dataclass(frozen=True)
class TextTable(Table):
    """A table in a text file."""

    @property
    def has_dates(self) -> bool:
        """Whether times are dates; otherwise they are numbers. The first row tells."""
        return is_date(self.rows.first[self.roles.time])

    def columns(self, roles: Mapping[int, str]) -> Iterator[Mapping[int, Column]]:
        """Yield columns by their positions, some rows at a time."""
        for cells in _cells(self.rows, sorted(roles)):
            yield {
                position: TextColumn(texts, self.has_dates, self.longest_id)
                for position, texts in zip(sorted(roles), cells, strict=True)
            }

    def explained(self, error: ValueError) -> DataError:
        """Return the refusal of the row that made a read fail."""
        cure = "look for unusual quotes"
        unexplained = DataError(str(self.rows.path), "a table that Arrow can read", str(error).strip(), cure)
        return find_culprit(self) or unexplained

    def check_ids(self, ids: np.ndarray) -> None:
        """Refuse string ids that stand for no node, or for another than they seem to."""
        if ids.dtype.kind == "U":
            check_text_ids(self, ids)


@dataclass(frozen=True)
class TextColumn:
    """Cells of a text file as they are written.

    Attributes:
        cells: Strings [E].
        has_dates: Whether the times of the table are dates.
        longest_id: Bytes of UTF-8 that an id may have.
    """

    cells: pa.StringArray
    has_dates: bool
    longest_id: int

    def ids(self) -> pa.StringArray:
        """Return ids, strings [E]: whether all are integers is known at the end of the file."""
        import pyarrow.compute as pc

        longest = pc.max(pc.binary_length(pc.utf8_trim_whitespace(self.cells))).as_py()
        if longest > self.longest_id:
            raise _UnreadableError("an id that is too long")
        return self.cells

    def times(self) -> np.ndarray:
        """Return times, float64 [E]; of dates the seconds since 1970."""
        if self.has_dates:
            return seconds_of_dates(self.cells.to_pylist())
        found = self.floats(np.float64)
        if np.abs(found).max() >= FIRST_DOUBTFUL and (whole := self._integers()) is not None:
            notice_merged_integers(whole, stacklevel=4)
        return found

    def floats(self, dtype: type) -> np.ndarray:
        """Return finite numbers as ``dtype`` [E], each the nearest to what is written."""
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = pc.ascii_trim_whitespace(self.cells).cast(pa.float64()).to_numpy()
        with np.errstate(over="ignore"):
            values: np.ndarray = numbers.astype(dtype)
        if not np.isfinite(values).all():
            raise _UnreadableError("NaN or infinity")
        return values

    def labels(self) -> np.ndarray:
        """Return labels, float64 [E]."""
        return self.floats(np.float64)

    def texts(self) -> np.ndarray:
        """Return texts without surrounding blanks, str objects [E]."""
        return np.array([text.strip() for text in self.cells.to_pylist()], dtype=object)

    def _integers(self) -> np.ndarray | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            return pc.ascii_trim_whitespace(self.cells).cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            return None


def _cells(rows: Rows, positions: list[int]) -> Iterator[list[pa.StringArray]]:
    """Yield the cells of some columns, some rows at a time.

    Raises:
        ValueError: A row has another number of columns, or a quote is unusual.
        DataError: A quote is never closed.
    """
    last = rows.width - 1
    taken = sorted({*positions, last})
    tail = ""
    for cells in _spaced_cells(rows, taken) if rows.has_blanks_before_quotes else _arrow_cells(rows, taken):
        yield [cells[taken.index(position)] for position in positions]
        tail = cells[-1][-1].as_py()
    if "\n" in tail or "\r" in tail:  # a quote that is never closed in the last column swallows the rows that follow
        for _ in iterate(rows.path, rows.delimiter, rows.skipped):
            pass


def _arrow_cells(rows: Rows, positions: list[int]) -> Iterator[list[pa.StringArray]]:
    import pyarrow as pa
    from pyarrow import csv as arrow

    names = [str(position) for position in range(rows.width)]
    blanks = rows.delimiter is None
    wanted = [names[position] for position in positions]
    with open_lines(rows.path, blank_comments=blanks, one_blank=blanks) as lines:
        batches = arrow.open_csv(
            lines,
            arrow.ReadOptions(block_size=_BYTES_AT_ONCE, column_names=names, skip_rows=rows.skipped),
            arrow.ParseOptions(
                delimiter=rows.delimiter or " ",
                quote_char=False if blanks else '"',
                newlines_in_values=not blanks,
                invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
            ),
            arrow.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()), include_columns=wanted, check_utf8=False
            ),
        )
        for batch in batches:
            if len(batch):
                yield batch.columns


def _spaced_cells(rows: Rows, positions: list[int]) -> Iterator[list[pa.StringArray]]:
    """Yield cells of a file with blanks before quotes, which Arrow takes for letters: several times slower."""
    import pyarrow as pa

    with open_text(rows.path) as text:
        for _ in range(rows.skipped):
            text.readline()
        try:
            reader = csv.reader(text, delimiter=rows.delimiter or ",", skipinitialspace=True)
            while piece := list(islice(reader, _ROWS_AT_ONCE)):
                kept = [row for row in piece if len(row) > 1 or (row and row[0].strip())]
                if any(len(row) != rows.width for row in kept):
                    raise _UnreadableError("a row of another number of columns")
                if kept:
                    yield [pa.array([row[position] for row in kept], pa.string()) for position in positions]
        except csv.Error as error:
            raise _UnreadableError(str(error)) from None
