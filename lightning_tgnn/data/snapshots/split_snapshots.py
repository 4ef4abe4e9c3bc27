"""A source of snapshots, read and split once: which groups are trained, validated and tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_fraction
from lightning_tgnn.data.pipeline import Pipeline
from lightning_tgnn.data.snapshots.folder import MappedSnapshots, write_snapshots
from lightning_tgnn.data.snapshots.sequence import SnapshotSequence
from lightning_tgnn.data.snapshots.sources.open_snapshots import SnapshotSource, given_features
from lightning_tgnn.data.snapshots.targets import TargetMaker
from lightning_tgnn.data.snapshots.whole_snapshots import DEGREES, SnapshotForm, WholeSnapshots
from lightning_tgnn.data.standardize import AUTO, Moments, check_standardize, notice_heavy_tails, standardization_of
from lightning_tgnn.data.streams.negatives import NegativeSampler
from lightning_tgnn.types import SnapshotData, SnapshotInfo, Standardization

_FEWEST_CLASSES = 1000  # that are taken for what they are in however small a graph

SPLIT_NAMES = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class SnapshotSplit:
    """The groups of training, validation and test, by the number of their last snapshot.

    Attributes:
        train: Ascending.
        val: Ascending.
        test: Ascending.
        notice: What is to be reported of groups that have no targets and are left out; None where all have.
    """

    train: tuple[int, ...]
    val: tuple[int, ...]
    test: tuple[int, ...]
    notice: str | None

    @classmethod
    def of(cls, targets: TargetMaker, *, val_ratio: float, test_ratio: float) -> SnapshotSplit:
        """Return the split of a sequence.

        A group is in the split of the snapshot that its targets are from; snapshots are split in the order of time.
        Those before a group's targets may be of an earlier split.

        Args:
            targets: Of the groups.
            val_ratio: Share of the snapshots whose targets are for validation.
            test_ratio: The same for test, the last ones.

        Raises:
            InvalidArgumentError: A split would have no snapshot.
            DataError: A split has no group with targets.
        """
        for name, ratio in {"val_ratio": val_ratio, "test_ratio": test_ratio}.items():
            check_fraction(name, ratio, zero_allowed=False, cure="0.15 is usual")
        total = len(targets.snapshots)
        val, test = round(val_ratio * total), round(test_ratio * total)
        train_end, val_end = total - val - test, total - test
        bounds = {"train": (targets.ahead, train_end), "val": (train_end, val_end), "test": (val_end, total)}
        groups: dict[str, tuple[int, ...]] = {}
        notices = []
        for split, (begin, end) in bounds.items():
            if begin >= end or begin < targets.ahead:
                received = f"{total} snapshots with val_ratio={val_ratio} and test_ratio={test_ratio}"
                cure = "cut the source into more snapshots, or change the shares"
                requirement = f"so many that the {SPLIT_NAMES[split]} split has the targets of one"
                raise InvalidArgumentError("snapshots", requirement, received, cure)
            numbers = range(begin - targets.ahead, end - targets.ahead)
            groups[split] = tuple(number for number in numbers if targets.any(number))
            if len(groups[split]) < len(numbers):
                notices.append(f"{len(numbers) - len(groups[split])} of {len(numbers)} of {SPLIT_NAMES[split]}")
            if not groups[split]:
                received = f"{len(numbers)} groups without"
                cure = "take longer windows, or give more labels"
                raise DataError(f"the {SPLIT_NAMES[split]} split", "a group with targets", received, cure)
        notice = f"groups without targets are left out: {', '.join(notices)}" if notices else None
        return cls(**groups, notice=notice)


@dataclass(frozen=True)
class AskedTargets:
    """What is to be predicted, and when; see `lightning_tgnn.SnapshotDataModule`.

    Attributes:
        kind: ``"links"``, ``"edges"`` or ``"vertices"``.
        sampler: Where other destinations of links are drawn from.
        num_negatives: So many in training and in evaluation.
        seed: Of them.
        val_ratio: Share of the validation split.
        test_ratio: Share of the test split.
    """

    kind: str
    sampler: str
    num_negatives: tuple[int, int]
    seed: int
    val_ratio: float
    test_ratio: float


class SplitSnapshots(Pipeline, SnapshotData):
    """Snapshots that are read when their content is asked for, and split by time.

    Args:
        source: Where they come from.
        form: What is made of them; kinds of edges and degrees follow from what is read.
        features: Of the vertices, as `lightning_tgnn.SnapshotDataModule` takes them.
        folder: Where they are written once and mapped from; None keeps them in memory.
        asked: What is to be predicted.
        standardize_features: Whether features are standardized.
    """

    def __init__(
        self,
        source: SnapshotSource,
        form: SnapshotForm,
        features: str | Tensor | Sequence[str] | Sequence[Tensor] | None,
        folder: str | Path | None,
        asked: AskedTargets,
        standardize_features: bool | str = AUTO,
    ) -> None:
        super().__init__()
        self.standardize_features = check_standardize(standardize_features)
        self._source, self._form, self._features, self._asked = source, form, features, asked
        self.folder = None if folder is None else Path(folder).expanduser()

    def prepare_data(self) -> None:
        """Download and convert what is kept in files, unless it is there; on one process of a machine in Lightning."""
        self._source.prepare()
        if self.folder is not None:
            sequence = self._read()
            write_snapshots(self.folder, sequence, self._form_of(sequence))

    @cached_property
    def sequence(self) -> SnapshotSequence:
        """What the source holds."""
        self._make_ready()
        return self._read()

    @cached_property
    def snapshots(self) -> WholeSnapshots:
        """All snapshots, with all their vertices; each is made once."""
        form = self._form_of(self.sequence)
        if self.folder is not None:
            return MappedSnapshots(self.folder, self.sequence, form)
        return WholeSnapshots(self.sequence, form)

    @cached_property
    def info(self) -> SnapshotInfo:
        """What a model has to know of the snapshots."""
        sequence, form, labels = self.sequence, self.snapshots.form, self._labels
        classes = 0 if labels is None else _num_classes(labels)
        return SnapshotInfo(
            num_nodes=sequence.num_nodes,
            num_snapshots=len(sequence),
            feature_dim=self.snapshots.feature_dim,
            num_relations=form.adjacency.num_matrices,
            num_classes=classes,
            fingerprint=sequence.fingerprint,
            class_counts=self._class_counts(classes) if classes > 1 else None,
        )

    def _class_counts(self, classes: int) -> tuple[int, ...]:
        """Return how many targets of training are of each class."""
        counts = torch.zeros(classes, dtype=torch.int64)
        for group in self.split.train:
            labels = self.targets.for_group(group, None).labels
            assert labels is not None
            counts += labels.long().bincount(minlength=classes)
        return tuple(counts.tolist())

    @cached_property
    def targets(self) -> TargetMaker:
        """What the groups are trained and scored on."""
        ends = self.sequence.src, self.sequence.dst, self.sequence.num_nodes
        labels = self._labels
        sampler = (
            NegativeSampler.build(self._asked.sampler, *ends, seed=self._asked.seed, train_events=0)
            if labels is None
            else None
        )
        return TargetMaker(self.snapshots, self._asked.kind, sampler, self._asked.num_negatives)

    @cached_property
    def split(self) -> SnapshotSplit:
        """The groups of each split, by the number of their last snapshot."""
        return SnapshotSplit.of(self.targets, val_ratio=self._asked.val_ratio, test_ratio=self._asked.test_ratio)

    @property
    def _degrees(self) -> str | None:
        """Which features are made of degrees by name."""
        return self._features if isinstance(self._features, str) and self._features in DEGREES else None

    def _read(self) -> SnapshotSequence:
        with self._reading():
            read = self._source.open()
        if self._features is None or self._degrees is not None:
            return read
        return replace(read, features=given_features(self._features))

    def _form_of(self, sequence: SnapshotSequence) -> SnapshotForm:
        adjacency = replace(self._form.adjacency, num_relations=sequence.num_relations)
        degrees = self._degrees or ("degree" if sequence.features is None else None)
        done = None if degrees is not None else self._standardization_of(sequence)
        return replace(self._form, adjacency=adjacency, degrees=degrees, standardization=done)

    def _standardization_of(self, sequence: SnapshotSequence) -> Standardization | None:
        """Return what is done to the features, by their moments in the snapshots of the training share."""
        features = sequence.features
        if self.standardize_features is False or features is None:
            return None
        if isinstance(features, Tensor):
            moments = Moments.from_rows(features)
        else:
            trained = 1 - self._asked.val_ratio - self._asked.test_ratio
            some = features[: max(int(trained * len(features)), 1)]
            moments = Moments.of(some, some[0].shape[1])
        with self._reading():
            notice_heavy_tails(moments, None, "features of vertices")
        return standardization_of(moments, self.standardize_features)

    @property
    def _labels(self) -> Tensor | None:
        """What is predicted beside links.

        Raises:
            InvalidArgumentError: The labels to predict are neither given nor held by the source.
        """
        kind, read = self._asked.kind, self.sequence
        if kind == "links":
            return None
        labels = read.vertex_labels if kind == "vertices" else read.edge_labels
        if labels is None:
            cure = f"give the labels of the {kind}, or predict links"
            raise InvalidArgumentError("labels", f"given for target={kind!r}, or held by the source", None, cure)
        return labels


def _num_classes(labels: Tensor) -> int:
    """Return the classes of labels, as `SnapshotInfo` counts them.

    Raises:
        InvalidArgumentError: There would be more of them than things that have one.
    """
    if labels.is_floating_point():
        return 1
    highest, limit = int(labels.max()) if labels.numel() else -1, max(labels.shape[-1], _FEWEST_CLASSES)
    if highest >= limit:
        cure = "number the classes, for example by torch.unique(labels, return_inverse=True)"
        raise InvalidArgumentError("labels", f"classes numbered from 0, below {limit:,}", highest, cure)
    return max(highest + 1, 2) if highest >= 0 else 0
