"""Products of a subgraph's edges with the rows of its vertices, with gradients, or formed once and kept."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.types import EVERY, ReplicaSum, RowFunction, SparseRows, Subgraph

with warnings.catch_warnings():  # torch says once that such tensors are in beta, which is nothing that our users chose
    warnings.filterwarnings("ignore", ".*Sparse CSR tensor support is in beta")
    torch.sparse_csr_tensor([0, 0], torch.zeros(0, dtype=torch.int64), torch.zeros(0), (1, 1), check_invariants=False)


def sparse_product(edges: SparseRows, weights: Tensor, rows: Tensor) -> Tensor:
    """Return for every vertex the weighted sum over the edges into it, [n, d].

    Args:
        edges: Of the subgraph.
        weights: float32 [e], in the order of ``edges.columns``.
        rows: float32 [n, d]; rows of a lower precision are taken as such.
    """
    return _Product.apply(edges, weights, rows.to(torch.promote_types(rows.dtype, weights.dtype)))


def csr_product(starts: Tensor, columns: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    """Return the product of a matrix in compressed rows with ``rows``, [n, d], without a gradient."""
    size = (len(starts) - 1, len(rows))
    matrix = torch.sparse_csr_tensor(starts, columns, weights, size, check_invariants=False)
    with torch.autocast(rows.device.type, enabled=False):  # torch multiplies no sparse matrix in bfloat16 on the CPU
        return matrix @ rows


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edges: SparseRows, weights: Tensor, rows: Tensor) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(weights, rows if ctx.needs_input_grad[1] else None)
        return csr_product(edges.starts, edges.columns, weights, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        weights, rows = ctx.saved_tensors
        edges, grad = ctx.edges, grads[0]
        weight_grad = row_grad = None
        if ctx.needs_input_grad[1]:
            weight_grad = (grad[edges.rows] * rows[edges.columns]).sum(1)
        if ctx.needs_input_grad[2]:
            weights_back = weights.index_select(0, edges.edges_back)  # takes int32 as it is, which [...] would widen
            row_grad = csr_product(edges.starts_back, edges.columns_back, weights_back, grad)
        return None, weight_grad, row_grad


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
