"""Edge classification: of which class, or of which classes, is an event?"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchmetrics import Metric, MetricCollection

from lightning_tgnn.metrics import LabelF1, MultiLabelF1
from lightning_tgnn.metrics.classification import update_members
from lightning_tgnn.tasks.event_classification import EventClassification, int_labels, refuse_labels
from lightning_tgnn.types import EventBatch, StreamInfo

_FEWEST_CLASSES = 1000  # that are taken for what they are in however short a stream


class EdgeClassification(EventClassification):
    """Trains a memory-based temporal GNN to tell the class of each event, or with labels [E, L] all of its classes.

    The shape of the stream's labels decides which of the two. The prediction uses the embeddings of both ends just
    before the event, and the event's features. Logs ``train/loss`` and, for ``val`` and ``test`` over all labelled
    events of the split, ``f1_micro``, which is NaN without labelled events.
    """

    figure = "f1_micro"

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
        """Return F1, micro; NaN without a label."""
        if info.multi_label:
            return MultiLabelF1(info.num_classes, average="micro", ignore_index=-1)
        return LabelF1(info.num_classes, average="micro", ignore_index=-1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy, binary with several labels per event, a mean over what is labelled."""
        labelled = labels >= 0
        if labels.ndim == 1:
            total = cross_entropy(logits, int_labels(labels), ignore_index=-1, reduction="sum")
        else:
            losses = binary_cross_entropy_with_logits(logits, labels.clamp(min=0).float(), reduction="none")
            total = (losses * labelled).sum()
        return total / labelled.sum().clamp(min=1)

    def measure(self, metric: Metric | MetricCollection, logits: Tensor, labels: Tensor) -> None:
        """Add a batch to a metric."""
        update_members(metric, logits.argmax(-1) if labels.ndim == 1 else (logits > 0).long(), int_labels(labels))

    def predict_step(self, batch: EventBatch, batch_idx: int) -> dict[str, Tensor]:
        """Return event ids and the probability of each class, [B, C]."""
        logits = self.run_stages(batch)
        assert self.info is not None
        probability = logits.sigmoid() if self.info.multi_label else logits.softmax(-1)
        return {"event": batch.events, "probability": probability}
