"""Tables in memory: pandas and polars DataFrames, Arrow tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import narwhals as nw
import numpy as np

from lightning_tgnn.checks import DataError, refusal
from lightning_tgnn.data.readers.csv_columns import check_columns, roles_of, usual_columns
from lightning_tgnn.data.readers.frame_columns import Column
from lightning_tgnn.data.readers.jodie import has_jodie_names, jodie_roles
from lightning_tgnn.data.readers.table import Rows, Table, check_levels
from lightning_tgnn.data.streams.event_store import EventStore
from lightning_tgnn.data.streams.node_ids import (
    LONGEST_ID,
    check_lengths,
    check_longest_id,
    number_nodes,
    of_one_type,
    shared_id,
)

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    Frame: TypeAlias = pd.DataFrame | pl.DataFrame | pa.Table


def read_frame(
    source: Frame,
    *,
    columns: Mapping[str, Any] | None = None,
    bipartite: bool | None = None,
    longest_id: int = LONGEST_ID,
    name: str = "the DataFrame",
) -> EventStore:
    """Return the events of a table; `read_events` says how nodes are numbered and what ``columns`` means.

    Ids are integers or strings, as the column is typed; dates become seconds since 1970 (UTC where they name no zone).

    Args:
        source: A pandas or polars DataFrame, or an Arrow table.
        columns: Roles to names or positions; None goes by JODIE's names, else by the usual ones.
        bipartite: Number sources and destinations apart; None does so where the names are JODIE's.
        longest_id: Bytes of UTF-8 that an id may have. All ids are stored as wide as the longest.
        name: What the source is called in a message.

    Raises:
        InvalidArgumentError: ``columns`` is no mapping of roles to columns, or ``longest_id`` no positive integer.
        DataError: A column is missing or doubled, of no type that fits its role, or has an empty field.
    """
    check_longest_id(longest_id)
    columns = None if columns is None else check_columns(columns)
    names, frame = _by_position(source, columns or {})
    if not len(frame):
        raise DataError(refusal(name, "a table with a row per event", "no row", "check how it was made"))
    rows = Rows(Path(name), ",", 0, names, 1, tuple(map(str, frame.row(0))))
    is_jodie = columns is None and has_jodie_names(names)
    if is_jodie:
        roles = jodie_roles(names, rows.width, name)
    else:
        roles = roles_of(usual_columns(rows) if columns is None else columns, rows)
    return _store(frame, Table(rows, roles, is_jodie or None if bipartite is None else bipartite, longest_id))


def _by_position(source: Frame, columns: Mapping[str, Any]) -> tuple[tuple[str, ...], nw.DataFrame[Any]]:
    """Return the names of the columns, and the table with positions for names: names may occur twice."""
    if nw.dependencies.is_pyarrow_table(source):
        named = [given if isinstance(given, list | tuple) else [given] for given in columns.values()]
        source = without_row_numbers(source, chain.from_iterable(named))
        names, positions = source.column_names, [str(p) for p in range(source.num_columns)]
        renamed = _with_plain_texts(source.rename_columns(positions))
    else:
        names, positions = list(source.columns), [str(p) for p in range(len(source.columns))]
        if nw.dependencies.is_polars_dataframe(source):
            renamed = source.rename(dict(zip(names, positions, strict=True)))
        else:
            renamed = source.set_axis(positions, axis=1)
    return tuple(str(name).strip() for name in names), nw.from_native(renamed, eager_only=True)


def without_row_numbers(table: pa.Table, wanted: Iterable[object] = ()) -> pa.Table:
    """Return an Arrow table without the unnamed index of a pandas DataFrame, which mostly numbers the rows.

    Args:
        table: The table.
        wanted: Names of columns; an index among them stays.
    """
    kept = (table.schema.pandas_metadata or {}).get("index_columns", [])
    unnamed = [name for name in kept if isinstance(name, str) and re.fullmatch(r"__index_level_\d+__", name)]
    left = {*table.column_names} - {name for name in wanted if isinstance(name, str)}
    return table.drop_columns([name for name in unnamed if name in left])


def _with_plain_texts(table: pa.Table) -> pa.Table:
    """Return an Arrow table whose texts are not views: Arrow cannot take rows of these."""
    types = {field.name: "large_string" for field in table.schema if str(field.type) == "string_view"}
    for name, type_ in types.items():
        position = table.schema.get_field_index(name)
        table = table.set_column(position, name, table.column(name).cast(type_))
    return table


def _store(frame: nw.DataFrame[Any], table: Table) -> EventStore:
    rows, roles = table.rows, table.roles

    def column(role: str, position: int) -> Column:
        return Column(frame[str(position)], f"{rows.path}: {role} (column {rows.name(position)})")

    ends = column("src", roles.src), column("dst", roles.dst)
    src, dst = _of_one_type(*ends)
    for end, ids in zip(ends, (src, dst), strict=True):
        if ids.dtype == object:
            check_lengths(end.name, ids, table.longest_id)
    features = [column("edge feature", position).floats(np.float32) for position in roles.edge_features]
    texts = [column("category", position).texts() for position in roles.categories]
    levels = [check_levels(rows.name(p), set(one)) for p, one in zip(roles.categories, texts, strict=True)]
    table = replace(table, levels=tuple(levels))
    for one, of_column in zip(texts, levels, strict=True):
        features += [(one == level).astype(np.float32) for level in of_column]
    apart = table.decided(lambda: shared_id(src, dst))
    origin = table.origin(apart=apart, text_ids=src.dtype == object, dates=column("time", roles.time).holds_dates)
    src, dst, node_ids = number_nodes(src, dst, apart=apart)
    table.notice_unused()
    return EventStore.from_arrays(
        src,
        dst,
        column("time", roles.time).times(),
        np.stack(features, axis=1) if features else None,
        labels=None if roles.label is None else column("label", roles.label).labels(),
        node_ids=node_ids,
        edge_feature_names=table.feature_names,
        origin=origin,
    )


def _of_one_type(src: Column, dst: Column) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of both columns in a type that holds all of them: text where one is, as a CSV of them is read."""
    columns = src.ids(), dst.ids()
    ids = of_one_type(*columns)
    if ids is not None:
        return ids
    if object in (columns[0].dtype, columns[1].dtype):
        texts = [ids if ids.dtype == object else ids.astype(np.str_).astype(object) for ids in columns]
        return texts[0], texts[1]
    received = f"{src.kind} and {dst.kind}"
    raise DataError(refusal(dst.name, "of the type of src", received, "convert one of the two columns"))
