"""Where the roots of an attention and their neighbours are."""

from __future__ import annotations

from dataclasses import dataclass

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
