"""Read a file of events into an event store."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_bool, check_choice, check_path
from lightning_tgnn.data.readers.benchmark_folders import (
    is_dyglib_folder,
    is_tgb_seq_folder,
    read_dyglib,
    read_tgb_seq,
)
from lightning_tgnn.data.readers.csv_columns import (
    check_columns,
    csv_table,
    is_jodie,
    jodie_table,
    refuse_names_as_ids,
    roles_of,
    uses_names,
)
from lightning_tgnn.data.readers.frame import is_parquet, parquet_table
from lightning_tgnn.data.readers.parse import TextTable
from lightning_tgnn.data.readers.rows import Rows, find_delimiter, find_rows, is_time, split
from lightning_tgnn.data.readers.table import Roles, Table
from lightning_tgnn.data.readers.text_file import Head, check_regular, read_head
from lightning_tgnn.data.readers.tgl import is_tgl_folder, read_tgl
from lightning_tgnn.data.streams.event_store import EventStore, is_event_store
from lightning_tgnn.data.streams.node_ids import LONGEST_ID, check_longest_id

FORMATS = ("auto", "snap", "jodie", "csv")
"""Names that `read_events` takes as its ``format``."""


def read_events(
    path: str | Path,
    *,
    format: str = "auto",
    columns: Mapping[str, Any] | None = None,
    bipartite: bool | None = None,
    longest_id: int = LONGEST_ID,
) -> EventStore:
    """Read the events of a text or Parquet file, of a folder of TGL, DyGLib or TGB-Seq, or open an `EventStore`.

    Nodes are numbered in ascending order of their ids (integers by value, strings by code point), whatever the order of
    the rows; ``node_ids`` of the store leads back. Ids are integers if all of them are written as such; otherwise,
    as with 007 or integers beyond 64 bits, all are strings as written, without surrounding blanks.

    Times are numbers, or dates of ISO 8601 such as 2024-02-29 and 2024-02-29T12:30:00.5+02:00 if the first one is; of
    dates the seconds since 1970 are taken (UTC where they name no zone). Columns that nothing reads are named in a
    warning.

    Args:
        path: The file. Its format, and whether it is gzipped, are recognised by content, not by name. Nodes of a TGL
            folder keep their numbers; nodes of DyGLib and TGB-Seq, which count from 1, get these less 1. For the
            columns of a Parquet file see `frame_table`.
        format: ``"snap"``: ``src dst time`` between blanks or tabs, further columns are edge features, lines that
            start with ``#`` or ``%`` are comments. ``"jodie"``: a header, then user, item, time, label and features
            between commas. ``"csv"``: columns between commas, semicolons or tabs, with a header or, given positions,
            without. ``"auto"``: one of these.
        columns: For ``"csv"`` the name or the position (from 0) of the columns ``src``, ``dst``, ``time`` and
            optionally ``label``, a list of them, or ``"rest"`` for all others that start with a number, as
            ``edge_features``, and a list of columns of words as ``categories``, of which each of up to 100 values
            becomes an edge feature of 0 and 1; for ``"snap"`` the positions. None goes by the usual names of a header.
        bipartite: Number sources and destinations apart, sources first, so that user 3 and item 3 are two nodes;
            None does so for ``"jodie"`` only, and for Parquet with JODIE's names.
        longest_id: Bytes of UTF-8 that an id may have, because all ids are stored as wide as the longest.

    Raises:
        InvalidArgumentError: ``format`` is unknown, ``longest_id`` is no positive integer, or ``columns`` is no mapping
            of roles to columns.
        DataError: The file is missing, damaged, empty or no text, or a row of it must not be trained on.
    """
    path = check_path("path", path)
    columns = check_arguments(format, columns, bipartite, longest_id)
    if is_event_store(path):
        given = {"format": None if format == "auto" else format, "columns": columns, "bipartite": bipartite}
        unread = ", ".join(name for name, value in given.items() if value is not None)
        if unread:  # as in the recipe of the file that the store was made from
            warnings.warn(f"{path}: a store says itself what it holds; nothing reads {unread}", stacklevel=2)
        return EventStore.open(path)
    if is_tgl_folder(path):
        check_unread(f"the TGL folder {path}", format=format, columns=columns, bipartite=bipartite)
        return read_tgl(path)
    for is_folder, read in ((is_dyglib_folder, read_dyglib), (is_tgb_seq_folder, read_tgb_seq)):
        if is_folder(path):
            check_unread(f"the folder {path}", format=format, columns=columns, bipartite=bipartite)
            return read(path)
    return open_table(path, format=format, columns=columns, bipartite=bipartite, longest_id=longest_id).store()


def check_unread(
    source: str, *, format: str = "auto", columns: Mapping[str, Any] | None = None, bipartite: bool | None = None
) -> None:
    """Refuse options that a source does not heed.

    Raises:
        InvalidArgumentError: An option has another value than its default.
    """
    for name, value, unset in (("format", format, "auto"), ("columns", columns, None), ("bipartite", bipartite, None)):
        if value != unset:
            raise InvalidArgumentError(name, f"left out for {source}", value, "it says itself what it holds")


def open_table(
    path: Path, *, format: str, columns: Mapping[str, Any] | None, bipartite: bool | None, longest_id: int
) -> Table:
    """Return the table in a text or Parquet file; arguments are as in `read_events`.

    Raises:
        DataError: The file is missing, damaged, empty or no text, or its columns cannot be found.
    """
    check_regular(path)
    if format == "auto" and is_parquet(path):
        return parquet_table(path, columns=columns, bipartite=bipartite, longest_id=longest_id)
    head = read_head(path)
    found = _find_format(head, columns) if format == "auto" else format
    table = _find_table(head, found, columns)
    if format == "auto" and found == "snap" and columns is None and table.rows.width > 3:
        received = f"nothing for {table.rows.width} columns: {' '.join(table.rows.first)[:80]}"
        cure = "say which is the time: columns={'src': 0, 'dst': 1, 'time': 2, 'edge_features': [3]}, or format='snap'"
        raise DataError(f"columns of {path}", "given for more than src, dst and time", received, cure)
    return replace(table, bipartite=table.bipartite if bipartite is None else bipartite, longest_id=longest_id)


def check_arguments(
    format: str, columns: Mapping[str, Any] | None, bipartite: bool | None, longest_id: int = LONGEST_ID
) -> dict[str, Any] | None:
    """Check the form of what `read_events` takes, before any file is opened; return ``columns`` as plain values.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    check_choice("format", format, FORMATS)
    check_longest_id(longest_id)
    check_bool("bipartite", bipartite, usual=None)
    if columns is None:
        return None
    columns = check_columns(columns)
    if format == "jodie" or (format == "snap" and uses_names(columns)):
        requirement = "left out for format='jodie'" if format == "jodie" else "positions for format='snap'"
        raise InvalidArgumentError("columns", requirement, columns, "choose format='csv' for names")
    return columns


