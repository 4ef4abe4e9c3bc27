"""What has changed between the edges of two snapshots."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tgnn.types import SparseRows


class CompressedRows(NamedTuple):
    """A matrix in compressed rows, without its transpose.

    Attributes:
        starts: int64 [n + 1], where the entries of each row begin.
        columns: int64 [e].
        weights: float32 [e].
    """

    starts: Tensor
    columns: Tensor
    weights: Tensor


def edge_difference(now: SparseRows, before: SparseRows) -> CompressedRows | None:
    """Return ``now - before`` of two matrices of the same size; None where it has as many entries as ``now`` or more.

    Entries of a row have to be in the order of their columns, each column at most once; None is returned else.
    """
    rows, columns = len(now.starts) - 1, len(now.starts_back) - 1
    if (len(before.starts) - 1, len(before.starts_back) - 1) != (rows, columns):
        return None
    keys, keys_before = (edges.rows * columns + edges.columns for edges in (now, before))
    if not all((some.diff() > 0).all() for some in (keys, keys_before)):
        return None
    places = torch.searchsorted(keys_before, keys)
    if len(keys_before):
        found = keys_before[places.clamp(max=len(keys_before) - 1)] == keys
    else:
        found = torch.zeros_like(keys, dtype=torch.bool)
    gone = torch.ones_like(keys_before, dtype=torch.bool)
    gone[places[found]] = False
    change = now.weights.clone()
    change[found] -= before.weights[places[found]]
    stays = change != 0
    entries = torch.cat([keys[stays], keys_before[gone]])
    if len(entries) >= len(keys):
        return None
    order = entries.argsort()
    entries = entries[order]
    weights = torch.cat([change[stays], -before.weights[gone]])[order]
    counts = torch.bincount(entries // max(columns, 1), minlength=rows)
    return CompressedRows(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), entries % max(columns, 1), weights)
