"""Find the row that made a read fail: slow, row by row, for the message only."""

from __future__ import annotations

import math
import re

import numpy as np

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.readers.dates import is_date
from lightning_tgnn.data.readers.rows import Rows, iterate, to_number
from lightning_tgnn.data.readers.table import Table
from lightning_tgnn.data.streams.node_ids import first_too_long

NO_LABEL = "write -1 where an event has none"
_WHOLE = re.compile(r"-?\d+(\.0)?")
_CURES = {
    "time": "write times as numbers or all as dates such as 2024-02-29T12:30:00, and drop or repair rows without one",
    "label": f"encode classes as integers, and {NO_LABEL}",
    "edge feature": "drop or repair that row, or leave the column out of edge_features; words go into categories",
}


def find_culprit(table: Table, *, widths_only: bool = False) -> DataError | None:
    """Return the refusal of the first row that is bad, or only too short or too long; None without."""
    rows = table.rows
    for line, fields in iterate(rows.path, rows.delimiter, rows.skipped):
        where = f"{rows.path}, line {line}"
        message = _wrong_width(where, fields, rows)
        if not message and not widths_only:
            message = _wrong_field(where, fields, table)
        if message:
            return DataError(message)
    return None


def check_text_ids(table: Table, ids: np.ndarray) -> None:
    """Refuse string ids that stand for no node, or for another than they seem to.

    Raises:
        DataError: An id is empty, too long or of several lines, or all are integers of which some are written as
            ``3.0``.
    """
    spans_lines = (np.char.find(ids, "\n") >= 0).any() or (np.char.find(ids, "\r") >= 0).any()
    is_doubtful = spans_lines or (ids == "").any() or first_too_long(ids, table.longest_id) is not None
    if is_doubtful and (culprit := find_culprit(table)):
        raise culprit
    # Left alone, 3 and 3.0 would be two nodes; a column with gaps that went through floats comes out so.
    if all(_WHOLE.fullmatch(text) for text in ids) and any(text.endswith(".0") for text in ids):
        rows, roles = table.rows, table.roles
        for line, fields in iterate(rows.path, rows.delimiter, rows.skipped):
            for role, text in (("src", fields[roles.src].strip()), ("dst", fields[roles.dst].strip())):
                if text.endswith(".0"):
                    cure = f"write {text[:-2]}; in pandas, astype('Int64') before to_csv"
                    raise DataError(f"{rows.path}, line {line}: {role}", "an integer or a name", text, cure)


def _wrong_width(where: str, fields: list[str], rows: Rows) -> str:
    if len(fields) == rows.width:
        return ""
    if any("\n" in field for field in fields):
        return refusal(where, f"a row of {rows.width} columns", "a quote that spans lines", "close the quote")
    others = f"line {rows.first_line} and the others have" if not rows.names else "the rows before have"
    cure = f"repair that row: {others} {rows.width}"
    return refusal(where, f"a row of {rows.width} columns", f"{len(fields)} column(s)", cure)


def _wrong_field(where: str, fields: list[str], table: Table) -> str:
    rows, roles = table.rows, table.roles
    for role, position in (("src", roles.src), ("dst", roles.dst)):
        if not fields[position].strip():
            argument = f"{where}: {role} (column {rows.name(position)})"
            return refusal(argument, "a node id", fields[position], "drop or repair rows without one")
        if wrong := _wrong_text(fields[position].strip(), table.longest_id):
            requirement, received, cure = wrong
            return refusal(f"{where}: {role} (column {rows.name(position)})", requirement, received, cure)
    for role, position in roles.numbers():
        if role == "time" and table.has_dates:
            if not is_date(fields[position]):
                argument, requirement = f"{where}: time (column {rows.name(position)})", "a date, as in the first row"
                return refusal(argument, requirement, fields[position], _CURES["time"])
            continue
        number = to_number(fields[position])
        limit = float(np.finfo(np.float32 if role == "edge feature" else np.float64).max)
        if number is None or not abs(number) <= limit:
            argument = f"{where}: {role} (column {rows.name(position)})"
            is_too_large = number is not None and math.isfinite(number)
            requirement = f"at most {limit:.4g} in size" if is_too_large else "a finite number"
            return refusal(argument, requirement, fields[position], _CURES[role])
    return ""


def _wrong_text(text: str, longest: int) -> tuple[str, str, str] | None:
    """Return what is required of an id, received and to be done where a quote or its length shows that it is none."""
    if "\n" in text or "\r" in text:
        return "a node id of one line", f"{text[:40]}...", "close the quote that opens there"
    if first_too_long([text], longest) is not None:
        received = f"{len(text.encode()):,} bytes: {text[:40]}..."
        cure = "shorten it, for all ids are stored as wide as the longest, or raise longest_id"
        return f"a node id of at most {longest:,} bytes", received, cure
    return None
