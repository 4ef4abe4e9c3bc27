"""Products of a subgraph's edges with the rows of its vertices, with gradients of both."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.types import SparseRows

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
