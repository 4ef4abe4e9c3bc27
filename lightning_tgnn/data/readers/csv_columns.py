"""Delimited files: the meaning of columns, by name, by position, by guess, or in the form of JODIE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_tgnn.checks import DataError, InvalidArgumentError, did_you_mean, plain
from lightning_tgnn.data.readers.parse import TextTable
from lightning_tgnn.data.readers.rows import (
    Rows,
    begins_as_value,
    fields_of,
    find_delimiter,
    find_rows,
    is_time,
    to_number,
)
from lightning_tgnn.data.readers.table import Roles
from lightning_tgnn.data.readers.text_file import Head

_REQUIRED = ("src", "dst", "time")
_ROLES = (*_REQUIRED, "label", "edge_features", "categories")
_LISTS = ("edge_features", "categories")
_USUAL_NAMES = {
    "src": ("src", "source", "from", "from_node", "u", "user", "user_id"),
    "dst": ("dst", "destination", "target", "to", "to_node", "v", "i", "item", "item_id"),
    "time": ("time", "timestamp", "ts", "t", "time_since_epoch", "unixtime"),
}
_EXAMPLE = "columns={'src': 0, 'dst': 1, 'time': 2}"


def check_columns(columns: object) -> dict[str, Any]:
    """Return ``columns`` as plain values if their form is right, before any file is opened.

    Raises:
        InvalidArgumentError: ``columns`` is no mapping of known roles to names or positions, or lacks a role.
    """
    cure = f"for example {_EXAMPLE}"
    if not isinstance(columns, Mapping):
        raise InvalidArgumentError("columns", "a mapping of roles to names or positions", columns, cure)
    columns = plain(dict(columns))
    unknown = [role for role in columns if role not in _ROLES]
    missing = [role for role in _REQUIRED if columns.get(role) is None]
    for role in unknown:
        if question := did_you_mean(role, _ROLES):
            raise InvalidArgumentError("columns", f"of the roles {', '.join(_ROLES)}", role, question)
    if unknown or missing:
        requirement = f"a mapping with src, dst, time and optionally {', '.join(_ROLES[3:-1])} and {_ROLES[-1]}"
        raise InvalidArgumentError("columns", requirement, sorted(map(str, columns)), cure)
    for role in _LISTS:
        listed = columns.get(role) or []
        is_rest = role == "edge_features" and listed == "rest"
        if not is_rest and not isinstance(listed, (list, tuple)):
            requirement = "a list, or 'rest'" if role == "edge_features" else "a list"
            raise InvalidArgumentError(f"columns[{role!r}]", requirement, listed, f"write [{listed!r}]")
    for role, keys in _keys_by_role(columns).items():
        for key in keys:
            if isinstance(key, bool) or not isinstance(key, (int, str)) or (isinstance(key, int) and key < 0):
                raise InvalidArgumentError(f"columns[{role!r}]", "a column name or a position from 0", key, cure)
    return columns


def uses_names(columns: Mapping[str, Any]) -> bool:
    """Whether a column is given by its name."""
    return any(isinstance(key, str) for keys in _keys_by_role(columns).values() for key in keys)


def csv_table(head: Head, columns: Mapping[str, Any] | None) -> TextTable:
    """Return the table of a delimited file.

    Args:
        head: Its header, or its first row.
        columns: Roles to names or positions; None to go by the usual names.

    Raises:
        DataError: The columns cannot be found, or the rows do not fit the header.
    """
    delimiter = find_delimiter(head.text)
    has_header = _has_header(head, fields_of(head, delimiter), columns)
    rows = find_rows(head, delimiter, has_header=has_header)
    if has_header and len(rows.names) != rows.width:
        where = f"{rows.path}, line {rows.first_line}"
        cure = "name every column in the header, and give every row all of them"
        raise DataError(where, f"a row of {len(rows.names)} columns, as the header has", f"{rows.width} columns", cure)
    roles = roles_of(usual_columns(rows) if columns is None else columns, rows)
    if not has_header:
        refuse_names_as_ids(rows, roles)
    return TextTable(rows, roles)


def roles_of(columns: Mapping[str, Any], rows: Rows) -> Roles:
    """Return the position of every role.

    Raises:
        DataError: A column is not there, is there twice, or has two roles.
    """
    keys = _keys_by_role(columns)
    named = {key.strip() for role_keys in keys.values() for key in role_keys if isinstance(key, str)}
    spare = [name for name in rows.names if name not in named]
    found = {role: [_position(role, key, rows, spare) for key in keys[role]] for role in keys}
    _refuse_shared(found, rows)
    used = {position for positions in found.values() for position in positions}
    features = found.get("edge_features", [])
    if columns.get("edge_features") == "rest":
        features = [p for p in range(rows.width) if p not in used and _starts_as_number(rows.first[p])]
    return Roles(
        src=found["src"][0],
        dst=found["dst"][0],
        time=found["time"][0],
        label=found["label"][0] if found.get("label") else None,
        edge_features=tuple(features),
        categories=tuple(found.get("categories", [])),
    )


def _keys_by_role(columns: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    features = columns.get("edge_features") or []
    single: dict[str, Sequence[Any]] = {role: [columns[role]] for role in _ROLES[:4] if columns.get(role) is not None}
    return {
        **single,
        "edge_features": [] if features == "rest" else features,
        "categories": columns.get("categories") or [],
    }


def _has_header(head: Head, fields: list[str], columns: Mapping[str, Any] | None) -> bool:
    """Tell a header from a first row: with positions, the time of a row is a number or a date, and a header has words.

    Raises:
        DataError: The line is neither a header nor an event, or the columns need a header that is missing.
    """
    if columns is not None and not uses_names(columns):
        time = columns["time"]
        if time >= len(fields):
            cure = f"{head.path}, line {head.number} has {fields}"
            raise DataError("columns['time']", f"a position below {len(fields)}", time, cure)
        if is_time(fields[time]):
            return False
        places = [columns[role] for role in _ROLES[:4] if columns.get(role) is not None]
        if any(begins_as_value(fields[place]) for place in places if place < len(fields)):
            raise neither(head, fields[time])
        return True
    is_named = columns is not None and columns["time"] in [field.strip() for field in fields]
    if not is_named and all(to_number(field) is not None for field in fields):
        cure = f"give the positions of the columns, for example {_EXAMPLE}, or add a header"
        raise DataError(f"{head.path}, line {head.number}", "a header", head.text[:80], cure)
    return True


def neither(head: Head, time: str) -> DataError:
    """Return the refusal of a first line that is no header and no event."""
    cure = f"repair its time, {time!r}, or give every column a name that does not begin with a digit"
    return DataError(f"{head.path}, line {head.number}", "a header or an event", head.text[:80], cure)


def refuse_names_as_ids(rows: Rows, roles: Roles) -> None:
    """Refuse a first event between ids that are names of columns: it is a header whose time is damaged.

    Raises:
        DataError: The first event is between ids that are usual names of columns.
    """
    ends = {role: rows.first[getattr(roles, role)].strip().lower() for role in ("src", "dst")}
    if all(len(name) > 1 and name in _USUAL_NAMES[role] for role, name in ends.items()):
        received = " ".join(rows.first)[:80]
        cure = "repair the name of its last column, or rename these two nodes"
        raise DataError(f"{rows.path}, line {rows.first_line}", "a header or an event", received, cure)


def usual_columns(rows: Rows) -> dict[str, int]:
    """Return the positions of the columns that have a usual name.

    Raises:
        DataError: No column, or several, have a usual name for a role.
    """
    lower = [name.lower() for name in rows.names]
    columns, usual_names = {}, _USUAL_NAMES.values()
    for role, usual in _USUAL_NAMES.items():
        candidates = [position for position, name in enumerate(lower) if name in usual]
        if len(candidates) != 1:
            found = "several" if candidates else "none"
            spare = [place for place, name in enumerate(lower) if not any(name in names for names in usual_names)]
            example = rows.names[[*candidates, *spare, 0][0]]
            cure = f"say which is which, for example columns={{'{role}': {example!r}, ...}}"
            requirement = f"a header with one usual name for {role} ({', '.join(usual)})"
            raise DataError(str(rows.path), requirement, f"{found} in {list(rows.names)}", cure)
        columns[role] = candidates[0]
    return columns


def _position(role: str, key: str | int, rows: Rows, spare: Sequence[str]) -> int:
    """Return the position of a column; one of the ``spare`` ones, which have no role, may have been meant."""
    there = list(rows.names) if rows.names else f"{rows.width} columns without a header"
    argument = f"columns[{role!r}]"
    if isinstance(key, int):
        if key >= rows.width:
            raise DataError(argument, f"a position below {rows.width}", key, f"{rows.path} has {there}")
        return key
    matches = [position for position, name in enumerate(rows.names) if name == key.strip()]
    if not matches:
        question = did_you_mean(key, spare)
        cure = f"{question} {rows.path} has {there}" if question else f"{rows.path} has {there}"
        raise DataError(argument, "a column of the file", key, cure)
    if len(matches) > 1:
        cure = f"{rows.path} has it at the positions {matches}: give one of these numbers"
        raise DataError(argument, "a name that occurs once in the header", key, cure)
    return matches[0]


def _refuse_shared(found: Mapping[str, Sequence[int]], rows: Rows) -> None:
    taken: dict[int, str] = {}
    for role, positions in found.items():
        for position in positions:
            if position in taken:
                received = f"column {rows.name(position)} for {taken[position]} and {role}"
                raise DataError("columns", "a mapping to distinct columns", received, "use each column once")
            taken[position] = role


def _starts_as_number(text: str) -> bool:
    # An empty first field counts: leaving the column out in silence would hide a gap in the data.
    return not text.strip() or to_number(text) is not None


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
        raise DataError(where, f"a header with {', '.join(_NAMES)} once each", f"{again} twice", cure)
    return Roles(src=0, dst=1, time=2, label=3, edge_features=tuple(range(4, width)))


def jodie_table(head: Head) -> TextTable:
    """Return the table of a file in JODIE's form, whose header may name fewer columns than the rows have.

    Raises:
        DataError: The file has no header, or the rows are shorter than the header.
    """
    delimiter = find_delimiter(head.text) or ","
    if any(begins_as_value(field) for field in fields_of(head, delimiter)[: len(_NAMES)]):
        cure = f"put the line {','.join(_NAMES)},{_MANY} on top"
        raise DataError(f"{head.path}, line {head.number}", "JODIE's header", head.text[:80], cure)
    rows = find_rows(head, delimiter, has_header=True)
    named = [name for name in rows.names if name.lower() != _MANY]
    least = max(len(named), len(_NAMES))
    if rows.width < least:
        where = f"{rows.path}, line {rows.first_line}"
        cure = f"each needs {', '.join(_NAMES)} and the features of the header"
        raise DataError(where, f"a row of at least {least} columns", f"{rows.width} columns", cure)
    return TextTable(rows, jodie_roles(rows.names, rows.width, str(rows.path)), bipartite=True)
