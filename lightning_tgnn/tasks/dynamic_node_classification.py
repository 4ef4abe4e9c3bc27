"""Dynamic node classification: has the source of an event just changed its state?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics import Metric, MetricCollection

from lightning_tgnn.metrics import LabelAUROC
from lightning_tgnn.metrics.classification import update_members
from lightning_tgnn.tasks.event_classification import EventClassification, int_labels, refuse_labels
from lightning_tgnn.types import EventBatch, StreamInfo


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
