"""Labels on snapshots: classes of the next snapshot's edges, classes and numbers of vertices."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric, MetricCollection

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.metrics import ClassMetrics
from lightning_tgnn.metrics.classification import update_members
from lightning_tgnn.models import EventClassifier
from lightning_tgnn.tasks.event_classification import check_classes, notice_classes
from lightning_tgnn.tasks.snapshot_module import SnapshotModule, SplitMetrics
from lightning_tgnn.types import SnapshotBatch, SnapshotGroup, SnapshotInfo


class _LabelledTargets(SnapshotModule):
    """A head over the embeddings at the ends of a target.

    Attributes:
        ends: The names of the rows of a target.
        target: What the DataModule has to make.
    """

    ends: ClassVar[tuple[str, ...]]
    target: ClassVar[str]
    head: EventClassifier

    @abstractmethod
    def num_outputs(self, info: SnapshotInfo) -> int:
        """Return the width of an answer.

        Raises:
            InvalidArgumentError: The snapshots have labels of another kind.
        """

    @abstractmethod
    def make_metrics(self, info: SnapshotInfo) -> SplitMetrics:
        """Return what measures answers."""

    @abstractmethod
    def losses(self, answers: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the losses of answers [q, C]."""

    def build_head(self, info: SnapshotInfo, embedding_dim: int) -> None:
        """Create the head and the metrics."""
        width = len(self.ends) * embedding_dim
        self.head = EventClassifier(width, self.config.hidden_dim, self.num_outputs(info), dropout=0.0)
        self.val_metrics, self.test_metrics = self.make_metrics(info), self.make_metrics(info)

    def answer(self, embeddings: Tensor, group: SnapshotGroup) -> tuple[Tensor, Tensor]:
        """Return answers [q, C] and labels [q] of a group's targets."""
        rows, labels = group.targets.rows, group.targets.labels
        if labels is None or rows.shape[1] != len(self.ends):
            received = f"rows {list(rows.shape)} and labels {None if labels is None else list(labels.shape)}"
            requirement = f"[q, {len(self.ends)}] with labels [q]"
            cure = f"set SnapshotDataModule(target={self.target!r}, ...)"
            raise InvalidArgumentError("the targets of a group", requirement, received, cure)
        return self.head([embeddings[rows].flatten(1)]), labels

    def loss(self, embeddings: Tensor, group: SnapshotGroup) -> Tensor:
        """Return the mean loss over a group's targets; 0, with a gradient of 0, if there are none."""
        with self.stages("score"):
            answers, labels = self.answer(embeddings, group)
            return self.losses(answers, labels) / max(len(labels), 1)

    def measure(self, metrics: SplitMetrics, embeddings: Tensor, group: SnapshotGroup) -> None:
        """Add the answers of a group to metrics."""
        answers, labels = self.answer(embeddings, group)
        self.check_scores(answers)
        predictions = self._for_metrics(answers, metrics)
        if isinstance(metrics, Metric | MetricCollection):
            update_members(metrics, predictions, labels)
        elif len(labels):
            metrics.update(predictions, labels)

    def _for_metrics(self, answers: Tensor, metrics: SplitMetrics) -> Tensor:
        """Return what metrics take of answers [q, C]."""
        return answers

    def _ends_of(self, group: SnapshotGroup) -> dict[str, Tensor]:
        return {name: group.nodes[group.targets.rows[:, place]] for place, name in enumerate(self.ends)}


