"""Sums over neighbours that no weight is in: formed once for a subgraph, and kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.models.graphs.sparse_product import sparse_product
from lightning_tgnn.types import EVERY, ReplicaSum, RowFunction, Subgraph

_COLUMNS = 256  # summed together, so that what is on its way is small beside the sums


def whole(values: Tensor, key: str, blocks: tuple[int, ...] = (), then: RowFunction | None = None) -> Tensor:
    """A `ReplicaSum` that adds up nothing: no vertex has a replica elsewhere, or a halo has all edges."""
    return values if then is None else then(values, EVERY)


class KeptSum:
    """The weighted sums of the features over the edges into each vertex, as long as the subgraph stays the same.

    They are no part of a module's state: neither checkpoints nor copies have them.

    Args:
        key: Names the sum over replicas.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._of: tuple[Any, Any] | None = None
        self._sums: Tensor | None = None

    def of(self, subgraph: Subgraph, replicas: ReplicaSum) -> Tensor:
        """Return the sums at every replica, float32 [n, F].

        The first call for a subgraph exchanges them, exactly; with a halo nothing is exchanged.
        """
        kept = self.kept(subgraph)
        if kept is not None:
            return kept
        part = subgraph if subgraph.halo is None else subgraph.halo
        # Without a gradient a sum over replicas is exact. What inference mode makes could not be trained on later.
        with torch.inference_mode(False), torch.no_grad():
            sums = torch.empty(subgraph.features.shape, device=subgraph.features.device)
            for first in range(0, sums.shape[1], _COLUMNS):
                columns = slice(first, first + _COLUMNS)
                values = sparse_product(part.edges, part.edges.weights, part.features[:, columns].contiguous())
                if subgraph.halo is None:
                    values = replicas(values, f"{self.key}, columns from {first}")
                sums[:, columns] = values
        self._of, self._sums = (subgraph.edges, subgraph.features), sums
        return sums

    def kept(self, subgraph: Subgraph) -> Tensor | None:
        """Return the sums if `of` has formed them for this subgraph; epochs and splits have its edges in common."""
        if self._of is None or self._of[0] is not subgraph.edges or self._of[1] is not subgraph.features:
            return None
        return self._sums

    def __getstate__(self) -> dict[str, Any]:
        return {"key": self.key, "_of": None, "_sums": None}
