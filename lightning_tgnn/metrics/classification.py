"""Metrics of labels that some events have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MultilabelAccuracy, MultilabelF1Score
from torchmetrics.classification.stat_scores import _AbstractStatScores
from torchmetrics.utilities.data import dim_zero_cat

from lightning_tgnn.metrics.functional import binary_auroc, binary_average_precision, check_scores


class _OverLabels(Metric):
    """Keeps the scores and labels of a split; events without a label do not count."""

    higher_is_better = True
    is_differentiable = False
    full_state_update = False

    scores: list[Tensor]
    labels: list[Tensor]

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            scores: Floating [B], probabilities or logits.
            labels: [B], 0 or 1, negative without a label.

        Raises:
            InvalidArgumentError: A score is NaN.
        """
        check_scores("scores", scores)
        # One dtype, as in the empty state of a rank without events: a gather hangs or fails on unequal ones.
        self.scores.append(scores.detach()[labels >= 0].float())
        self.labels.append(labels[labels >= 0].float())

    def compute(self) -> Tensor:
        """Return the figure, float32 []; NaN without an event."""
        if not len(self.scores):
            return torch.tensor(torch.nan, device=self.device)
        return self._over_all(dim_zero_cat(self.scores), dim_zero_cat(self.labels).long())

    @abstractmethod
    def _over_all(self, scores: Tensor, labels: Tensor) -> Tensor: ...


class LabelAUROC(_OverLabels):
    """Area under the ROC curve of binary labels, over all events of a split; NaN where there are not both labels.

    >>> metric = LabelAUROC()
    >>> metric.update(torch.tensor([3.0, 1.0, 9.0, 2.0]), torch.tensor([1, 0, -1, 0]))
    >>> metric.compute()
    tensor(1.)
    """

    def _over_all(self, scores: Tensor, labels: Tensor) -> Tensor:
        return binary_auroc(scores, labels)


class LabelAveragePrecision(_OverLabels):
    """Average precision of binary labels, over all events of a split; NaN without a label of 1.

    >>> metric = LabelAveragePrecision()
    >>> metric.update(torch.tensor([3.0, 1.0, 9.0, 2.0]), torch.tensor([1, 0, -1, 1]))
    >>> metric.compute()
    tensor(1.)
    """

    def _over_all(self, scores: Tensor, labels: Tensor) -> Tensor:
        return binary_average_precision(scores, labels)


class _OfCounts(_AbstractStatScores):
    """Tells a split without labels from one where every decision was wrong, which torchmetrics calls 0 both."""

    tp: Tensor
    fp: Tensor
    tn: Tensor
    fn: Tensor

    def compute(self) -> Tensor:
        """Return the figure, float32 []; NaN without a label."""
        counted = self.tp.sum() + self.fp.sum() + self.tn.sum() + self.fn.sum()
        figure: Tensor = super().compute()  # type: ignore[safe-super]  # of the class beside it
        return figure.where(counted > 0, torch.nan)


class LabelScores(Metric):
    """AP and AUC of each class against all others, averaged over the classes that have both; NaN where none has.

    Args:
        num_classes: C.

    >>> metric = LabelScores(2)
    >>> metric.update(torch.tensor([[0.0, 3.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([1, 0, -1]))
    >>> metric.compute()
    {'ap': tensor(1.), 'auc': tensor(1.)}
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False

    names = "ap", "auc"
    scores: list[Tensor]
    labels: list[Tensor]

    def __init__(self, num_classes: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            logits: Floating [B, C].
            labels: int64 [B], classes, or [B, C] of 0 and 1; negative without a label.
        """
        check_scores("logits", logits)
        wanted = labels >= 0 if labels.ndim == 1 else (labels >= 0).any(1)
        if labels.ndim == 1:  # so that classes can be ordered over all events
            logits = logits.double().log_softmax(1)
        self.scores.append(logits.detach()[wanted].double())
        self.labels.append(labels[wanted].double())

    def compute(self) -> dict[str, Tensor]:
        """Return ``ap`` and ``auc``, float32 []; of two classes the values of class 1."""
        nothing = torch.full((2,), torch.nan, device=self.device)
        if len(self.scores):
            scores, labels = dim_zero_cat(self.scores), dim_zero_cat(self.labels).long()
            each_score = labels if labels.ndim == 2 else one_hot(labels, self.num_classes)
            first = 1 if labels.ndim == 1 and self.num_classes == 2 else 0
            found = []
            for c in range(first, self.num_classes):
                known = each_score[:, c] >= 0
                score, label = scores[known, c], each_score[known, c]
                if 0 < int(label.sum()) < len(label):
                    found.append(torch.stack([f(score, label) for f in (binary_average_precision, binary_auroc)]))
            nothing = torch.stack(found).mean(0) if found else nothing
        return {"ap": nothing[0], "auc": nothing[1]}


class LabelAccuracy(_OfCounts, MulticlassAccuracy):
    """`torchmetrics.classification.MulticlassAccuracy`, NaN without a label."""


class LabelF1(_OfCounts, MulticlassF1Score):
    """`torchmetrics.classification.MulticlassF1Score`, NaN without a label.

    >>> metric = LabelF1(3, average="micro", ignore_index=-1)
    >>> metric.update(torch.tensor([0, 2, 1]), torch.tensor([0, 1, -1]))
    >>> metric.compute()
    tensor(0.5000)
    """


