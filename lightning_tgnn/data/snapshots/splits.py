"""Which groups of snapshots are trained, validated and tested on."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_tgnn.checks import DataError, InvalidArgumentError, check_fraction, refusal
from lightning_tgnn.data.snapshots.targets import TargetMaker

SPLIT_NAMES = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class SnapshotSplit:
    """The groups of training, validation and test, by the number of their last snapshot.

    Attributes:
        train: Ascending.
        val: Ascending.
        test: Ascending.
        notice: What is to be told of groups that have no targets and are left out; None where all have.
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
            DataError: It has no group with targets.
        """
        for name, ratio in {"val_ratio": val_ratio, "test_ratio": test_ratio}.items():
            check_fraction(name, ratio, zero_allowed=False, cure="0.15 is usual")
        total = len(targets.snapshots)
        val, test = round(val_ratio * total), round(test_ratio * total)
        train_end, val_end = total - val - test, total - test
        bounds = {"train": (targets.ahead, train_end), "val": (train_end, val_end), "test": (val_end, total)}
        groups: dict[str, tuple[int, ...]] = {}
        told = []
        for split, (begin, end) in bounds.items():
            if begin >= end or begin < targets.ahead:
                received = f"{total} snapshots with val_ratio={val_ratio} and test_ratio={test_ratio}"
                cure = "cut the source into more snapshots, or change the shares"
                requirement = f"so many that the {SPLIT_NAMES[split]} split has the targets of one"
                raise InvalidArgumentError(refusal("snapshots", requirement, received, cure))
            numbers = range(begin - targets.ahead, end - targets.ahead)
            groups[split] = tuple(number for number in numbers if targets.any(number))
            if len(groups[split]) < len(numbers):
                told.append(f"{len(numbers) - len(groups[split])} of {len(numbers)} of {SPLIT_NAMES[split]}")
            if not groups[split]:
                received = f"{len(numbers)} groups without"
                cure = "take longer windows, or give more labels"
                raise DataError(refusal(f"the {SPLIT_NAMES[split]} split", "a group with targets", received, cure))
        notice = f"groups without targets are left out: {', '.join(told)}" if told else None
        return cls(**groups, notice=notice)
