"""The base of tasks that predict the label of each event."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int, refusal
from lightning_tgnn.models import MODEL_NAMES, EventClassifier, ModelConfig
from lightning_tgnn.tasks.class_labels import check_classes, notice_classes, refuse_classes
from lightning_tgnn.tasks.memory_task import MemoryTask
from lightning_tgnn.tasks.requirements import at_path, check_left_out, check_model, message_builder
from lightning_tgnn.tasks.returned import check_logits, check_loss
from lightning_tgnn.tasks.training_options import (
    NOT_SAVED,
    LRSchedulerCallable,
    OptimizerCallable,
    ParamGroups,
    TrainingOptions,
)
from lightning_tgnn.types import EventBatch, StreamInfo

BALANCED = "balanced"


class EventClassification(MemoryTask[Metric | MetricCollection]):
    """Trains a memory-based temporal GNN to tell the label of each event as it happens.

    A prediction uses what is known at the event: the embeddings of its ends just before it, and its own features.
    Events with a negative label change the node state but are neither trained on nor measured. Subclasses define what a
    label is.

    For the training of the weights, ``lr`` to ``detect_nan``, see `TrainingOptions`.

    Args:
        model: ``"tgn"``, ``"jodie"``, ``"apan"``, or what builds a `MemoryModel` for a `StreamInfo`, for example its
            class, or the import path of the class (in a recipe also ``class_path`` with ``init_args``). The next six
            arguments and ``message`` configure the built-in models. Leave them out with a model of your own.
        memory_dim: Width of the node memory.
        embedding_dim: Width of the embeddings.
        time_dim: Width of the time encoding.
        num_heads: Attention heads of TGN and APAN.
        mailbox_size: Mails that APAN keeps per node.
        static_dim: Width of the static node memory, a learned vector per node; 0 for none.
        hidden_dim: Width of the classifier.
        dropout: Rate of dropout, in [0, 1), in a built-in model and in the classifier.
        message: What builds the function that makes a message of a mail, called with ``memory_dim`` and the width of
            the edge features: for example the class of a module, which is then called with the memory of a mail's own
            node [P, memory_dim], of the other [P, memory_dim], and the features of the event [P, edge features],
            and returns [P, any width]; None takes all three side by side. Messages are made, with gradient, when a
            node takes its mail in; the time since its memory was written is encoded beside them.
        class_weight: ``"balanced"`` weights the loss of an event by the inverse of how often its class occurs in
            training, so that rare classes count as much as frequent ones; None counts every event once.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    file_may_name: ClassVar[Mapping[str, Collection[str]]] = {"model": MODEL_NAMES, "message": ()}
    draws_negatives = False
    reads_destination = True
    classifier: EventClassifier
    class_weights: Tensor | None

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
        class_weight: str | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_config: Mapping[str, Any] | None = None,
        lr_scaling: str = "none",
        param_groups: ParamGroups | None = None,
        detect_nan: bool = True,
    ) -> None:
        built_by, made_by = at_path("model", model), message_builder(message)
        check_model(built_by, MODEL_NAMES, "a MemoryModel")
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
        if class_weight is not None:
            check_choice("class_weight", class_weight, (BALANCED,))
        left_out: tuple[str, ...] = ()
        if not isinstance(built_by, str):
            model_settings = {name: value for name, value in vars(config).items() if name != "dropout"}
            left_out = check_left_out(EventClassification, **model_settings, message=message)
        training = TrainingOptions(
            lr, weight_decay, optimizer, lr_scheduler, lr_scheduler_config, param_groups, lr_scaling, detect_nan
        )
        super().__init__(built_by, config, training, message=made_by)
        self.save_hyperparameters(ignore=(*NOT_SAVED, *left_out))
        self.hidden_dim, self.class_weight = hidden_dim, class_weight
        self.register_buffer("class_weights", None, persistent=False)
        self._latest_loss: Tensor | None = None  # of a batch with labels

    def check_labels(self, info: StreamInfo) -> None:
        """Refuse a stream without the labels that the task needs.

        Raises:
            InvalidArgumentError: The stream has no labels, or labels of another kind.
        """
        raise NotImplementedError

    def num_outputs(self, info: StreamInfo) -> int:
        """Return the logits per event."""
        raise NotImplementedError

    def make_metric(self, info: StreamInfo) -> Metric | MetricCollection:
        """Return what is measured on a split; a collection names its metrics."""
        raise NotImplementedError

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over the labelled events; 0 where there is none."""
        raise NotImplementedError

    def measure(self, metric: Metric | MetricCollection, logits: Tensor, labels: Tensor) -> None:
        """Add a batch to what is measured."""
        raise NotImplementedError

    def build(self, info: StreamInfo) -> None:
        """Build model and metrics for a stream."""
        self.check_labels(info)
        if info.training_labels == 0:
            cure = "give labels of the events that are trained on, or choose other val_ratio and test_ratio"
            name = f"the labels for {type(self).__name__}"
            raise InvalidArgumentError(refusal(name, "known for some events of the training split", "none", cure))
        self._check_classes(info)
        super().build(info)
        if self.class_weight is not None:
            self.class_weights = self.balanced_weights(info)
        self.val_metrics, self.test_metrics = self.make_metric(info), self.make_metric(info)

    def _check_classes(self, info: StreamInfo) -> None:
        """Refuse training labels that are all the same: there is nothing to tell apart."""
        if not info.multi_label:
            check_classes(type(self).__name__, info.class_counts)
        elif info.class_counts is not None and info.column_counts is not None:
            both = zip(info.class_counts, info.column_counts, strict=True)
            if not any(0 < ones < known for ones, known in both):
                refuse_classes(type(self).__name__, "columns that are all 0 or all 1")

    def on_fit_start(self) -> None:
        """Say how the labels of training are distributed."""
        super().on_fit_start()
        if self.info is not None and not self.info.multi_label:
            notice_classes(type(self).__name__, self.info.class_counts, "event")

    def balanced_weights(self, info: StreamInfo) -> Tensor:
        """Return the weight of each class, float32 [C], in inverse proportion to its training labels, 1 on average.

        Where an event may be of several classes it is the weight of a label of 1, for which a label of 0 has 1.

        Raises:
            InvalidArgumentError: Nobody has counted the labels of the stream.
        """
        if info.class_counts is None or (info.multi_label and info.column_counts is None):
            cure = "leave it out, or make the DataModule of the stream anew, which counts them"
            raise InvalidArgumentError(refusal("class_weight", "left out without counts of classes", BALANCED, cure))
        counts = torch.tensor(info.class_counts, dtype=torch.float64)
        if info.column_counts is not None:
            known = torch.tensor(info.column_counts, dtype=torch.float64)
            return ((known - counts) / counts.clamp(min=1)).float()
        return (counts.sum() / ((counts > 0).sum() * counts.clamp(min=1)) * (counts > 0)).float()

    def build_head(self) -> None:
        """Create the classifier."""
        assert self.info is not None
        width = (2 if self.reads_destination else 1) * self.embedding_dim + self.info.edge_feature_dim
        outputs = self.num_outputs(self.info)
        self.classifier = EventClassifier(width, self.hidden_dim, outputs, self.config.dropout)

    def score(self, embeddings: Tensor, batch: EventBatch) -> Tensor:
        """Return logits, float32 [B, C]."""
        features = batch.edge_features[batch.event_edge] if batch.edge_features.shape[-1] else None
        return self.classify(embeddings, features, len(batch))

    def classify(self, embeddings: Tensor, features: Tensor | None, count: int) -> Tensor:
        """Return logits, float32 [B, C].

        Args:
            embeddings: [>= 2 B, d_emb], of the sources, then of the destinations.
            features: float32 [B, d_edge], of the events; None without any.
            count: B.
        """
        parts = [embeddings[:count]]
        if self.reads_destination:
            parts.append(embeddings[count : 2 * count])
        if features is not None:
            parts.append(features)
        return self.classifier(parts)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, float32 [B, C]; where an event may be of several, of each by itself."""
        raise NotImplementedError

    def run_stages(self, batch: EventBatch) -> Tensor:
        """Score a batch and deliver its mails, in the order of the strategy; return logits [B, C]."""
        self.check_runs_once(batch)
        return check_logits(self.stage_order(self, batch), len(batch))

    def training_step(self, batch: EventBatch, batch_idx: int) -> Tensor:
        """Run the stages in order; mails are delivered after the batch has been scored."""
        logits = self.run_stages(batch)
        if not len(batch):  # a rank's part of a last, short global batch: nothing to learn, but the others wait
            return logits.sum()
        loss, labelled = check_loss(self.loss(logits, batch.labels)), (batch.labels >= 0).sum()
        # The 0 of a batch without labels would be the best loss of all: the one before stands.
        latest = loss.new_tensor(math.nan) if self._latest_loss is None else self._latest_loss.to(loss)
        self._latest_loss = torch.where(labelled > 0, loss, latest).detach()
        self.log("train/loss", self._latest_loss, prog_bar=self.has_progress_bar, batch_size=len(batch))
        return loss * (labelled / batch.shared.labelled)

    def validation_step(self, batch: EventBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Measure a batch."""
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: EventBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Measure a batch."""
        self._evaluate(batch, self.test_metrics)

    def _evaluate(self, batch: EventBatch, metric: Metric | MetricCollection) -> None:
        logits = self.run_stages(batch)
        self.check_scores(logits)
        self.measure(metric, logits, batch.labels)

    def metric_values(self, metrics: Metric | MetricCollection) -> dict[str, Tensor]:
        """Return what was measured on a split, by name."""
        return dict(metrics.compute()) if isinstance(metrics, MetricCollection) else {self.figure: metrics.compute()}


def int_labels(labels: Tensor) -> Tensor:
    """Return labels as int64, and -1 for none."""
    return labels.clamp(min=-1).long()


def refuse_labels(task: EventClassification, requirement: str, info: StreamInfo) -> InvalidArgumentError:
    """Return the refusal of a stream's labels."""
    described = f"{info.num_classes} {'labels per event' if info.multi_label else 'classes'}"
    unfit = "no labels" if info.training_labels is None else "fractions, or numbers that name no class"
    received = described if info.num_classes else unfit
    cure = "give the stream such labels, for a CSV by columns={'label': ...}, or take another task"
    return InvalidArgumentError(refusal(f"the labels for {type(task).__name__}", requirement, received, cure))
