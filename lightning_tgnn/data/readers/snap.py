"""SNAP's form: ``src dst time`` between blanks, further columns are edge features, ``#`` and ``%`` start comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.readers.csv_columns import refuse_names_as_ids, roles_of
from lightning_tgnn.data.readers.table import Roles, Rows, Table, find_rows, is_time
from lightning_tgnn.data.readers.text_file import Head

# KONECT's files look the same and begin so, but their third column is a weight.
_KONECT = re.compile(r"%\s*(sym|asym|bip)\b")


def snap_table(head: Head, columns: Mapping[str, Any] | None) -> Table:
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
    return Table(rows, roles)


def _refuse_konect(head: Head) -> None:
    konect = _KONECT.match(head.comment)
    if konect:
        apart = ", bipartite=True" if konect[1] == "bip" else ""
        cure = f"give columns={{'src': 0, 'dst': 1, 'edge_features': [2], 'time': 3}}{apart}"
        received = f"KONECT's src dst weight time (it begins {head.comment!r})"
        raise DataError(refusal(str(head.path), "src dst time", received, cure))


def _refuse_no_time(rows: Rows) -> None:
    where = f"{rows.path}, line {rows.first_line}"
    if rows.width < 3:
        cure = "give the events their times; a graph without times is not a stream"
        raise DataError(refusal(where, "src dst time", f"{rows.width} column(s): {' '.join(rows.first)[:80]}", cure))
    if not is_time(rows.first[2]):
        cure = "start a heading with #, or give format='csv' and columns"
        raise DataError(refusal(f"{where}: time (column 2, counted from 0)", "a number or a date", rows.first[2], cure))
