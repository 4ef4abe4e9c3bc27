"""Counts rows that ranks need of each other, for each split of batches, on batches that no partition has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from lightning_tgnn.algorithms.partitions.partition_cost import balance_report
from lightning_tgnn.algorithms.partitions.reflexbicut import reflexbicut
from lightning_tgnn.algorithms.partitions.simple import interval_partition
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.types.schedule import DESTINATION, TIME


class CountedRows(NamedTuple):
    """What is read and written on other ranks in some global batches.

    Attributes:
        batches: How many.
        rows: Of all ranks, with the partition that is fitted.
        gain: By which share the busiest rank moves fewer rows than with the partition by intervals.
    """

    batches: int
    rows: int
    gain: float


@dataclass(frozen=True)
class RemoteRows:
    """What ranks need of each other, by time and by destination.

    Attributes:
        held_out: By split, in batches that the partition was not fitted on.
        fitted: Likewise in those that it was.
    """

    held_out: dict[str, CountedRows]
    fitted: dict[str, CountedRows]

    @property
    def share(self) -> float:
        """Rows that travel where batches are split by destination, over those that do where they are split by time."""
        return _share(self.held_out)

    def said(self) -> list[str]:
        """Say how many they are, and what the partition gains."""
        first, second = self.held_out[TIME], self.held_out[DESTINATION]
        gains = ", ".join(
            f"{self.held_out[split].gain:.1%} ({self.fitted[split].gain:.1%}) by {split}" for split in self.held_out
        )
        return [
            f"with split_batch='destination' ranks of sven need {changed(self.share)} rows of each other than by time: "
            f"{second.rows:,} against {first.rows:,} in {first.batches} global batches that no partition was fitted on "
            f"({changed(_share(self.fitted))} in the {self.fitted[TIME].batches} others)",
            f"its partition lets the busiest rank move fewer rows than intervals do, by {gains}, in brackets where it "
            "was fitted",
        ]

    def metrics(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        kinds = {"held_out": self.held_out, "fitted": self.fitted}
        return {kind: {split: one._asdict() for split, one in of.items()} for kind, of in kinds.items()}


def changed(share: float) -> str:
    """Say what a share of rows is beside all of them.

    >>> changed(0.786), changed(1.02)
    ('21.4% fewer', '2.0% more')
    """
    return f"{abs(1 - share):.1%} {'more' if share > 1 else 'fewer'}"


def remote_rows(data: TemporalDataModule, ranks: int, batch_size: int) -> RemoteRows | None:
    """Count the rows that ranks would need of each other, with the partition that `SvenStrategy` makes.

    Args:
        data: What is trained on.
        ranks: M.
        batch_size: Events per rank and turn.

    Returns:
        The counts; None for one rank, and where there is but one global batch.

    Raises:
        InvalidArgumentError: There are more ranks than events.
    """
    if ranks == 1:
        return None
    data.batch_size = batch_size
    held_out: dict[str, CountedRows] = {}
    others: dict[str, CountedRows] = {}
    for split in (TIME, DESTINATION):
        fitted, judged = data.demand(ranks, DataParallel(split))
        if judged is None:
            return None
        owner = reflexbicut(fitted.demand, reliability=fitted.reliability)
        simple = interval_partition(fitted.demand.num_nodes, ranks)
        for sample, kept in ((judged, held_out), (fitted, others)):
            found, beside = balance_report(sample.demand, owner), balance_report(sample.demand, simple)
            rows = int(found.matrix.sum() - found.saved.sum())
            kept[split] = CountedRows(len(sample.numbers), rows, 1 - found.maximum / max(beside.maximum, 1))
    return RemoteRows(held_out, others)


def _share(counted: dict[str, CountedRows]) -> float:
    return counted[DESTINATION].rows / max(counted[TIME].rows, 1)
