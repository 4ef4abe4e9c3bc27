"""Where the rows of a file begin and what their columns mean."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.readers.dates import is_date
from lightning_tgnn.data.readers.text_file import Head, open_text
from lightning_tgnn.data.streams.node_ids import LONGEST_ID
from lightning_tgnn.data.streams.origin import Origin, kinds_by_name, refuse_unsure

MOST_LEVELS = 100
"""Values that a column of categories may have."""


@dataclass(frozen=True)
class Roles:
    """Positions of the columns that are read, from 0."""

    src: int
    dst: int
    time: int
    label: int | None = None
    edge_features: tuple[int, ...] = ()
    categories: tuple[int, ...] = ()

    def numbers(self) -> list[tuple[str, int]]:
        """Return role and position of every column that holds numbers."""
        label = [] if self.label is None else [("label", self.label)]
        return [("time", self.time), *label, *(("edge feature", position) for position in self.edge_features)]

    def positions(self) -> set[int]:
        """Return the positions of all columns that are read."""
        return {self.src, self.dst, *self.categories, *(position for _, position in self.numbers())}


@dataclass(frozen=True)
class Rows:
    """The rows of a file.

    Attributes:
        path: The file.
        delimiter: One character, or None for any run of blanks and tabs; only then are comments allowed among the rows.
        skipped: Lines before the first row.
        names: The header, empty without.
        first_line: Number of the line of the first row, from 1.
        first: Fields of the first row.
    """

    path: Path
    delimiter: str | None
    skipped: int
    names: tuple[str, ...]
    first_line: int
    first: tuple[str, ...]

    @property
    def width(self) -> int:
        """Columns of every row."""
        return len(self.first)

    def name(self, position: int) -> str:
        """Return how to call a column in a message."""
        return repr(self.names[position]) if position < len(self.names) else f"{position}, counted from 0"


@dataclass(frozen=True)
class Table:
    """The rows of a file and what they mean.

    Attributes:
        rows: Where they are.
        roles: Of their columns.
        bipartite: Whether sources and destinations are numbered apart; None asks the names of their columns.
        longest_id: Bytes of UTF-8 that an id may have.
        levels: The values of each column of categories, in order; each is a column of edge features.
    """

    rows: Rows
    roles: Roles
    bipartite: bool | None = None
    longest_id: int = LONGEST_ID
    levels: tuple[tuple[str, ...], ...] = ()

    @property
    def apart(self) -> bool | None:
        """Whether sources and destinations are numbered apart; None where neither the user nor their names say so."""
        if self.bipartite is not None:
            return self.bipartite
        return kinds_by_name(*self.column_names[:2])

    @property
    def column_names(self) -> tuple[str, str, str]:
        """The names of the columns of sources, destinations and times; empty texts without a header."""
        src, dst, time = (self._name(position) for position in (self.roles.src, self.roles.dst, self.roles.time))
        return src, dst, time

    def _name(self, position: int) -> str:
        return self.rows.names[position] if position < len(self.rows.names) else ""

    def decided(self, shared: Callable[[], object]) -> bool:
        """Return whether sources and destinations are numbered apart.

        Args:
            shared: Returns an id that both columns have; None where there is none, so that it makes no difference.

        Raises:
            DataError: The kinds of nodes are unknown where they make a difference.
        """
        if self.apart is not None:
            return self.apart
        found = shared()
        if found is not None:
            raise refuse_unsure(self.rows.path, *self.column_names[:2], found)
        return False

    def origin(self, *, apart: bool, text_ids: bool, dates: bool | None = None) -> Origin:
        """Return what was assumed of the table."""
        dates = self.has_dates if dates is None else dates
        features, label = len(self.roles.edge_features) + sum(map(len, self.levels)), self.roles.label is not None
        return Origin(self.column_names, apart, dates, text_ids, features, label)

    @property
    def has_dates(self) -> bool:
        """Whether times are dates; otherwise they are numbers. The first row tells."""
        return is_date(self.rows.first[self.roles.time])

    @property
    def feature_names(self) -> list[str] | None:
        """What the header calls the edge features; None where it has no name for each that tells them apart."""
        if len(self.rows.names) != self.rows.width:
            return None
        names = [self.rows.names[position] for position in self.roles.edge_features]
        for position, levels in zip(self.roles.categories, self.levels, strict=True):
            names += [level_name(self.rows.names[position], level) for level in levels]
        return names if names and all(names) and len(set(names)) == len(names) else None

    def notice_unused(self) -> None:
        """Warn of columns that nothing reads."""
        unused = sorted(set(range(self.rows.width)) - self.roles.positions())
        if unused:
            names = ", ".join(self.rows.name(position) for position in unused)
            cure = "to use one, name it in columns, as label, or among edge_features or categories"
            warnings.warn(f"{self.rows.path}: nothing reads the column(s) {names}; {cure}", stacklevel=3)


def level_name(column: str, level: str) -> str:
    """Return the name of the edge feature that marks a value of a column of categories."""
    return f"{column}={level}"


def check_levels(name: str, found: Collection[str]) -> tuple[str, ...]:
    """Return the values of a column of categories in order, if they are few enough for a column each.

    Raises:
        DataError: There are too many of them.
    """
    if len(found) > MOST_LEVELS:
        some = ", ".join(sorted(found)[:3])
        cure = "join rare ones, or give numbers as edge_features"
        received = f"{len(found):,}, such as {some}"
        raise DataError(refusal(f"values of the categories {name}", f"at most {MOST_LEVELS}", received, cure))
    return tuple(sorted(found))


def find_rows(head: Head, delimiter: str | None, *, has_header: bool) -> Rows:
    """Return the rows below ``head``, which is the header or the first row itself.

    Raises:
        DataError: The file has no row.
    """
    skipped = head.number if has_header else head.number - 1
    names = tuple(name.strip() for name in _header(head, delimiter)) if has_header else ()
    first_line, first = next(iterate(head.path, delimiter, skipped), (0, []))
    if not first:
        cure = "check how it was written"
        raise DataError(refusal(str(head.path), "a file with a row per event", "a header only", cure))
    return Rows(head.path, delimiter, skipped, names, first_line, tuple(first))


def _header(head: Head, delimiter: str | None) -> list[str]:
    if delimiter is not None and '"' in head.text and _is_open(head.text, delimiter):
        cure = "close the quotes that open there"
        raise DataError(refusal(f"{head.path}, line {head.number}", "a whole header", head.text[:80], cure))
    return fields_of(head, delimiter)


def fields_of(head: Head, delimiter: str | None) -> list[str]:
    """Return the fields of the first line.

    Raises:
        DataError: A field is longer than any may be.
    """
    try:
        return split(head.text, delimiter)
    except csv.Error as error:
        where, received = f"{head.path}, line {head.number}", f"{head.text[:80]}... ({error})"
        cure = "check that it is a table, and close the quotes that open there"
        raise DataError(refusal(where, "a header or an event", received, cure)) from None


def iterate(path: Path, delimiter: str | None, skipped: int) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of every row, one by one: slow, for messages and first rows."""
    with open_text(path, blank_comments=delimiter is None) as lines:
        for _ in range(skipped):
            lines.readline()
        if delimiter is None:
            yield from ((n, split(line, None)) for n, line in enumerate(lines, skipped + 1) if line.strip())
            return
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        line = skipped + 1
        try:
            for fields in reader:
                if len(fields) > 1 or (fields and fields[0].strip()):
                    yield line, fields
                line = skipped + reader.line_num + 1
        except csv.Error as error:
            cure = "close the quotes that open there"
            raise DataError(refusal(f"{path}, line {line}", "a row", str(error), cure)) from None


