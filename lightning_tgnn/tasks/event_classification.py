"""Tasks that predict the label of each event: classes of edges, and changes of its source's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchmetrics import Metric, MetricCollection

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.metrics import (
    F1ByClass,
    LabelAUROC,
    LabelF1,
    LabelScores,
    MajorityShare,
    MultiLabelF1,
    MultiLabelF1ByClass,
)
from lightning_tgnn.metrics.classification import update_members
from lightning_tgnn.models import NODE_MODEL_NAMES, EventClassifier, ModelConfig
from lightning_tgnn.tasks.memory_task import MemoryTask
from lightning_tgnn.tasks.requirements import at_path, check_left_out, check_model, message_builder
from lightning_tgnn.tasks.training_options import (
    NOT_SAVED,
    LRSchedulerCallable,
    OptimizerCallable,
    ParamGroups,
    TrainingOptions,
)
from lightning_tgnn.tasks.value_checks import check_logits, check_loss
from lightning_tgnn.types import EventBatch, StreamInfo

_FEW = 10


def check_classes(task: str, counts: tuple[int, ...] | None) -> None:
    """Refuse training labels of fewer than two classes: there is nothing to tell apart.

    Args:
        task: Its name.
        counts: Training labels of each class; None if unknown.

    Raises:
        InvalidArgumentError: All training labels are of one class, or there are none.
    """
    if counts is None or sum(map(bool, counts)) > 1:
        return
    found = [str(number) for number, count in enumerate(counts) if count]
    refuse_classes(task, f"only class {found[0]}" if found else "none")


def refuse_classes(task: str, received: str) -> None:
    """Raise what says that training labels tell nothing apart.

    Raises:
        InvalidArgumentError: Always.
    """
    cure = "give labels of both kinds; a negative label stands for none: where classes are -1 and 1, write 0 and 1"
    requirement = "of at least two classes in the training split"
    raise InvalidArgumentError(f"the labels for {task}", requirement, received, cure)


def notice_classes(task: str, counts: tuple[int, ...] | None, things: str) -> None:
    """Say how training labels are distributed, and which classes have none.

    Args:
        task: Its name.
        counts: Training labels of each class; None if unknown.
        things: What has a label.
    """
    if counts is None or not sum(counts):
        return
    most = max(range(len(counts)), key=counts.__getitem__)
    rank_zero_info(
        f"{task}: {sum(counts):,} training labels of {sum(map(bool, counts))} classes; the most frequent, class"
        f" {most}, has {counts[most] / sum(counts):.1%}"
    )
    missing = [str(number) for number, count in enumerate(counts) if not count]
    if missing:
        some = ", ".join(missing[:_FEW]) + (" ..." if len(missing) > _FEW else "")
        rank_zero_warn(f"{task}: no training {things} is of class {some}; classes are numbered from 0")


BALANCED = "balanced"


class EventClassification(MemoryTask[Metric | MetricCollection]):
    """Trains a memory-based temporal GNN to tell the label of each event as it happens.

    A prediction uses what is known at the event: the embeddings of its ends just before it, and its own features.
    Events with a negative label change the node state but are neither trained on nor measured. Subclasses define what a
    label is.

    For the training of the weights, ``lr`` to ``capture``, see `TrainingOptions`.

    Args:
        model: ``"tgn"``, ``"jodie"``, ``"apan"``, ``"tgat"``, ``"graphmixer"``, or what builds a `MemoryModel` or
            `StreamModel` for a `StreamInfo`, for example its class, or the import path of the class (in a recipe also
            ``class_path`` with ``init_args``). The next six arguments and ``message`` configure models given by name,
            as far as these have such a part. Leave them out with a model of your own.
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

    file_may_name: ClassVar[Mapping[str, Collection[str]]] = {"model": NODE_MODEL_NAMES, "message": ()}
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
        if class_weight is not None:
            check_choice("class_weight", class_weight, (BALANCED,))
        left_out: tuple[str, ...] = ()
        if not isinstance(built_by, str):
            model_settings = {name: value for name, value in vars(config).items() if name != "dropout"}
            left_out = check_left_out(EventClassification, **model_settings, message=message)
        training = TrainingOptions.among(locals())
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
            raise InvalidArgumentError(name, "known for some events of the training split", "none", cure)
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
            raise InvalidArgumentError("class_weight", "left out without counts of classes", BALANCED, cure)
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
        return check_logits(self.stage_capture.order(self, batch)(self, batch), len(batch))

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
    return InvalidArgumentError(f"the labels for {type(task).__name__}", requirement, received, cure)


_FEWEST_CLASSES = 1000  # that are taken for what they are in however short a stream
_FEW_CLASSES = 20  # of which each has metrics of its own


