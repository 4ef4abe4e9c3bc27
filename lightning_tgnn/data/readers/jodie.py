"""JODIE's form: user, item, time, label and features, users and items numbered apart."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.readers.parse import TextTable
from lightning_tgnn.data.readers.rows import begins_as_value, fields_of, find_delimiter, find_rows
from lightning_tgnn.data.readers.table import Roles
from lightning_tgnn.data.readers.text_file import Head

_NAMES = ["user_id", "item_id", "timestamp", "state_label"]
_MANY = "comma_separated_list_of_features"


def is_jodie(head: Head) -> bool:
    """Whether ``head`` is JODIE's header."""
    return has_jodie_names(head.text.split(","))


def has_jodie_names(names: Sequence[str]) -> bool:
    """Whether columns begin with JODIE's four."""
    return [name.strip().lower() for name in names[:4]] == _NAMES


def jodie_roles(names: Sequence[str], width: int, where: str) -> Roles:
    """Return the roles of ``width`` columns in JODIE's order.

    Raises:
        DataError: Another column has one of JODIE's four names: as a feature it would tell what is predicted.
    """
    again = [name for name in names[4:] if name.strip().lower() in _NAMES]
    if again:
        cure = "leave out the column that is there twice"
        raise DataError(refusal(where, f"a header with {', '.join(_NAMES)} once each", f"{again} twice", cure))
    return Roles(src=0, dst=1, time=2, label=3, edge_features=tuple(range(4, width)))


def jodie_table(head: Head) -> TextTable:
    """Return the table of a file in JODIE's form, whose header may name fewer columns than the rows have.

    Raises:
        DataError: The file has no header, or the rows are shorter than the header.
    """
    delimiter = find_delimiter(head.text) or ","
    if any(begins_as_value(field) for field in fields_of(head, delimiter)[: len(_NAMES)]):
        cure = f"put the line {','.join(_NAMES)},{_MANY} on top"
        raise DataError(refusal(f"{head.path}, line {head.number}", "JODIE's header", head.text[:80], cure))
    rows = find_rows(head, delimiter, has_header=True)
    named = [name for name in rows.names if name.lower() != _MANY]
    least = max(len(named), len(_NAMES))
    if rows.width < least:
        where = f"{rows.path}, line {rows.first_line}"
        cure = f"each needs {', '.join(_NAMES)} and the features of the header"
        raise DataError(refusal(where, f"a row of at least {least} columns", f"{rows.width} columns", cure))
    return TextTable(rows, jodie_roles(rows.names, rows.width, str(rows.path)), bipartite=True)
