"""Rows of a group's state that belong to the vertices of a snapshot."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.types import Snapshot


def state_places(snapshot: Snapshot, count: int, total: int) -> Tensor | None:
    """Return the rows of the group that a layer changes, int64 [count]; None if they are all rows in order.

    Args:
        snapshot: Whose vertices are there.
        count: n_k, how many of them, from the first, the layer has made rows of.
        total: m, rows of the group.
    """
    places = snapshot.vertices[:count]
    if count == total and torch.equal(places, torch.arange(total, device=places.device)):
        return None
    return places


def read_rows(state: Tensor, places: Tensor | None) -> Tensor:
    """Return the state of the vertices that are there, [n_k, d]."""
    return state if places is None else state.index_select(0, places)


def write_rows(state: Tensor, places: Tensor | None, rows: Tensor) -> Tensor:
    """Return the state [m, d] with the rows of the vertices that are there replaced; the others stay."""
    rows = rows.to(state.dtype)  # autocast makes others
    return rows if places is None else state.index_copy(0, places, rows)