class EdgeClassification(EventClassification):
    """Trains a memory-based temporal GNN to tell the class of each event, or with labels [E, L] all of its classes.

    The shape of the stream's labels decides which of the two. The prediction uses the embeddings of both ends just
    before the event, and the event's features. Logs ``train/loss`` and, for ``val`` and ``test`` over all labelled
    events of the split, ``f1_micro``, which is NaN without labelled events; for up to 20 classes also ``ap`` and
    ``auc``, of two classes for class 1, of more the mean over the classes, and ``f1_0``, ``f1_1`` and so on, F1 of
    each class. With a class per event, ``majority`` is the share of the class that is most frequent in training: what
    ``f1_micro`` is without a model. A test warns of a model that always answers with this class.
    """

    figure = "f1_micro"
    _always_majority: float | None = None

    def check_labels(self, info: StreamInfo) -> None:
        """Refuse a stream without classes.

        Raises:
            InvalidArgumentError: The stream has no classes, or numbers them with large gaps.
        """
        if info.num_classes < (2 if info.multi_label else 1):
            requirement = "integers from 0, one per event, or rows of 0 and 1, at least two, negative for none"
            raise refuse_labels(self, requirement, info)
        limit = max(info.num_events, _FEWEST_CLASSES)
        if info.num_classes > limit and not info.multi_label:
            raise refuse_labels(self, f"classes numbered from 0 without gaps, below {limit}", info)

    def num_outputs(self, info: StreamInfo) -> int:
        """Return the number of classes."""
        return info.num_classes

    def make_metric(self, info: StreamInfo) -> Metric | MetricCollection:
        """Return F1 (micro), NaN without a label, and beside it what tells the classes apart."""
        classes = info.num_classes
        micro, by_class = (MultiLabelF1, MultiLabelF1ByClass) if info.multi_label else (LabelF1, F1ByClass)
        metrics: dict[str, Metric | MetricCollection] = {"f1_micro": micro(classes, average="micro", ignore_index=-1)}
        if classes <= _FEW_CLASSES:
            metrics["scores"] = LabelScores(classes)
            metrics["by_class"] = by_class(classes, average=None, ignore_index=-1)
        if not info.multi_label and info.class_counts is not None:
            counts = info.class_counts
            metrics["majority"] = MajorityShare(max(range(classes), key=counts.__getitem__))
        return MetricCollection(metrics, compute_groups=False)

    def metric_values(self, metrics: Metric | MetricCollection) -> dict[str, Tensor]:
        """Return what was measured on a split, by name; note a model that always gives the same answer."""
        values = super().metric_values(metrics)
        other_answers, share = values.pop("other_answers", None), values.get("majority")
        is_one = share is not None and bool(share > 0) and other_answers is not None and not int(other_answers)
        self._always_majority = float(share) if share is not None and is_one else None
        return values

    def on_test_epoch_end(self) -> None:
        """Log what was measured; warn of a model that always gives the same answer."""
        super().on_test_epoch_end()
        if self._always_majority is not None:
            rank_zero_warn(
                f"f1_micro is {self._always_majority:.4f}, the share of the class that is most frequent in training:"
                " every event was taken for that class; train longer, with class_weight='balanced' or another rate, or"
                " look at ap and auc"
            )

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy, binary with several labels per event, a mean over what is labelled."""
        labelled = labels >= 0
        if labels.ndim == 1:
            total = cross_entropy(
                logits, int_labels(labels), ignore_index=-1, reduction="sum", weight=self.class_weights
            )
        else:
            losses = binary_cross_entropy_with_logits(
                logits, labels.clamp(min=0).float(), reduction="none", pos_weight=self.class_weights
            )
            total = (losses * labelled).sum()
        return total / labelled.sum().clamp(min=1)

    def measure(self, metric: Metric | MetricCollection, logits: Tensor, labels: Tensor) -> None:
        """Add a batch to a metric."""
        decisions = logits.argmax(-1) if labels.ndim == 1 else (logits > 0).long()
        update_members(metric, decisions, int_labels(labels), logits)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, [B, C]."""
        assert self.info is not None
        return logits.sigmoid() if self.info.multi_label else logits.softmax(-1)

    def predict_step(self, batch: EventBatch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Return event ids and the probability of each class, [B, C]."""
        return {"event": batch.events, "probability": self.probabilities(self.run_stages(batch))}


class DynamicNodeClassification(EventClassification):
    """Trains a memory-based temporal GNN to tell the state label that an event gives its source (JODIE, section 4.2).

    Labels are 0 or 1, such as whether a user is banned after an edit. The prediction uses the embedding of the source
    just before the event, and the event's features. Logs ``train/loss`` and, for ``val`` and ``test`` over all labelled
    events of the split, ``auc``.
    """

    reads_destination = False
    figure = "auc"

    def check_labels(self, info: StreamInfo) -> None:
        """Refuse a stream without a label of 0 or 1 per event.

        Raises:
            InvalidArgumentError: The stream has no labels, or labels of another kind.
        """
        if info.num_classes != 2 or info.multi_label:
            raise refuse_labels(self, "0 or 1, one per event, negative for none", info)

    def num_outputs(self, info: StreamInfo) -> int:
        """Return 1."""
        return 1

    def make_metric(self, info: StreamInfo) -> Metric | MetricCollection:
        """Return the AUC."""
        return LabelAUROC()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the binary cross entropy, a mean over the labelled events."""
        labelled = labels >= 0
        losses = binary_cross_entropy_with_logits(logits[:, 0], labels.clamp(min=0).float(), reduction="none")
        if self.class_weights is not None:
            losses = losses * self.class_weights[int_labels(labels).clamp(min=0)]
        return (losses * labelled).sum() / labelled.sum().clamp(min=1)

    def measure(self, metric: Metric | MetricCollection, logits: Tensor, labels: Tensor) -> None:
        """Add a batch to a metric."""
        update_members(metric, logits[:, 0].sigmoid(), int_labels(labels), logits[:, 0])

    def predict_step(self, batch: EventBatch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Return event ids and the probability of label 1."""
        return {"event": batch.events, "probability": self.probabilities(self.run_stages(batch))[:, 1]}

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities of label 0 and label 1, [B, 2]."""
        return torch.cat([-logits, logits], dim=1).sigmoid()
