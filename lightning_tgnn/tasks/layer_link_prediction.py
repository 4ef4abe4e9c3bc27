"""Link prediction with a graph layer of another library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_tgnn.models import build_with_layer
from lightning_tgnn.models.layer_embedding import layer_of
from lightning_tgnn.tasks.link_prediction import LinkPrediction
from lightning_tgnn.types import StreamInfo


class LayerLinkPrediction(LinkPrediction):
    """`LinkPrediction` with TGN's memory and, for its attention, a layer of `dgl.nn`, `torch_geometric.nn` or your own.

    The layer's inputs are node states of width ``memory_dim``; what it returns per root has to be ``embedding_dim``
    values. Roots may have no neighbour: layers of DGL that object to that want ``allow_zero_in_degree=True``. PyG's
    layers with an ``edge_dim`` get the encoded age of every event and its features, ``time_dim`` plus their number.

    Args:
        layer: Import path of its class, such as ``dgl.nn.SAGEConv`` or ``torch_geometric.nn.TransformerConv``.
        layer_args: Its arguments.
        memory_dim: Width of the node memory.
        embedding_dim: Width of the embeddings.
        time_dim: Width of the time encoding.
        static_dim: Width of the static node memory, a learned vector per node; 0 for none.
        lr: Learning rate of Adam.
        weight_decay: Of Adam.
        detect_nan: End the run at the first loss, gradient or score that is not finite.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        layer: str,
        layer_args: Mapping[str, Any],
        memory_dim: int = 100,
        embedding_dim: int = 100,
        time_dim: int = 100,
        static_dim: int = 0,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        detect_nan: bool = True,
    ) -> None:
        super().__init__(
            "tgn",
            memory_dim=memory_dim,
            embedding_dim=embedding_dim,
            time_dim=time_dim,
            num_heads=1,
            static_dim=static_dim,
            lr=lr,
            weight_decay=weight_decay,
            detect_nan=detect_nan,
        )
        layer_of(layer, layer_args)  # what is wrong with it is told at once
        self.layer_path = layer
        self.layer_args = dict(layer_args)

    def build(self, info: StreamInfo) -> None:
        """Build the model for a stream."""
        self.info = info
        self.model = build_with_layer(layer_of(self.layer_path, self.layer_args), self.config, info)
        self.build_head()
