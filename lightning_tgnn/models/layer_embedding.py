"""Embeddings by a graph layer of `dgl.nn`, of `torch_geometric.nn`, or of a user's own in their form."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.models.embeddings import Embedding
from lightning_tgnn.models.neighborhood import NeighborEdges, neighbor_edges
from lightning_tgnn.models.time_encoding import TimeEncoder
from lightning_tgnn.types import RootBatch, SampledRoots


class LayerEmbedding(Embedding):
    """One layer over the sampled neighbours.

    A layer of PyG is called as ``layer((senders, receivers), edge_index)``, and with ``edge_attr``, the encoded ages of
    the events and their features, if it has an ``edge_dim``; every other as ``layer(block, (senders, receivers))``.

    Args:
        layer: Maps states [R + U, d_state] to [R, d_emb], or to [R, heads, width] of that size.
        embedding_dim: d_emb.
        time_encoder: Encodes the age of a neighbour's event, for PyG's layers with edge attributes.
    """

    sampled_roots: SampledRoots = "all"

    def __init__(self, layer: nn.Module, embedding_dim: int, time_encoder: TimeEncoder) -> None:
        super().__init__()
        self.layer = layer
        self.embedding_dim = embedding_dim
        self.is_pyg = any(base.__name__ == "MessagePassing" for base in type(layer).__mro__)
        self.time_encoder = time_encoder if getattr(layer, "edge_dim", None) is not None else None

    def forward(self, states: Tensor, memory_time: Tensor, batch: RootBatch) -> Tensor:
        """Return the embeddings of the roots."""
        edges = neighbor_edges(batch)
        senders = states.index_select(0, edges.rows)
        ends = (senders, senders[: edges.num_roots])
        if self.is_pyg:
            attributes = {} if self.time_encoder is None else {"edge_attr": self._attributes(edges)}
            embedded = self.layer(ends, edges.edge_index, **attributes)
        else:
            embedded = self.layer(edges.block(), ends)
        flat = embedded.flatten(1)
        if flat.shape[1] != self.embedding_dim:
            received, cure = list(embedded.shape), f"set embedding_dim={flat.shape[1]}, or change the layer"
            raise InvalidArgumentError(refusal("layer", f"of {self.embedding_dim} values per root", received, cure))
        return flat

    def _attributes(self, edges: NeighborEdges) -> Tensor:
        assert self.time_encoder is not None
        return torch.cat([self.time_encoder(edges.age), edges.features], dim=1)


def layer_of(path: str | type, arguments: Mapping[str, Any]) -> nn.Module:
    """Return a layer given by its class or its import path, such as ``dgl.nn.SAGEConv``.

    Raises:
        InvalidArgumentError: There is no such module class, or it does not take the arguments.
    """
    kind = path if isinstance(path, type) else _imported(path)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise InvalidArgumentError(refusal("layer", "a torch.nn.Module", path, "give the path of a layer's class"))
    try:
        return kind(**arguments)
    except TypeError as error:
        cure = f"give what {path} takes"
        raise InvalidArgumentError(
            refusal("layer_args", "its arguments", f"{dict(arguments)}: {error}", cure)
        ) from error


def _imported(path: str) -> Any:
    module, _, name = str(path).rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        cure = f"check the name, and that what it is in can be imported ({error})"
        raise InvalidArgumentError(refusal("layer", "the import path of a class", path, cure)) from error