def _find_format(head: Head, columns: Mapping[str, Any] | None) -> str:
    delimiter = find_delimiter(head.text)
    if delimiter in (",", ";"):
        return "jodie" if columns is None and is_jodie(head) else "csv"
    if columns is not None and uses_names(columns):
        return "csv"
    fields = split(head.text, None)
    time = 2 if columns is None else columns["time"]
    starts_with_event = time < len(fields) and is_time(fields[time])
    return "snap" if delimiter is None or starts_with_event else "csv"


def _find_table(head: Head, format: str, columns: Mapping[str, Any] | None) -> TextTable:
    if format == "jodie":
        return jodie_table(head)
    return snap_table(head, columns) if format == "snap" else csv_table(head, columns)


# KONECT's files look the same and begin so, but their third column is a weight.
_KONECT = re.compile(r"%\s*(sym|asym|bip)\b")


def snap_table(head: Head, columns: Mapping[str, Any] | None) -> TextTable:
    """Return the table of a file in SNAP's form.

    Args:
        head: Its first row.
        columns: Roles to positions; None for source, destination, time and features in this order.

    Raises:
        DataError: The first row has too few columns or no time, or the file is KONECT's and ``columns`` is None.
    """
    rows = find_rows(head, None, has_header=False)
    if columns is None:
        _refuse_konect(head)
        _refuse_no_time(rows)
        roles = Roles(src=0, dst=1, time=2, edge_features=tuple(range(3, rows.width)))
    else:
        roles = roles_of(columns, rows)
    refuse_names_as_ids(rows, roles)
    return TextTable(rows, roles)


def _refuse_konect(head: Head) -> None:
    konect = _KONECT.match(head.comment)
    if konect:
        apart = ", bipartite=True" if konect[1] == "bip" else ""
        cure = f"give columns={{'src': 0, 'dst': 1, 'edge_features': [2], 'time': 3}}{apart}"
        received = f"KONECT's src dst weight time (it begins {head.comment!r})"
        raise DataError(str(head.path), "src dst time", received, cure)


def _refuse_no_time(rows: Rows) -> None:
    where = f"{rows.path}, line {rows.first_line}"
    if rows.width < 3:
        cure = "give the events their times; a graph without times is not a stream"
        raise DataError(where, "src dst time", f"{rows.width} column(s): {' '.join(rows.first)[:80]}", cure)
    if not is_time(rows.first[2]):
        cure = "start a heading with #, or give format='csv' and columns"
        raise DataError(f"{where}: time (column 2, counted from 0)", "a number or a date", rows.first[2], cure)
