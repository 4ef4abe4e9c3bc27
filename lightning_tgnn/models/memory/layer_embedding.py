"""Embeddings by a graph layer of `dgl.nn` or `torch_geometric.nn`, or one in their form, on a batch's edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from lightning_tgnn.checks import InvalidArgumentError, check_import, check_mapping
from lightning_tgnn.models.class_paths import import_path
from lightning_tgnn.models.memory.embeddings import Embedding
from lightning_tgnn.models.memory.time_encoding import TimeEncoder
from lightning_tgnn.types import RootBatch, SampledRoots, TensorFields


@dataclass(frozen=True, repr=False)
class NeighborEdges(TensorFields):
    """Edges from past neighbours to the roots; a root that occurs at two times is two vertices.

    The vertices are ordered as in a DGL block: the R roots, which receive, then the U distinct nodes, which send.

    Attributes:
        rows: int64 [R + U], place in ``EventBatch.nodes`` of every vertex: ``states[rows]`` are their inputs.
        edge_index: int64 [2, A], sender and receiver of every edge, as PyG has it.
        age: float32 [A], time from the neighbour's event to the root's time.
        features: float32 [A, d_edge], features of the neighbour's event.
        num_roots: R; the first R vertices are the roots.
    """

    rows: Tensor
    edge_index: Tensor
    age: Tensor
    features: Tensor
    num_roots: int

    def block(self) -> Any:
        """Return the edges as a `dgl.DGLBlock` with ``edata["age"]`` and ``edata["feat"]``.

        Raises:
            InvalidArgumentError: DGL is not installed.
        """
        try:
            import dgl
        except ImportError as error:
            cure = "install dgl 1.1.3, which needs Python < 3.12, or take edge_index"
            raise InvalidArgumentError("block", "called where dgl is installed", "no dgl", cure) from error
        senders, receivers = self.edge_index
        block = dgl.create_block((senders, receivers), num_src_nodes=len(self.rows), num_dst_nodes=self.num_roots)
        block.edata["age"] = self.age
        block.edata["feat"] = self.features
        return block


def neighbor_edges(batch: RootBatch) -> NeighborEdges:
    """Return the sampled neighbours of a batch as edges to its roots, root by root."""
    roots = len(batch.root_index)
    receivers, places = batch.neighbor_mask.nonzero(as_tuple=True)
    senders = batch.neighbor_index[receivers, places] + roots
    rows = torch.cat([batch.root_index, torch.arange(len(batch.nodes), device=batch.nodes.device)])
    age = (batch.root_times[receivers] - batch.neighbor_time[receivers, places]).float()
    has_features = batch.edge_features.shape[-1] > 0
    features = (
        batch.edge_features[batch.neighbor_edge[receivers, places]] if has_features else age.new_empty(len(age), 0)
    )
    return NeighborEdges(rows, torch.stack([senders, receivers]), age, features, roots)


FORM = (
    "a layer is called as layer((senders, receivers), edge_index) if it is a MessagePassing of PyG, with edge_attr if "
    "it has an edge_dim, and otherwise as layer(block, (senders, receivers)) with a DGLBlock"
)


class LayerEmbedding(Embedding):
    """One layer over the sampled neighbours.

    A layer of PyG is called as ``layer((senders, receivers), edge_index)``, and with ``edge_attr``, the encoded ages of
    the events and their features, if it has an ``edge_dim``; every other as ``layer(block, (senders, receivers))``.

    Args:
        layer: Maps states [R + U, d_state] to [R, d_emb], or to [R, heads, width] of that size.
        embedding_dim: d_emb.
        time_encoder: Encodes the age of a neighbour's event, for PyG's layers with edge attributes.

    Raises:
        InvalidArgumentError: ``layer`` cannot be called in that form.
    """

    sampled_roots: SampledRoots = "all"

    def __init__(self, layer: nn.Module, embedding_dim: int, time_encoder: TimeEncoder) -> None:
        super().__init__()
        self.layer = layer
        self.embedding_dim = embedding_dim
        self.is_pyg = any(base.__name__ == "MessagePassing" for base in type(layer).__mro__)
        self.time_encoder = time_encoder if getattr(layer, "edge_dim", None) is not None else None
        attributes = {} if self.time_encoder is None else {"edge_attr": None}
        try:
            signature(layer.forward).bind(None, None, **attributes)
        except TypeError as error:
            received = f"{type(layer).__name__}: {error}"
            raise InvalidArgumentError("layer", "called with two arguments", received, FORM) from error
        self._has_worked = False

    def forward(self, states: Tensor, memory_time: Tensor, batch: RootBatch) -> Tensor:
        """Return the embeddings of the roots."""
        edges = neighbor_edges(batch)
        senders = states.index_select(0, edges.rows)
        ends = (senders, senders[: edges.num_roots])
        embedded = self._called(ends, edges) if self._has_worked else self._tried(ends, edges)
        if not isinstance(embedded, Tensor) or embedded.dim() < 2 or len(embedded) != edges.num_roots:
            received = list(embedded.shape) if isinstance(embedded, Tensor) else type(embedded).__name__
            raise InvalidArgumentError("layer", f"of {edges.num_roots} rows, one per root", received, FORM)
        flat = embedded.flatten(1)
        if flat.shape[1] != self.embedding_dim:
            received, cure = list(embedded.shape), f"set embedding_dim={flat.shape[1]}, or change the layer"
            raise InvalidArgumentError("layer", f"of {self.embedding_dim} values per root", received, cure)
        return flat

    def _tried(self, ends: tuple[Tensor, Tensor], edges: NeighborEdges) -> object:
        """Call the layer for the first time, which may not take two sets of nodes, or rows of another width."""
        try:
            embedded = self._called(ends, edges)
        except (torch.OutOfMemoryError, InvalidArgumentError):
            raise
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            requirement = f"one that takes senders and receivers, rows of {ends[0].shape[1]} values"
            received = f"{type(self.layer).__name__}, which raised {type(error).__name__}: {error}"
            raise InvalidArgumentError("layer", requirement, received, FORM) from error
        self._has_worked = True
        return embedded

    def _called(self, ends: tuple[Tensor, Tensor], edges: NeighborEdges) -> object:
        if self.is_pyg:
            attributes = {} if self.time_encoder is None else {"edge_attr": self._attributes(edges)}
            return self.layer(ends, edges.edge_index, **attributes)
        return self.layer(edges.block(), ends)

    def _attributes(self, edges: NeighborEdges) -> Tensor:
        assert self.time_encoder is not None
        return torch.cat([self.time_encoder(edges.age), edges.features], dim=1)


def layer_of(layer: str | type[nn.Module], arguments: Mapping[str, Any]) -> nn.Module:
    """Return a layer given by its class or by the import path of that, such as ``dgl.nn.SAGEConv``.

    Raises:
        InvalidArgumentError: ``layer`` is no class of a `torch.nn.Module`, or does not take the arguments.
    """
    kind = check_import("layer", layer) if isinstance(layer, str) else layer
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        received = layer if isinstance(layer, str) else type(layer).__name__
        cure = f"give a layer's class or the path of it, and what it takes as layer_args; {FORM}"
        raise InvalidArgumentError("layer", "the class of a torch.nn.Module", received, cure)
    for name, value in check_mapping("layer_args", arguments).items():
        if isinstance(value, nn.Module | Tensor):
            cure = "subclass the layer and make it there: checkpoints hold numbers and words only"
            raise InvalidArgumentError(f"layer_args[{name!r}]", "a number or a word", type(value).__name__, cure)
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        cure = f"give what {import_path(kind)} takes"
        raise InvalidArgumentError("layer_args", "its arguments", f"{dict(arguments)}: {error}", cure) from error
