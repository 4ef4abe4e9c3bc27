"""The graph part of a layer: a filter with weights, or a module of `dgl.nn`, `torch_geometric.nn` or a user's own."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.models.recurrent.filters import GraphFilter
from lightning_tgnn.models.recurrent.identity_cache import IdentityCache
from lightning_tgnn.types import Operators, Snapshot, SparseRows

BuildConvolution = Callable[[int, int], nn.Module]
"""Makes a module that turns rows of one width into rows of another."""

FORM = (
    "a convolution is called as module(rows, edge_index) if it is a MessagePassing of PyG and otherwise as "
    "module(block, rows) with a DGLBlock; with edge_weight, and edge_type or etypes, where it takes such"
)


class GraphConvolution(nn.Module):
    """A filter with weights of its own and a bias.

    Args:
        graph_filter: What is summed up.
        in_dim: Width of what comes in.
        out_dim: Width of what goes out.
    """

    def __init__(self, graph_filter: GraphFilter, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.filter = graph_filter
        self.weight = nn.Parameter(torch.empty(graph_filter.terms, in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        for term_weight in self.weight.data:
            nn.init.xavier_uniform_(term_weight)

    def forward(self, rows: Tensor, snapshot: Snapshot, layer: int, operators: Operators) -> Tensor:
        """Return float32 [n_k, out_dim] of ``rows`` [n_(k-1), in_dim]."""
        return self.filter(rows, self.weight, self.bias, snapshot, layer, operators)


class OwnConvolution(nn.Module):
    """A module of another library in the form of `GraphConvolution`.

    A subclass of PyG's ``MessagePassing`` is called as ``module(rows, edge_index)``, any other as DGL's layers are,
    ``module(block, rows)`` with a `dgl.DGLBlock`. If it takes ``edge_weight``, it gets the snapshot's normalised
    weights, so a layer's own normalisation has to be switched off. If it takes ``edge_type`` or ``etypes``, it gets the
    kind of every edge. It returns [n_k, out_dim], or [n_k, heads, width] of that size.

    Args:
        module: Maps rows of one width to rows of another.
        out_dim: Width of what goes out.

    Raises:
        InvalidArgumentError: ``module`` is no `torch.nn.Module`, or cannot be called in that form.
    """

    reads_edges = True

    def __init__(self, module: nn.Module, out_dim: int) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise InvalidArgumentError("convolution", "what builds a torch.nn.Module", type(module).__name__, FORM)
        self.module, self.out_dim = module, out_dim
        self.is_pyg = any(base.__name__ == "MessagePassing" for base in type(module).__mro__)
        known = signature(module.forward).parameters
        try:
            signature(module.forward).bind(None, None)
        except TypeError as error:
            received = f"{type(module).__name__}: {error}"
            raise InvalidArgumentError("convolution", "called with two arguments", received, FORM) from error
        self._takes_weight = "edge_weight" in known
        self._type_name = next((name for name in ("edge_type", "etypes") if name in known), None)
        self._made: IdentityCache[tuple[object, Tensor, Tensor]] = IdentityCache()

    def forward(self, rows: Tensor, snapshot: Snapshot, layer: int, operators: Operators) -> Tensor:
        """Return float32 [n_k, out_dim] of ``rows`` [n_(k-1), in_dim]."""
        relations = snapshot.layers[layer]
        made = self._made.get(relations[0])
        if made is None:
            made = self._graph(relations)
            self._made.put(relations[0], made)
        graph, weights, kinds = made
        arguments: dict[str, Any] = {"edge_weight": weights} if self._takes_weight else {}
        if self._type_name is not None:
            arguments[self._type_name] = kinds
        count = len(relations[0].starts) - 1
        with operators.timed("graph", layer):
            ends = (rows, graph) if self.is_pyg else (graph, rows)
            result = self.module(*ends, **arguments)
        if not isinstance(result, Tensor) or result.dim() < 2 or len(result) < count:
            received = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InvalidArgumentError("convolution", f"of {count} rows, one per vertex", received, FORM)
        flat = result[:count].flatten(1)
        if flat.shape[1] != self.out_dim:
            received, cure = list(result.shape), "build it with the width that is asked for, such as (in_dim, out_dim)"
            raise InvalidArgumentError("convolution", f"of {self.out_dim} values per row", received, cure)
        return flat

    def _graph(self, relations: tuple[SparseRows, ...]) -> tuple[object, Tensor, Tensor]:
        """Return the edges of all kinds as ``edge_index`` or as a `dgl.DGLBlock`, their weights and their kinds."""
        src = torch.cat([edges.columns for edges in relations])
        dst = torch.cat([edges.rows for edges in relations])
        weights = torch.cat([edges.weights for edges in relations])
        counts = torch.tensor([len(edges.columns) for edges in relations], device=src.device)
        kinds = torch.arange(len(relations), device=src.device).repeat_interleave(counts)
        if self.is_pyg:
            return torch.stack([src, dst]), weights, kinds
        import dgl

        into, out_of = len(relations[0].starts) - 1, len(relations[0].starts_back) - 1
        return dgl.create_block((src, dst), num_src_nodes=out_of, num_dst_nodes=into), weights, kinds
