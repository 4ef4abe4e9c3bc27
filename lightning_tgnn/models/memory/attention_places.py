"""Where the roots of an attention and their neighbours are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Neighborhood:
    """Where S roots and their neighbours are found; a root's neighbours fill its first places.

    Attributes:
        root: int64 [S], rows of the queries.
        index: int64 [S, K], rows of the node states.
        edge: int64 [S, K], rows of ``edge_features``; [0, 0] without edge features.
        elapsed: float32 [S, K], time since the neighbour's event, in the time encoder's unit.
        mask: bool [S, K].
        edge_features: float32 [V, d_edge].
    """

    root: Tensor
    index: Tensor
    edge: Tensor
    elapsed: Tensor
    mask: Tensor
    edge_features: Tensor

    def padded(self, multiple: int) -> Neighborhood:
        """Return the same with roots that have no neighbours behind the others, up to a multiple."""
        extra = -len(self.root) % multiple
        names = ("root", "index", "edge", "elapsed", "mask") if len(self.edge) else ("root", "index", "elapsed", "mask")
        tables = {name: getattr(self, name) for name in names}
        more = {name: torch.cat([table, table.new_zeros(extra, *table.shape[1:])]) for name, table in tables.items()}
        return replace(self, **more)
