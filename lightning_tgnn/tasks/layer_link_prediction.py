"""Link prediction with a graph layer of another library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from torch import nn

from lightning_tgnn.models import Mails, MemoryModel, build_with_layer
from lightning_tgnn.models.class_paths import import_path
from lightning_tgnn.models.memory.layer_embedding import layer_of
from lightning_tgnn.tasks.link_prediction import LinkPrediction
from lightning_tgnn.tasks.training_options import LRSchedulerCallable, OptimizerCallable, ParamGroups
from lightning_tgnn.trust import LAYERS, WORDS
from lightning_tgnn.types import StreamInfo


class LayerLinkPrediction(LinkPrediction):
    """`LinkPrediction` with TGN's memory and, for its attention, a layer of `dgl.nn`, `torch_geometric.nn` or your own.

    A layer turns the states of a batch's vertices into embeddings of its roots. The vertices are the R roots and,
    behind them, the U nodes of the batch; edges go from past neighbours to roots. A layer has one of two forms:

    - A subclass of PyG's ``MessagePassing`` is called as ``layer((senders, receivers), edge_index)``: states
      [R + U, memory_dim], their first R rows, and int64 [2, A]. If it has an ``edge_dim`` that is not None, it also
      gets ``edge_attr``, [A, time_dim + edge features]: the encoded age of every event, and its features.
    - Any other module is called as DGL's layers are, ``layer(block, (senders, receivers))``, with a `dgl.DGLBlock`,
      whose ``edata`` holds the events' ``"age"`` [A] and ``"feat"`` [A, edge features].

    The layer returns [R, embedding_dim], or [R, heads, width] of that size. Roots may have no neighbour; some layers of
    DGL need ``allow_zero_in_degree=True`` for that.

    For all other arguments see `LinkPrediction` and `TrainingOptions`.

    Args:
        layer: Its class, or the import path of the class, such as ``dgl.nn.SAGEConv`` or
            ``torch_geometric.nn.TransformerConv``. A checkpoint holds the path. From an untrusted checkpoint only the
            layers of `lightning_tgnn.trust.LAYERS` are imported; others have to be given again.
        layer_args: The arguments that the class is called with, numbers and words. If a layer takes a module, subclass
            the layer and make the module there.

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
        message: str | Callable[[int, int], nn.Module] | None = None,
        *,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_config: Mapping[str, Any] | None = None,
        lr_scaling: str = "none",
        param_groups: ParamGroups | None = None,
        detect_nan: bool = True,
        capture: str = "off",
    ) -> None:
        layer_of(layer, layer_args)  # what is wrong with it is reported at once
        given = layer
        if isinstance(layer, type):
            layer = import_path(layer)  # checkpoints hold plain values only
        super().__init__(
            "tgn",
            memory_dim=memory_dim,
            embedding_dim=embedding_dim,
            time_dim=time_dim,
            num_heads=1,
            static_dim=static_dim,
            lr=lr,
            weight_decay=weight_decay,
            message=message,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            lr_scheduler_config=lr_scheduler_config,
            lr_scaling=lr_scaling,
            param_groups=param_groups,
            detect_nan=detect_nan,
            capture=capture,
        )
        self._layer = given
        self.layer_args = dict(layer_args)

    def make_model(self, info: StreamInfo, mails: Mails) -> MemoryModel:
        """Return the model for a stream."""
        return build_with_layer(layer_of(self._layer, self.layer_args), self.config, info, mails)
