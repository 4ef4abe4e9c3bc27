"""Node affinity on event streams: to whom, or what, will a node turn in the time to come?"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.metrics import NodeAffinityMetric
from lightning_tgnn.models import NODE_MODEL_NAMES, ModelConfig
from lightning_tgnn.tasks.memory_task import MemoryTask
from lightning_tgnn.tasks.requirements import at_path, check_left_out, check_model, message_builder
from lightning_tgnn.tasks.training_options import (
    NOT_SAVED,
    LRSchedulerCallable,
    OptimizerCallable,
    ParamGroups,
    TrainingOptions,
)
from lightning_tgnn.tasks.value_checks import check_loss
from lightning_tgnn.types import EventBatch, StreamInfo, protocol_of


class NodeAffinity(MemoryTask[NodeAffinityMetric]):
    """Trains a temporal GNN to predict vectors of nodes at given times, the task of the sets ``tgbn-*`` of TGB.

    Such a vector says how a node's events of the next day, week or year are spread over classes. A node is embedded at
    the time of its label, from the events before that time; its memory is the memory when the batch begins. The loss is
    the cross entropy of the prediction and the vector. Logs ``ndcg@10`` for ``val`` and ``test``, the metric of TGB's
    evaluator; see `NodeAffinityMetric`.

    For the training of the weights, ``lr`` to ``capture``, see `TrainingOptions`.

    Args:
        model: ``"tgn"``, ``"jodie"``, ``"apan"``, ``"tgat"``, ``"graphmixer"``, or what builds a `MemoryModel` or
            `StreamModel`; see `LinkPrediction`.
        memory_dim: Width of the node memory.
        embedding_dim: Width of the embeddings.
        time_dim: Width of the time encoding.
        num_heads: Attention heads of TGN and APAN.
        mailbox_size: Mails that APAN keeps per node.
        static_dim: Width of the static node memory, a learned vector per node; 0 for none.
        hidden_dim: Width of the hidden layer of the head.
        dropout: Rate of dropout, in [0, 1).
        message: See `LinkPrediction`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    file_may_name: ClassVar[Mapping[str, Collection[str]]] = {"model": NODE_MODEL_NAMES, "message": ()}
    draws_negatives = False
    asks_about_nodes = True
    figure = "ndcg@10"

    def __init__(
        self,
        model: str | Callable[[StreamInfo], nn.Module] = "tgn",
        memory_dim: int = 100,
        embedding_dim: int = 100,
        time_dim: int = 100,
        num_heads: int = 2,
        mailbox_size: int = 10,
        static_dim: int = 0,
        hidden_dim: int = 100,
        dropout: float = 0.1,
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
        built_by, made_by = at_path("model", model), message_builder(message)
        check_model(built_by, NODE_MODEL_NAMES, "a StreamModel")
        config = ModelConfig(
            memory_dim=memory_dim,
            embedding_dim=embedding_dim,
            time_dim=time_dim,
            num_heads=num_heads,
            mailbox_size=mailbox_size,
            static_dim=static_dim,
            dropout=dropout,
        )
        check_int("hidden_dim", hidden_dim, minimum=1, cure="100 is usual")
        if capture != "off":
            cure = "leave it out: batches differ in how many nodes they ask about"
            raise InvalidArgumentError("capture", "'off' for NodeAffinity", capture, cure)
        left_out: tuple[str, ...] = ()
        if not isinstance(built_by, str):
            settings = {name: value for name, value in vars(config).items() if name != "dropout"}
            left_out = check_left_out(NodeAffinity, **settings, message=message)
        training = TrainingOptions.among(locals())
        super().__init__(built_by, config, training, message=made_by)
        self.save_hyperparameters(ignore=(*NOT_SAVED, *left_out))
        self.hidden_dim = hidden_dim
        self.val_metrics, self.test_metrics = NodeAffinityMetric(), NodeAffinityMetric()
        self._prefix = ""
        self._latest_loss: Tensor | None = None  # of a batch with labels

    def setup(self, stage: str) -> None:
        """Name the metric by the protocol of the DataModule."""
        super().setup(stage)
        protocol = protocol_of(self.trainer)
        self._prefix = "" if protocol is None else f"{protocol}/"
        self.figure = f"{self._prefix}{type(self).figure}"

    def build(self, info: StreamInfo) -> None:
        """Build the model for a stream.

        Raises:
            InvalidArgumentError: The stream has no labels of nodes.
        """
        if not info.node_label_dim:
            cure = "give a data set tgbn-* of TGB, or take another task"
            raise InvalidArgumentError("the labels for NodeAffinity", "vectors of nodes at times", "none", cure)
        super().build(info)

    def build_head(self) -> None:
        """Create the head."""
        assert self.info is not None
        self.head = nn.Sequential(
            nn.Linear(self.embedding_dim, self.hidden_dim),
            nn.ReLU(),
            nn.Dropout(self.config.dropout),
            nn.Linear(self.hidden_dim, self.info.node_label_dim),
        )

    def score(self, embeddings: Tensor, batch: EventBatch) -> Tensor:
        """Return logits of the nodes that the batch is asked about, float32 [L, C]."""
        asked = 0 if batch.queries is None else len(batch.queries.nodes)
        return self.head(embeddings[len(embeddings) - asked :]).float()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross entropy of predictions and vectors, [L, C] each; 0 where there are none."""
        return cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)

    def run_stages(self, batch: EventBatch) -> Tensor:
        """Score a batch and deliver its mails, in the order of the strategy; return logits [L, C]."""
        self.check_runs_once(batch)
        return self.stage_capture.order(self, batch)(self, batch)

    def training_step(self, batch: EventBatch, batch_idx: int) -> Tensor:
        """Run the stages in order; mails are delivered after the batch has been scored."""
        logits = self.run_stages(batch)
        if batch.queries is None or not len(batch.queries.nodes):
            return logits.sum()  # nothing to learn, but other ranks wait
        loss = check_loss(self.loss(logits, batch.queries.labels))
        self._latest_loss = loss.detach()
        self.log("train/loss", self._latest_loss, prog_bar=self.has_progress_bar, batch_size=len(batch))
        return loss * (len(batch.queries.nodes) / batch.shared.labelled)

    def validation_step(self, batch: EventBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Measure a batch."""
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: EventBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Measure a batch."""
        self._evaluate(batch, self.test_metrics)

    def _evaluate(self, batch: EventBatch, metric: NodeAffinityMetric) -> None:
        logits = self.run_stages(batch)
        self.check_scores(logits)
        if batch.queries is not None:
            metric.update(logits, batch.queries.labels, batch.queries.time)

    def metric_values(self, metrics: NodeAffinityMetric) -> dict[str, Tensor]:
        """Return what was measured on a split, by name."""
        value = metrics.compute()
        return {} if math.isnan(float(value)) else {self.figure: value}
