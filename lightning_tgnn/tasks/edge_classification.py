"""Edge classification: of which class, or of which classes, is an event?"""

from __future__ import annotations

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchmetrics import Metric, MetricCollection

from lightning_tgnn.metrics import (
    F1ByClass,
    LabelF1,
    LabelScores,
    MajorityShare,
    MultiLabelF1,
    MultiLabelF1ByClass,
)
from lightning_tgnn.metrics.classification import update_members
from lightning_tgnn.tasks.event_classification import EventClassification, int_labels, refuse_labels
from lightning_tgnn.types import EventBatch, StreamInfo

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
