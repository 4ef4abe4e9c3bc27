"""What a text file of events says, read in the slowest and plainest way."""

import csv
import datetime
import gzip
import io
import re
from itertools import pairwise

import numpy as np

_AS_WRITTEN = re.compile(r"-?(0|[1-9][0-9]*)")  # not 007, nor +7
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[T ](\d{1,2}(?::\d{1,2}(?::\d{1,2}(?:\.\d+)?)?)?|\d{4}(?:\d\d(?:\.\d+)?)?))? ?(Z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_INTEGERS = ((-(2**63), 2**63), (0, 2**64))
_BLANKS = " \t\r\n\x0b\x0c"


class NotRightError(Exception):
    """The file says nothing that may be accepted."""


def text_of(data):
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    assert b"\0" not in data
    return data.decode("utf-8").removeprefix("\ufeff")


def rows_between_blanks(text):
    """SNAP: rows of fields; lines that are blank or comments go."""
    lines = [line.strip(" \t") for line in re.split(r"\r\n|\n|\r", text)]
    return [re.split(r"[ \t]+", line) for line in lines if line and line[0] not in "#%"]


def rows_between(text, delimiters=",;\t"):
    """CSV: the header, then rows; comments and blank lines may come before the header only."""
    parts = re.split(r"(\r\n|\n|\r)", text)  # lines and their ends in turns
    lines = parts[::2]
    head = next(number for number, line in enumerate(lines) if line.strip() and line.strip()[0] not in "#%")
    first = lines[head]
    widths = {mark: len(_csv_rows(first, mark)[0]) for mark in delimiters}
    delimiter = max(delimiters, key=lambda mark: widths[mark])
    rows = _csv_rows("".join(parts[2 * head :]), delimiter)
    return [row for row in rows if len(row) > 1 or (row and row[0].strip())]


def _csv_rows(text, delimiter):
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True))


def check_events(store, rows, roles, *, apart, warned):
    """Assert that a store has the events of rows of text.

    Args:
        store: What the reader returned.
        rows: Fields of each row.
        roles: Positions of ``src``, ``dst``, ``time``, maybe ``label``, and a list ``edge_features``.
        apart: Whether sources and destinations are numbered apart.
        warned: Warnings that came.
    """
    assert len({len(row) for row in rows}) == 1, "rows of several lengths"
    times = [moment(row[roles["time"]]) for row in rows]
    assert len({is_date(row[roles["time"]]) for row in rows}) == 1, "numbers and dates"
    sorting = [message for message in warned if message.startswith("events were not sorted")]
    assert bool(sorting) == any(late < early for early, late in pairwise(times)), "the notice of sorting"
    unread = len(rows[0]) > len({roles[role] for role in ("src", "dst", "time", "label") if role in roles}) + len(
        roles["edge_features"]
    )
    assert any("nothing reads the column(s)" in message for message in warned) == unread, "the notice of columns"
    order = sorted(range(len(rows)), key=times.__getitem__)
    assert len(store) == len(rows)
    np.testing.assert_allclose(store.time.numpy(), [times[place] for place in order], rtol=1e-15, atol=0)
    for role, column in (("src", store.src), ("dst", store.dst)):
        _check_ids(store.node_ids[column.numpy()], [rows[place][roles[role]] for place in order])
    cells = [row[roles[role]] for row in rows for role in ("src", "dst")]
    assert not any(mark in cell.strip() for cell in cells for mark in "\r\n"), "an id of several lines"
    assert store.node_ids.dtype.kind in "iu" or max(len(cell.strip().encode()) for cell in cells) <= 4096, "a long id"
    whole = all(_AS_WRITTEN.fullmatch(cell.strip(_BLANKS)) for cell in cells)
    fits = whole and (
        all(-(2**63) <= int(cell) < 2**63 for cell in cells) or all(0 <= int(cell) < 2**64 for cell in cells)
    )
    assert (store.node_ids.dtype.kind in "iu") == fits, "integers are integers, and nothing else is"
    _check_numbering(store, apart)
    if roles.get("label") is None:
        assert store.labels is None
    else:
        labels = [rows[place][roles["label"]] for place in order]
        kept = store.labels.tolist()
        assert [
            exact(cell) if isinstance(label, int) else number(cell) for cell, label in zip(labels, kept, strict=True)
        ] == kept
    if roles["edge_features"]:
        expected = [[number(rows[place][position]) for position in roles["edge_features"]] for place in order]
        np.testing.assert_array_max_ulp(
            store.edge_features.numpy(), np.array(expected, np.float64).astype(np.float32), 1
        )
    else:
        assert store.edge_features is None


def _check_ids(found, cells):
    if found.dtype.kind in "iu":
        assert found.tolist() == [int(cell) for cell in cells]
    else:
        assert found.tolist() == [cell.strip() for cell in cells]


def _check_numbering(store, apart):
    ids, first = store.node_ids.tolist(), int(store.dst.min()) if apart else 0
    parts = [ids[:first], ids[first:]] if apart else [ids]
    assert all(part == sorted(set(part)) for part in parts), "numbered by their ids, each once"
    assert not apart or int(store.src.max()) < first
    assert len(ids) == store.num_nodes == len(np.unique(np.concatenate([store.src, store.dst])))


def number(cell):
    assert _NUMBER.fullmatch(cell.strip(_BLANKS)), f"no number: {cell!r}"
    value = float(cell)
    assert np.isfinite(value)
    return value


def is_date(cell):
    return _DATE.fullmatch(cell.strip(_BLANKS)) is not None


def moment(cell):
    """Return a time: a number, or the seconds since 1970 of a date, UTC where it names no zone."""
    if not is_date(cell):
        return number(cell)
    date, clock, offset = _DATE.fullmatch(cell.strip(_BLANKS)).groups()
    parts = r"[0-9.]+" if ":" in (clock or "") else r"[0-9]{1,2}(?:\.[0-9]+)?"
    hours, minutes, seconds = (re.findall(parts, clock or "") + ["0"] * 3)[:3]
    since = (datetime.date.fromisoformat(date) - datetime.date(1970, 1, 1)).days * 86400
    assert int(hours) < 24
    assert int(minutes) < 60
    assert float(seconds) < 60
    ahead = 0
    if offset not in (None, "Z"):
        digits = offset[1:].replace(":", "").ljust(4, "0")
        assert int(digits[2:]) < 60
        ahead = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1 if offset[0] == "-" else 1)
    return since + int(hours) * 3600 + int(minutes) * 60 - ahead + float(seconds[:12])


def exact(cell):
    """Return a whole number of any length as it is written."""
    return int(cell) if _INTEGER.fullmatch(cell.strip(_BLANKS)) else number(cell)