class MultiLabelAccuracy(_OfCounts, MultilabelAccuracy):
    """`torchmetrics.classification.MultilabelAccuracy`, NaN without a label."""


class MultiLabelF1(_OfCounts, MultilabelF1Score):
    """`torchmetrics.classification.MultilabelF1Score`, NaN without a label."""


class MajorityShare(Metric):
    """The share of the labels that one class has: the accuracy of a model that always answers with it.

    Args:
        majority: The class, the most frequent one of training.
    """

    higher_is_better = None
    is_differentiable = False
    full_state_update = False

    names = ("majority",)
    labels: Tensor
    others: Tensor
    other_answers: Tensor

    def __init__(self, majority: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.majority = majority
        for name in ("labels", "others", "other_answers"):
            self.add_state(name, default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, decisions: Tensor, labels: Tensor) -> None:
        """Add a batch of decisions and labels, int64 [B] each, negative without a label."""
        is_labelled = labels >= 0
        self.labels += is_labelled.sum()
        self.others += (is_labelled & (labels != self.majority)).sum()
        self.other_answers += (is_labelled & (decisions != self.majority)).sum()

    def compute(self) -> dict[str, Tensor]:
        """Return ``majority``, float32 [], NaN without a label, and how often another class was the answer."""
        share = (1 - self.others / self.labels).where(self.labels > 0, torch.nan)
        return {"majority": share, "other_answers": self.other_answers}


class _ByClass(_AbstractStatScores):
    """Names F1 of each class."""

    tp: Tensor
    fp: Tensor
    fn: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """What `compute` returns."""
        return tuple(f"f1_{number}" for number in range(len(self.tp)))

    def compute(self) -> dict[str, Tensor]:
        """Return ``f1_0``, ``f1_1`` and so on, float32 []; NaN of a class that no event is of, by label or decision."""
        each_score: Tensor = super().compute()  # type: ignore[safe-super]  # of the class beside it
        known = self.tp + self.fp + self.fn > 0
        return {f"f1_{number}": figure.where(known[number], torch.nan) for number, figure in enumerate(each_score)}


class F1ByClass(_ByClass, MulticlassF1Score):  # type: ignore[misc]
    """`torchmetrics.classification.MulticlassF1Score` of each class, by name; made with ``average=None``."""


class MultiLabelF1ByClass(_ByClass, MultilabelF1Score):  # type: ignore[misc]
    """`torchmetrics.classification.MultilabelF1Score` of each class, by name; made with ``average=None``."""


class ClassMetrics(nn.Module):
    """Accuracy and F1 (macro) of classes; with two classes also AP and AUC of class 1. All are NaN without a label.

    Args:
        num_classes: C.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        f1, accuracy = LabelF1(num_classes, average="macro"), LabelAccuracy(num_classes, average="micro")
        self.decision_metrics = nn.ModuleDict({"accuracy": accuracy, "f1": f1})
        score_metrics = {"ap": LabelAveragePrecision(), "auc": LabelAUROC()} if num_classes == 2 else {}
        self.score_metrics = nn.ModuleDict(score_metrics)

    @property
    def names(self) -> tuple[str, ...]:
        """What `compute` returns."""
        return *self.decision_metrics, *self.score_metrics

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            logits: Floating [B, C].
            labels: int64 [B].
        """
        for metric in self.decision_metrics.values():
            metric.update(logits.argmax(-1), labels)  # type: ignore[operator]
        for metric in self.score_metrics.values():
            metric.update(logits[:, 1] - logits[:, 0], labels)  # type: ignore[operator]

    def compute(self) -> dict[str, Tensor]:
        """Return the metrics by name."""
        metrics = {**self.decision_metrics, **self.score_metrics}
        return {name: metric.compute() for name, metric in metrics.items()}  # type: ignore[operator]

    def reset(self) -> None:
        """Forget all batches."""
        for metric in (*self.decision_metrics.values(), *self.score_metrics.values()):
            metric.reset()  # type: ignore[operator]


def metric_names(metrics: nn.Module, name: str) -> tuple[str, ...]:
    """Return the names of what is measured, without the split.

    Args:
        metrics: One or several of `lightning_tgnn.metrics`, or of torchmetrics.
        name: That of a single number.
    """
    if isinstance(metrics, MetricCollection):
        members = metrics.items(keep_base=True, copy_state=False)
        return tuple(found for key, member in members for found in metric_names(member, key))
    return tuple(getattr(metrics, "names", (name,)))


def update_members(
    metric: Metric | MetricCollection, predictions: Tensor, labels: Tensor, logits: Tensor | None = None
) -> None:
    """Add a batch to a metric, or to each of a collection.

    Only metrics that keep lists hear of a batch without events: those lists have to have the types of the other ranks'
    when they are gathered. Metrics that count may refuse such a batch.

    Args:
        metric: What measures.
        predictions: Decisions or probabilities. torchmetrics takes logits for probabilities where all of a batch
            happen to be in [0, 1].
        labels: [B].
        logits: Given to `LabelAUROC`, `LabelAveragePrecision` and `LabelScores` in place of ``predictions``: two of
            them may have the same probability in 32 bits.
    """
    members: Iterable[Metric] = metric.values(copy_state=False) if isinstance(metric, MetricCollection) else [metric]
    for member in members:
        if len(labels) or any(isinstance(state, list) for state in member.metric_state.values()):
            takes_logits = logits is not None and isinstance(member, LabelAUROC | LabelAveragePrecision | LabelScores)
            member.update(logits if takes_logits else predictions, labels)