class _ClassifiedTargets(_LabelledTargets):
    figure = "f1"

    def build(self, info: SnapshotInfo) -> None:
        """Build model, head and metrics for a sequence of snapshots.

        Raises:
            InvalidArgumentError: The task or the model cannot be trained on them, or all training labels are of one
                class.
        """
        check_classes(type(self).__name__, info.class_counts)
        super().build(info)

    def on_fit_start(self) -> None:
        """Say how the labels of training are distributed."""
        super().on_fit_start()
        assert self.info is not None
        notice_classes(type(self).__name__, self.info.class_counts, "target")

    def num_outputs(self, info: SnapshotInfo) -> int:
        """Return C."""
        if info.num_classes < 2:
            requirement = "classes numbered from 0, at least two"
            received = "real numbers" if info.num_classes else "none"
            cure = f"give SnapshotDataModule(target={self.target!r}, ...) such labels, or take another task"
            raise InvalidArgumentError(f"the labels for {type(self).__name__}", requirement, received, cure)
        return info.num_classes

    def make_metrics(self, info: SnapshotInfo) -> SplitMetrics:
        """Return accuracy, F1, and with two classes AP and AUC."""
        return ClassMetrics(info.num_classes)

    def losses(self, answers: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy."""
        return cross_entropy(answers, labels, reduction="sum")

    def _for_metrics(self, answers: Tensor, metrics: SplitMetrics) -> Tensor:
        """Return logits for the task's own metrics, and for others probabilities."""
        return answers if isinstance(metrics, ClassMetrics) else answers.softmax(-1)

    def predict_step(self, batch: SnapshotBatch, batch_idx: int, dataloader_idx: int = 0) -> list[dict[str, Tensor]]:
        """Return for every group the vertices of its targets, and the probability of each class, [q, C]."""
        answers = ((group, self.answer(self.embed_group(group), group)[0]) for group in batch.groups)
        return [{**self._ends_of(group), "probability": logits.softmax(-1)} for group, logits in answers]


class SnapshotEdgeClassification(_ClassifiedTargets):
    """Trains a model to tell the classes of the next snapshot's edges, such as the sign of a rating.

    The prediction uses the embeddings of both ends after the group's last snapshot. The loss is the cross entropy. Logs
    ``train/loss``, and for ``val`` and ``test`` over all labelled edges of the split ``accuracy`` and ``f1`` (macro);
    with two classes also ``ap`` and ``auc`` of class 1.

    All arguments are described in `SnapshotModule`; the DataModule needs ``target="edges"``.
    """

    ends = ("source", "destination")
    target = "edges"


class SnapshotNodeClassification(_ClassifiedTargets):
    """Trains a model to tell the classes of vertices at the last snapshot of a group.

    The loss is the cross entropy. Logs ``train/loss``, and for ``val`` and ``test`` over all labelled vertices of the
    split's snapshots ``accuracy`` and ``f1`` (macro); with two classes also ``ap`` and ``auc`` of class 1.

    All arguments are described in `SnapshotModule`; the DataModule needs ``target="vertices"``.
    """

    ends = ("node",)
    target = "vertices"


class SnapshotNodeRegression(_LabelledTargets):
    """Trains a model to tell a number of every vertex, such as the traffic at a sensor in the next hour.

    The loss is the mean squared error. Logs ``train/loss``, and for ``val`` and ``test`` over all labelled vertices of
    the split's snapshots ``mae`` and ``rmse``.

    All arguments are described in `SnapshotModule`; the DataModule needs ``target="vertices"``.
    """

    figure = "rmse"
    ends = ("node",)
    target = "vertices"

    def num_outputs(self, info: SnapshotInfo) -> int:
        """Return 1."""
        if info.num_classes != 1:
            received = f"{info.num_classes} classes" if info.num_classes else "none"
            cure = f"give SnapshotDataModule(target={self.target!r}, ...) labels of float32, or take another task"
            raise InvalidArgumentError(f"the labels for {type(self).__name__}", "real numbers", received, cure)
        return 1

    def make_metrics(self, info: SnapshotInfo) -> SplitMetrics:
        """Return the mean absolute error and the root of the mean squared error."""
        return MetricCollection(
            {"mae": MeanAbsoluteError(), "rmse": MeanSquaredError(squared=False)}, compute_groups=False
        )

    def losses(self, answers: Tensor, labels: Tensor) -> Tensor:
        """Return the squared error."""
        return mse_loss(answers[:, 0], labels, reduction="sum")

    def _for_metrics(self, answers: Tensor, metrics: SplitMetrics) -> Tensor:
        """Return the numbers, [q]."""
        return answers[:, 0]

    def predict_step(self, batch: SnapshotBatch, batch_idx: int, dataloader_idx: int = 0) -> list[dict[str, Tensor]]:
        """Return for every group the vertices of its targets, and the number of each, [q]."""
        answers = ((group, self.answer(self.embed_group(group), group)[0]) for group in batch.groups)
        return [{**self._ends_of(group), "value": values[:, 0]} for group, values in answers]
