"""What a task says of the labels of classes that it is trained on, and when it refuses them."""

from __future__ import annotations

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from lightning_tgnn.checks import InvalidArgumentError, refusal

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
    raise InvalidArgumentError(refusal(f"the labels for {task}", requirement, received, cure))


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
