"""Tables with a row per node that grow as nodes come."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def with_room(
    tables: Mapping[str, Tensor], count: int, empty: Callable[[int], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Return tables with at least ``count`` rows: the same, or, where these are too few, with twice as many.

    So one row after the other costs, on average, the copy of a constant number of rows.

    Args:
        tables: [M, ...] each.
        count: Rows that are needed.
        empty: Returns that many rows for the places behind the others, by the names of the tables.
    """
    held = len(next(iter(tables.values())))
    if count <= held:
        return dict(tables)
    more = empty(max(count, 2 * held) - held)
    return {name: torch.cat([table, more[name]]) for name, table in tables.items()}
