"""The rows of a text file: where they begin, how their fields are cut, and one by one."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from lightning_tgnn.checks import DataError
from lightning_tgnn.data.readers.dates import is_date
from lightning_tgnn.data.readers.text_file import Head, open_text, whole_lines

_END = "."
_BLANKS_BEFORE_QUOTE = re.compile(rb'(?:\A|[,;\t\r\n]) +"')


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
        has_blanks_before_quotes: Whether a field may begin with blanks before a quote.
    """

    path: Path
    delimiter: str | None
    skipped: int
    names: tuple[str, ...]
    first_line: int
    first: tuple[str, ...]
    has_blanks_before_quotes: bool = False

    @property
    def width(self) -> int:
        """Columns of every row."""
        return len(self.first)

    def name(self, position: int) -> str:
        """Return how to call a column in a message."""
        return repr(self.names[position]) if position < len(self.names) else f"{position}, counted from 0"


def find_rows(head: Head, delimiter: str | None, *, has_header: bool) -> Rows:
    """Return the rows below ``head``, which is the header or the first row itself.

    Raises:
        DataError: The file has no row.
    """
    skipped = head.number if has_header else head.number - 1
    names = tuple(name.strip() for name in _header(head, delimiter)) if has_header else ()
    first_line, first = next(iterate(head.path, delimiter, skipped), (0, []))
    if not first:
        raise DataError(str(head.path), "a file with a row per event", "a header only", "check how it was written")
    spaced = delimiter is not None and any(
        b' "' in block and _BLANKS_BEFORE_QUOTE.search(block) is not None for block in whole_lines(head.path)
    )
    return Rows(head.path, delimiter, skipped, names, first_line, tuple(first), spaced)


def _header(head: Head, delimiter: str | None) -> list[str]:
    if delimiter is not None and '"' in head.text and _is_open(head.text, delimiter):
        cure = "close the quotes that open there"
        raise DataError(f"{head.path}, line {head.number}", "a whole header", head.text[:80], cure)
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
        raise DataError(where, "a header or an event", received, cure) from None


def iterate(path: Path, delimiter: str | None, skipped: int) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of every row, one by one: slow, for messages and first rows."""
    with open_text(path, blank_comments=delimiter is None) as lines:
        for _ in range(skipped):
            lines.readline()
        if delimiter is None:
            yield from ((n, split(line, None)) for n, line in enumerate(lines, skipped + 1) if line.strip())
            return
        # One row more: a quote that is never closed swallows it.
        reader = csv.reader(chain(lines, ["\n", _END]), delimiter=delimiter, skipinitialspace=True)
        begin, held = skipped + 1, (0, [""])
        try:
            for fields in reader:
                if held[0]:
                    yield held
                held = (begin if len(fields) > 1 or (fields and fields[0].strip()) else 0, fields)
                begin = skipped + reader.line_num + 1
            begin, reason = held[0], "" if held[1] == [_END] else "a quote that is never closed"
        except csv.Error as error:
            if held[0]:
                yield held
            reason = str(error)
        if reason:
            raise DataError(f"{path}, line {begin}", "a row", reason, "close the quotes that open there")


def split(line: str, delimiter: str | None) -> list[str]:
    """Return the fields of one line.

    Raises:
        csv.Error: One is too long.
    """
    if delimiter is None:
        return re.split(r"[ \t]+", line.strip(" \t\r\n"))
    return next(csv.reader(io.StringIO(line), delimiter=delimiter, skipinitialspace=True), [])


def find_delimiter(line: str) -> str | None:
    r"""Return the delimiter out of ``, ; \t`` that makes the most fields, or None where none of them occurs."""
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
    """Whether a quote in ``line`` continues in the next one."""
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
