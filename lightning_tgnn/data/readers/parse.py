"""Read a table with pandas, chunk by chunk, in the types that lose nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import numpy as np

from lightning_tgnn.checks import DataError, LightningTGNNError, refusal
from lightning_tgnn.data.arrays import FIRST_DOUBTFUL
from lightning_tgnn.data.readers.culprit import find_culprit
from lightning_tgnn.data.readers.dates import seconds_of_dates
from lightning_tgnn.data.readers.table import Rows, Table, check_levels, to_number
from lightning_tgnn.data.readers.text_file import open_text
from lightning_tgnn.data.streams.columns import notice_merged_integers
from lightning_tgnn.data.streams.node_ids import OtherIdsError, common_type, first_too_long

if TYPE_CHECKING:
    import pandas as pd

_CELLS_PER_CHUNK = 1 << 22
_LETTERS_AT_ONCE = 1 << 20
_PADDED = {
    is_blank: re.compile(rf"[,;\t\r\n\"{' ' if is_blank else ''}] *(?:\+|-?0[0-9])") for is_blank in (False, True)
}
"""How such a field begins, by whether blanks stand between fields: elsewhere a time of the day does not count."""
_AT_BORDER = 16  # letters that a block looks back at
_PADDED_ID = re.compile(r"\s*(?:\+|-?0[0-9]).*")
_BYTES = "S40"  # holds what most use as ids, UUIDs among them; the last byte stays empty
IdKind = Literal["integers", "bytes", "objects"]
"""As what ids are read: int64 or uint64, UTF-8 of a fixed width, or str objects, which are several times slower."""
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Columns:
    """Columns as they are in the file.

    Attributes:
        src: [E], int64 or uint64 where every id of both columns is such an integer, otherwise UTF-8 of a fixed width
            where that holds them all, else str objects.
        dst: [E], of the same type.
        time: float64 [E].
        labels: int64 [E] where they are whole numbers, otherwise float64; None without.
        edge_features: float32 [E, d_edge] or None.
    """

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    labels: np.ndarray | None
    edge_features: np.ndarray | None


class _UnreadableError(ValueError):
    """A chunk holds something that is not what its column needs."""


def parse(table: Table) -> Columns:
    """Read the columns of ``table``.

    Raises:
        DataError: A row has another number of columns, an id is missing, or a text stands for a number.
    """
    return read_by_ids(table, lambda kind: _parse(table, kind))


def read_by_ids(table: Table, read: Callable[[IdKind], _Read]) -> _Read:
    """Return what ``read`` does with the first kind of ids that holds all of them.

    Raises:
        DataError: ``read`` cannot read ``table``; the message names the faulty row.
    """
    try:
        for kind in _kinds_to_try(table):
            with suppress(OtherIdsError):
                return read(kind)
        return read("objects")
    except LightningTGNNError:
        raise
    except ValueError as error:
        raise find_culprit(table) or _unexplained(table, error) from None


def _kinds_to_try(table: Table) -> tuple[IdKind, ...]:
    """Return what to begin with: not with integers where the first row has none, for that read would be in vain."""
    first = table.rows.first
    ends = (table.roles.src, table.roles.dst)
    is_text = any(to_number(first[position]) is None for position in ends) or _has_padded_ids(table)
    return ("bytes",) if is_text else ("integers", "bytes")


def _has_padded_ids(table: Table) -> bool:
    """Whether an id is written as no integer is, such as 007 or +7: then ids of both ends are text as written.

    Few files have such a field at all, and only of these the ids are read for it.
    """
    with open_text(table.rows.path, blank_comments=table.rows.delimiter is None) as text:
        for _ in range(table.rows.skipped):
            text.readline()
        if not _has_padded_field(text, _PADDED[table.rows.delimiter in (None, " ")]):
            return False
    ends = (table.roles.src, table.roles.dst)
    for frame in _text_columns(table, ends):
        if any(any(map(_PADDED_ID.match, frame[end].unique())) for end in ends):
            return True
    return False


def _has_padded_field(text: TextIO, padded: re.Pattern[str]) -> bool:
    """Whether a field of a text begins as a pattern of `_PADDED` says."""
    before = "\n"
    while block := text.read(_LETTERS_AT_ONCE):
        if padded.search(before + block):
            return True
        before = block[-_AT_BORDER:]
    return False


def read_chunks(table: Table, kind: IdKind) -> Iterator[dict[str, np.ndarray]]:
    """Yield the fields of `Columns`, some rows at a time; labels are float64.

    Raises:
        DataError: At the end, where a row has another number of columns.
        ValueError: A field cannot be read; see `read_by_ids`.
    """
    roles, last = table.roles, table.rows.width - 1
    count, is_doubtful = 0, False
    for frame in _frames(table, kind):
        yield _take(frame, table, kind)
        count += 1
        # pandas fills short rows up; only an empty last column that nobody reads can hide one.
        is_doubtful |= last not in roles.positions() and bool((frame[last] == "").any())
    # Before 3.1 it cut a row that was too long if that was the first of a chunk.
    is_doubtful |= count > 1 and _pandas_version() < (3, 1)
    if is_doubtful and (culprit := find_culprit(table, widths_only=True)):
        raise culprit


def _parse(table: Table, kind: IdKind) -> Columns:
    chunks = list(read_chunks(table, kind))
    columns = {name: [chunk[name] for chunk in chunks] for name in chunks[0]}
    id_type = common_type([*columns["src"], *columns["dst"]])
    return Columns(
        src=np.concatenate(columns["src"], dtype=id_type, casting="unsafe"),
        dst=np.concatenate(columns["dst"], dtype=id_type, casting="unsafe"),
        time=np.concatenate(columns["time"]),
        labels=whole_numbers(np.concatenate(columns["labels"])) if "labels" in columns else None,
        edge_features=np.concatenate(columns["edge_features"]) if "edge_features" in columns else None,
    )


def _frames(table: Table, kind: IdKind) -> Iterator[pd.DataFrame]:
    import pandas as pd

    rows, roles = table.rows, table.roles
    inferred = {position for _, position in roles.numbers()} | ({roles.src, roles.dst} if kind == "integers" else set())
    inferred -= {roles.time} if table.has_dates else set()
    types: dict[int, Any] = {position: object for position in range(rows.width) if position not in inferred}
    if kind == "bytes":
        types |= dict.fromkeys((roles.src, roles.dst), _BYTES)
    with open_text(rows.path, blank_comments=rows.delimiter is None) as text:
        for _ in range(rows.skipped):
            text.readline()
        yield from pd.read_csv(
            text,
            dtype=types,
            chunksize=max(_CELLS_PER_CHUNK // rows.width, 1),
            **_options(rows),
        )


def _options(rows: Rows) -> dict[str, Any]:
    """Return the options that keep pandas from guessing: no NaN for words, no index, no cut or rounded values."""
    options: dict[str, Any] = {"sep": rows.delimiter, "skipinitialspace": True}
    if rows.delimiter is None:
        options = {"sep": r"\s+", "quoting": 3}
    return {
        **options,
        **exact_numbers(),
        "engine": "c",
        "header": None,
        "names": range(rows.width),
        "index_col": False,
        "na_filter": False,
        "low_memory": False,
    }


def exact_numbers() -> dict[str, Any]:
    """Return the option that lets pandas read every number as Python does: from 3.1 on it does, and deprecates it."""
    return {"float_precision": "round_trip"} if _pandas_version() < (3, 1) else {}


def _pandas_version() -> tuple[int, ...]:
    import pandas as pd

    return tuple(int(number) for number in pd.__version__.split(".")[:2])


def _take(frame: pd.DataFrame, table: Table, kind: IdKind) -> dict[str, np.ndarray]:
    """Return what is kept of a chunk."""
    roles = table.roles
    taken = {role: _ids(frame[getattr(roles, role)], kind, table.longest_id) for role in ("src", "dst")}
    if table.has_dates:
        taken["time"] = seconds_of_dates(frame[roles.time])
    else:
        notice_merged_integers(frame[roles.time].to_numpy(), stacklevel=3)
        taken["time"] = _numbers(frame, [roles.time], np.float64)[:, 0]
    if roles.label is not None:
        taken["labels"] = _numbers(frame, [roles.label], np.float64)[:, 0]
    parts = [_numbers(frame, list(roles.edge_features), np.float32)] if roles.edge_features else []
    for position, levels in zip(roles.categories, table.levels, strict=True):
        parts.append(one_hot(frame[position].str.strip().to_numpy(dtype=object), levels))
    if parts:
        taken["edge_features"] = np.concatenate(parts, axis=1)
    return taken


def one_hot(values: np.ndarray, levels: Sequence[str]) -> np.ndarray:
    """Return a column for each level, 1 where the value (str objects [E]) is that one, float32 [E, L]."""
    return (values[:, None] == np.array(levels, dtype=object)).astype(np.float32)


def with_levels(table: Table) -> Table:
    """Return a table that knows the values of its columns of categories, for which it is read once.

    Raises:
        DataError: A column has too many values.
    """
    if not table.roles.categories:
        return table
    found: dict[int, set[str]] = {position: set() for position in table.roles.categories}
    for frame in _text_columns(table, table.roles.categories):
        for position, seen in found.items():
            seen |= set(frame[position].str.strip())
            check_levels(table.rows.name(position), seen)
    levels = tuple(check_levels(table.rows.name(position), one) for position, one in found.items())
    return replace(table, levels=levels)


def _text_columns(table: Table, positions: Sequence[int]) -> Iterator[pd.DataFrame]:
    """Yield some columns of a table as they are written, some rows at a time."""
    import pandas as pd

    with open_text(table.rows.path, blank_comments=table.rows.delimiter is None) as text:
        for _ in range(table.rows.skipped):
            text.readline()
        some = {"dtype": object, "usecols": list(positions), "chunksize": _CELLS_PER_CHUNK // 2}
        yield from pd.read_csv(text, **{**_options(table.rows), **some})


def _ids(column: pd.Series, kind: IdKind, longest: int) -> np.ndarray:
    values = column.to_numpy()
    if kind == "integers" and values.dtype.kind not in "iu":
        raise OtherIdsError
    if kind == "objects" and first_too_long(values, longest) is not None:
        raise _UnreadableError("an id that is too long")
    if kind == "bytes":
        values = np.ascontiguousarray(values, _BYTES)  # pandas may hand them out as objects
        if values.view(np.uint8).reshape(len(values), -1)[:, -1].any():
            raise OtherIdsError  # what is longer has been cut
    return values


def _numbers(frame: pd.DataFrame, positions: list[int], dtype: type) -> np.ndarray:
    columns = frame[positions]
    if any(getattr(kind, "kind", "O") not in "iuf" for kind in columns.dtypes):
        raise _UnreadableError("a column that is no number")
    with np.errstate(over="ignore"):
        values = columns.to_numpy(dtype)
    if not np.isfinite(values).all():
        raise _UnreadableError("NaN or infinity")
    return values


def whole_numbers(labels: np.ndarray) -> np.ndarray:
    """Return float64 labels as int64 where all are whole numbers, else as they are."""
    return labels.astype(np.int64) if are_whole(labels) else labels


def are_whole(labels: np.ndarray) -> bool:
    """Whether int64 holds all labels as they are; from 2^53 on float64 does not tell a number from the next."""
    return bool((np.abs(labels) < FIRST_DOUBTFUL).all()) and np.array_equal(labels.astype(np.int64), labels)


def _unexplained(table: Table, error: ValueError) -> DataError:
    cure = "look for numbers of more than 19 digits, or for unusual quotes"
    return DataError(refusal(str(table.rows.path), "a table that pandas can read", str(error).strip(), cure))