def split(line: str, delimiter: str | None) -> list[str]:
    """Return the fields of one line.

    Raises:
        csv.Error: One is too long.
    """
    if delimiter is None:
        return re.split(r"[ \t]+", line.strip(" \t\r\n"))
    return next(csv.reader(io.StringIO(line), delimiter=delimiter, skipinitialspace=True), [])


def find_delimiter(line: str) -> str | None:
    r"""Return that of ``, ; \t`` which makes the most fields, or None where none of them occurs."""
    most = max(",;\t", key=lambda delimiter: _count_fields(line, delimiter))
    return most if most in line else None


def _count_fields(line: str, delimiter: str) -> int:
    if delimiter not in line or '"' not in line:
        return line.count(delimiter) + 1
    try:
        return len(split(line, delimiter))
    except csv.Error:  # a field that is too long for one
        return 1


def _is_open(line: str, delimiter: str) -> bool:
    """Whether a quote in ``line`` goes on in the next one."""
    try:
        return len(list(csv.reader([f"{line}\n", ""], delimiter=delimiter))) == 1
    except csv.Error:
        return True


def is_time(text: str) -> bool:
    """Whether ``text`` is a number or a date.

    >>> is_time("12.5"), is_time("2024-02-29"), is_time("time")
    (True, True, False)
    """
    return to_number(text) is not None or is_date(text)


def begins_as_value(text: str) -> bool:
    """Whether ``text`` is blank or begins as a number does, which the name of a column does not.

    >>> begins_as_value("1x"), begins_as_value("-.5"), begins_as_value(""), begins_as_value("x1")
    (True, True, True, False)
    """
    return not text.strip() or re.match(r"\s*[+-]?\.?[0-9]", text) is not None


def to_number(text: str) -> float | None:
    """Return the number that ``text`` is, NaN and infinity included, or None.

    >>> to_number(" 1e3 "), to_number("1_000"), to_number("")
    (1000.0, None, None)
    """
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None
