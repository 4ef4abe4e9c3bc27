"""Link prediction with a graph layer of another library."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from torch import nn

from lightning_tgnn.models import build_with_layer
from lightning_tgnn.models.layer_embedding import layer_of
from lightning_tgnn.tasks.link_prediction import LinkPrediction
from lightning_tgnn.trust import LAYERS, WORDS
from lightning_tgnn.types import StreamInfo


class LayerLinkPrediction(LinkPrediction):
    """`LinkPrediction` with TGN's memory and, for its attention, a layer of `dgl.nn`, `torch_geometric.nn` or your own.

    The layer's inputs are node states of width ``memory_dim``; what it returns per root has to be ``embedding_dim``
    values. Roots may have no neighbour: layers of DGL that object to that want ``allow_zero_in_degree=True``. PyG's
    layers with an ``edge_dim`` get the encoded age of every event and its features, ``time_dim`` plus their number.

    Args:
        layer: Its class, or the import path of it, such as ``dgl.nn.SAGEConv``. A checkpoint holds the path; from an
            untrusted one only those of `lightning_tgnn.trust.LAYERS` are imported, others have to be given again.
        layer_args: Its arguments.
        memory_dim: Width of the node memory.
        embedding_dim: Width of the embeddings.
        time_dim: Width of the time encoding.
        static_dim: Width of the static node memory, a learned vector per node; 0 for none.
        lr: Learning rate of Adam.
        weight_decay: Of Adam.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    file_may_name: ClassVar[Mapping[str, Collection[str]]] = {
        **LinkPrediction.file_may_name,
        "layer": LAYERS,
        "layer_args": WORDS,
    }

    def __init__(
        self,
        layer: str | type[nn.Module],
        layer_args: Mapping[str, Any],
        memory_dim: int = 100,
        embedding_dim: int = 100,
        time_dim: int = 100,
        static_dim: int = 0,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        kind = layer
        if isinstance(layer, type):  # checkpoints hold plain values only
            layer = f"{layer.__module__}.{layer.__qualname__}"
        super().__init__(
            "tgn",
            memory_dim=memory_dim,
            embedding_dim=embedding_dim,
            time_dim=time_dim,
            num_heads=1,
            static_dim=static_dim,
            lr=lr,
            weight_decay=weight_decay,
        )
        layer_of(kind, layer_args)  # what is wrong with it is told at once
        self.layer_kind = kind
        self.layer_args = dict(layer_args)

    def build(self, info: StreamInfo) -> None:
        """Build the model for a stream."""
        self.info = info
        self.model = build_with_layer(layer_of(self.layer_kind, self.layer_args), self.config, info)
        self.build_head()
