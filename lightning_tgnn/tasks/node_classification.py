"""Node classification on static graphs, all vertices in one step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import asdict, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchmetrics import Metric, MetricCollection

from lightning_tgnn.checks import (
    CheckpointError,
    InvalidArgumentError,
    check_bool,
    check_fraction,
    check_int,
)
from lightning_tgnn.compat.modules import trainer_of
from lightning_tgnn.files.checkpoints import save_whole_checkpoints
from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.metrics import LabelAccuracy, LabelF1, MultiLabelAccuracy, MultiLabelF1
from lightning_tgnn.models import GAT, GCN, GIN, GATv2, GraphSAGE
from lightning_tgnn.models.graphs.sparse_product import KeptSum, whole
from lightning_tgnn.tasks.event_classification import check_classes, notice_classes, refuse_classes
from lightning_tgnn.tasks.requirements import (
    check_default_dtype,
    check_graph_model,
    check_left_out,
    check_model,
    check_precision,
    check_same_graph,
    info_of,
    notice_accumulation,
)
from lightning_tgnn.tasks.task import Task
from lightning_tgnn.tasks.training_options import (
    NOT_SAVED,
    LRSchedulerCallable,
    OptimizerCallable,
    ParamGroups,
    TrainingOptions,
)
from lightning_tgnn.tasks.value_checks import check_returned
from lightning_tgnn.types import GraphInfo, ReplicaSum, Subgraph

_ATTENTION = {"gat": GAT, "gatv2": GATv2}
_OTHERS = {"sage": GraphSAGE, "gin": GIN}
GRAPH_MODELS = ("gcn", "gat", "gatv2", "sage", "gin")
_CHECKPOINT_KEY = "lightning_tgnn"


class NodeClassification(Task):
    """Trains a GNN to tell the class of each vertex.

    Logs ``train/loss`` and ``train/accuracy``, and for ``val`` and ``test`` ``accuracy`` and ``f1`` (macro).

    With labels [N, C] a vertex may be of several classes: the loss is the binary cross entropy, a mean over the
    classes, accuracy counts each class of each vertex, and ``f1_micro`` is logged, too.

    For the training of the weights, ``lr`` to ``capture``, see `TrainingOptions`.

    Args:
        model: ``"gcn"``, ``"gat"``, ``"gatv2"``, ``"sage"``, ``"gin"``, or what builds a module for a `GraphInfo`, for
            example its class. The module takes a `Subgraph` and a `ReplicaSum` and returns logits, float32 [n, C], the
            same at every replica of a vertex. The next five arguments configure the built-in models. Leave them out
            with a model of your own.
        hidden_dim: Width of the layers in between.
        num_layers: At least 1.
        heads: Attention heads of a GAT or GATv2; has to divide ``hidden_dim``.
        dropout: Rate before every layer, in [0, 1).
        layer_norm: Normalise each vertex between layers.
        dropout_on_sums: The first layer of a GCN drops elements of its sums over neighbours rather than of the
            features, so that these sums are formed once, in training with dropout, too; see `GCN`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    file_may_name: ClassVar[Mapping[str, Collection[str]]] = {"model": GRAPH_MODELS}

    def __init__(
        self,
        model: str | Callable[[GraphInfo], nn.Module] = "gcn",
        hidden_dim: int = 64,
        num_layers: int = 2,
        heads: int = 4,
        dropout: float = 0.5,
        layer_norm: bool = False,
        lr: float = 0.01,
        weight_decay: float = 5e-4,
        *,
        dropout_on_sums: bool = False,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_config: Mapping[str, Any] | None = None,
        lr_scaling: str = "none",
        param_groups: ParamGroups | None = None,
        detect_nan: bool = True,
        capture: str = "off",
    ) -> None:
        training = TrainingOptions.among(locals())
        super().__init__(training)
        check_model(model, GRAPH_MODELS, "a module")
        check_int("hidden_dim", hidden_dim, minimum=1, cure="64 is usual")
        check_int("num_layers", num_layers, minimum=1, cure="2 is usual")
        check_int("heads", heads, minimum=1, cure="4 is usual")
        if model in _ATTENTION and hidden_dim % heads:
            raise InvalidArgumentError("heads", f"a divisor of hidden_dim={hidden_dim}", heads, "4 is usual")
        check_fraction("dropout", dropout, cure="0.5 is usual")
        check_bool("layer_norm", layer_norm, usual=False)
        check_bool("dropout_on_sums", dropout_on_sums, usual=False)
        if dropout_on_sums and model != "gcn":
            cure = "the first layer of others uses the features beside their sums; leave it out"
            raise InvalidArgumentError("dropout_on_sums", 'False but for model="gcn"', True, cure)
        self._own_model = None if isinstance(model, str) else model
        left_out: tuple[str, ...] = ()
        if not isinstance(model, str):
            layers = {"hidden_dim": hidden_dim, "num_layers": num_layers, "layer_norm": layer_norm}
            left_out = check_left_out(NodeClassification, **layers, heads=heads, dropout=dropout)
            # Checkpoints hold plain values only.
            model = getattr(model, "__qualname__", type(model).__name__)
        self.save_hyperparameters(ignore=(*NOT_SAVED, *left_out))
        self.info: GraphInfo | None = None
        self.model: nn.Module | None = None
        self.train_metrics: Tensor | None = None  # loss and accuracy
        self._saved_metrics: Tensor | None = None
        # Adds up over the replicas of a vertex; a strategy puts another in its place.
        self.replicas: ReplicaSum = whole

    def setup(self, stage: str) -> None:
        """Refuse a precision that the sums over replicas do not have."""
        check_precision(self.trainer, "aggregation and sums over replicas are in float32")
        if stage == "fit":
            notice_accumulation(self.trainer)
        save_whole_checkpoints(self.trainer.strategy)

    def configure_model(self) -> None:
        """Build the model for the graph of the DataModule, once.

        Raises:
            InvalidArgumentError: The Trainer has no DataModule of a static graph.
            CheckpointError: The model has been built for another graph.
        """
        if trainer_of(self) is None:
            return  # `load_from_checkpoint` asks before it hands out the checkpoint, which describes the graph
        info = info_of(self.trainer, GraphInfo, "FullGraphDataModule", is_built=self.model is not None)
        if info is None:
            return
        if self.model is None:
            with torch.device("cpu"):  # a seed draws the same weights for every device
                self.build(info)
            self.copy_for_averages()
            return
        check_same_graph(self.info, info, may_have_grown=self.trainer.state.fn == "predict")
        if self.trainer.state.fn == "fit":
            self.info = info  # its checkpoints name this graph from here on

    def build(self, info: GraphInfo) -> None:
        """Build the model and its metrics for a graph.

        Raises:
            InvalidArgumentError: ``model`` builds no `torch.nn.Module` that takes a subgraph and a replica sum, or all
                training vertices are of one class.
        """
        check_default_dtype()
        if info.multi_label and info.class_counts is not None:
            if not any(info.class_counts):
                refuse_classes(type(self).__name__, "none")
        else:
            check_classes(type(self).__name__, info.class_counts)
        self.info = info
        self.model = self._built_in(info) if self._own_model is None else self._own_model(info)
        check_graph_model(self.model)
        classes = max(info.num_classes, 2)  # torchmetrics takes no fewer
        accuracy, f1 = (MultiLabelAccuracy, MultiLabelF1) if info.multi_label else (LabelAccuracy, LabelF1)
        metrics: dict[str, Metric | MetricCollection] = {
            "accuracy": accuracy(classes, average="micro", ignore_index=-1),
            "f1": f1(classes, average="macro", ignore_index=-1),
        }
        if info.multi_label:
            metrics["f1_micro"] = f1(classes, average="micro", ignore_index=-1)
        self.val_metrics = MetricCollection(metrics, prefix="val/", compute_groups=False)
        self.test_metrics = self.val_metrics.clone(prefix="test/")

    def _built_in(self, info: GraphInfo) -> nn.Module:
        chosen = self.hparams
        sizes = (info.feature_dim, chosen["hidden_dim"], info.num_classes, chosen["num_layers"])
        dropout, norm = chosen["dropout"], chosen["layer_norm"]
        if chosen["model"] in _ATTENTION:
            return _ATTENTION[chosen["model"]](*sizes, chosen["heads"], dropout, layer_norm=norm)
        if chosen["model"] == "gcn":
            return GCN(*sizes, dropout, layer_norm=norm, dropout_on_sums=chosen["dropout_on_sums"])
        return _OTHERS[chosen["model"]](*sizes, dropout, layer_norm=norm)

    def forward(self, subgraph: Subgraph) -> Tensor:
        """Return logits, float32 [n, C].

        Raises:
            InvalidArgumentError: The model returns no tensor, or another shape.
        """
        assert self.model is not None
        assert self.info is not None
        cure = "return a row per vertex of the subgraph, with a number per class"
        shape = len(subgraph.nodes), self.info.num_classes
        return self.stages.embedded(subgraph, check_returned(self._logits(subgraph), shape, cure))

    def _logits(self, subgraph: Subgraph) -> Tensor:
        model, replicas = self.model, self.replicas
        assert model is not None
        if replicas is not whole:
            return model(subgraph, replicas)

        def logits(seed: int) -> Tensor:  # or a tensor of it
            return model(replace(subgraph, seed=seed), replicas)

        def data() -> tuple[object, ...]:
            parts = (part for module in model.modules() for part in vars(module).values())
            return subgraph, *(copy(part) for part in parts if isinstance(part, KeptSum))

        key = id(subgraph.edges), id(subgraph.features)  # epochs and splits have them in common
        return self.stage_capture.whole("forward", key, self, logits, subgraph.seed, holds=data)

    def training_step(self, subgraph: Subgraph, batch_idx: int) -> Tensor:
        """Return the loss over all vertices of the training split."""
        with self.stages("embed"):
            logits = self(subgraph)
        scored, labels = logits[subgraph.scored], subgraph.labels[subgraph.scored]
        if labels.ndim == 1:
            loss = cross_entropy(scored, labels, reduction="sum")
        else:
            loss = binary_cross_entropy_with_logits(scored, labels.float(), reduction="sum") / labels.shape[1]
        # A rank may have no vertex to score, but takes part in every exchange.
        loss = loss * subgraph.share + 0 * logits.sum()
        right = (_decisions(scored.detach(), labels) == labels).sum() * subgraph.share / labels.shape[1:].numel()
        metrics = torch.stack([loss.detach(), right])
        self.train_metrics = self.trainer.strategy.reduce(metrics, reduce_op="mean")
        self.has_trained_weights = True
        return loss

    def on_fit_start(self) -> None:
        """Forget the metrics of an earlier fit, unless that fit is resumed."""
        super().on_fit_start()
        saved, self._saved_metrics = self._saved_metrics, None
        self.train_metrics = None if self.trainer.ckpt_path is None else saved
        assert self.info is not None
        notice_classes(type(self).__name__, self.info.class_counts, "vertex")

    def on_train_epoch_end(self) -> None:
        """Log loss and accuracy of the epoch's step, which all ranks have in common."""
        super().on_train_epoch_end()
        if self.train_metrics is not None:  # but for older checkpoints that lie behind the epoch's step
            loss, accuracy = self.train_metrics.to(self.device)
            self.log("train/loss", loss, prog_bar=True, sync_dist=True)
            self.log("train/accuracy", accuracy, prog_bar=True, sync_dist=True)

    @property
    def logged_names(self) -> Collection[str]:
        """The names of the metrics that a fit logs."""
        return [*super().logged_names, "train/accuracy"]

    @property
    def train_accuracy(self) -> float | None:
        """The share of the training vertices that the last step had right, over all ranks; None before the first."""
        return None if self.train_metrics is None else float(self.train_metrics[1])

    def validation_step(self, subgraph: Subgraph, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score the validation split."""
        self._evaluate(subgraph, self.val_metrics)

    def test_step(self, subgraph: Subgraph, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score the test split."""
        self._evaluate(subgraph, self.test_metrics)

    def _evaluate(self, subgraph: Subgraph, metrics: MetricCollection) -> None:
        logits, labels = self(subgraph)[subgraph.scored], subgraph.labels[subgraph.scored]
        self.check_scores(logits)
        # Decisions: of a single class there are fewer logits than torchmetrics takes.
        metrics.update(*_measurable(_decisions(logits, labels), labels))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics over all ranks."""
        super().on_validation_epoch_end()
        self._report(self.val_metrics)

    def on_test_epoch_end(self) -> None:
        """Log the metrics over all ranks."""
        self.guard.check_unread()
        self._report(self.test_metrics)

    def _report(self, metrics: MetricCollection) -> None:
        self.log_dict(metrics.compute(), prog_bar=True, sync_dist=True)
        metrics.reset()

    def predict_step(self, subgraph: Subgraph, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Return vertices and the probability of each class, [t, C]; the graph may have grown since training."""
        scored = subgraph.scored
        return {"node": subgraph.nodes[scored], "probability": self.probabilities(self(subgraph)[scored])}

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, [n, C]."""
        assert self.info is not None
        return logits.sigmoid() if self.info.multi_label else logits.softmax(-1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the graph looks like."""
        super().on_save_checkpoint(checkpoint)
        assert self.info is not None
        metrics = None if self.train_metrics is None else self.train_metrics.cpu()
        checkpoint[_CHECKPOINT_KEY] = {"graph": asdict(self.info), "figures": metrics, **self.resumption()}

    @content_of(*SAVED)
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the model if need be.

        Raises:
            CheckpointError: The checkpoint is of another task or graph, or was trained with other settings.
        """
        if "graph" not in checkpoint.get(_CHECKPOINT_KEY, {}):
            cure = "give a checkpoint of NodeClassification"
            raise CheckpointError("checkpoint", "of a graph", sorted(checkpoint), cure)
        super().on_load_checkpoint(checkpoint)
        self.resume_with(checkpoint, checkpoint[_CHECKPOINT_KEY])
        self._saved_metrics = checkpoint[_CHECKPOINT_KEY].get("figures")
        info = GraphInfo(**checkpoint[_CHECKPOINT_KEY]["graph"])
        if self.model is None:
            self.build(info)
            return
        assert self.info is not None
        if trainer_of(self) is None:  # from the processes of a fit, which have checked it
            self.info = replace(self.info, features=info.features)
        does = None if trainer_of(self) is None else self.trainer.state.fn
        check_same_graph(info, self.info, resumes=does == "fit", may_have_grown=does == "predict")


def _decisions(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the class of each vertex, int64 [t], or 1 for each of its classes, [t, C], as the labels are."""
    return logits.argmax(-1) if labels.ndim == 1 else (logits > 0).long()


def _measurable(decisions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return what metrics take: where a rank has nothing to score, a row that they ignore."""
    if len(labels):
        return decisions, labels
    return decisions.new_zeros(1, *decisions.shape[1:]), labels.new_full((1, *labels.shape[1:]), -1)
