"""The result of `partition` for a stream: a table, and a picture of each partition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lightning_tgnn.algorithms.partitions.demand import DemandSample
from lightning_tgnn.algorithms.partitions.partition_cost import BalanceReport
from lightning_tgnn.algorithms.partitions.reflexbicut import maximum_bound
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.files.whole import new_file

_FITTED_ON = {"metis": "other events", "reflexbicut": "fitted batches"}


@dataclass(frozen=True)
class PartitionResult:
    """A partition, what it costs, and how long it took.

    Attributes:
        owner: int64 [N], the rank of every node.
        seconds: To make it.
        report: What it costs in the batches that it is judged on.
        fitted: The same in those that it could be fitted on.
    """

    owner: Tensor
    seconds: float
    report: BalanceReport
    fitted: BalanceReport

    @property
    def off_rank_share(self) -> float:
        """Share of the rows needed that live on another rank."""
        total = int(self.report.matrix.sum())
        return 1 - int(self.report.saved.sum()) / total if total else 0.0

    @property
    def fullest(self) -> float:
        """Rows of the rank that has most of them, over the mean."""
        ranks = len(self.report.matrix)
        return float(torch.bincount(self.owner).max()) * ranks / len(self.owner)

    def figures(self) -> dict[str, Any]:
        """Return all but the owners as plain values."""
        report = self.report
        return {
            "maximum": report.maximum,
            "maximum_where_fitted": self.fitted.maximum,
            "max_over_mean": report.max_over_mean,
            "rows_over_mean": self.fullest,
            "off_rank_share": self.off_rank_share,
            "seconds": self.seconds,
            "cost": report.cost.tolist(),
            "saved": report.saved.tolist(),
            "matrix": report.matrix.tolist(),
            "residual": report.residual.tolist(),
        }


def print_partitions(
    console: Console,
    results: dict[str, PartitionResult],
    fitted: DemandSample,
    judged: DemandSample,
    total: int,
    folder: Path,
) -> None:
    """Print what partitions cost, what could be reached at best, and how to go on.

    Args:
        console: Where to.
        results: By method.
        fitted: What they could be fitted on.
        judged: What they were measured on.
        total: Global batches of the training split.
        folder: Where their files are.
    """
    best = min(results, key=lambda name: results[name].report.maximum)
    followed = (
        f"reflexbicut follows {fitted.reliability:.0%} of the differences between ranks in the batches fitted: so much"
        " of them is found again in others"
    )
    lines = (
        f"judged on {len(judged.numbers)} of the {total} global batches of the training split, fitted on"
        f" {len(fitted.numbers)} others (numbers in partition.json)"
        + ("; metis takes all events but those judged on" if "metis" in results else ""),
        f"cost: rows of node state that a rank sends and receives, {int(judged.demand.count.sum()):,} needed in all;"
        f" no partition has a maximum below {maximum_bound(judged.demand):,.0f}",
        *([followed] if "reflexbicut" in results else []),
        f"results: {folder}",
        f"to train with one: partition: {folder / best}.pt in the strategy's init_args",
    )
    print_table(_table(results), console)
    for line in lines:
        console.out(line, highlight=False)


def _table(results: dict[str, PartitionResult]) -> Table:
    columns = ("max cost", "where fitted", "max / mean", "off-rank rows", "rows, max / mean", "saved, Eq. 5 (max)")
    table = Table("method", "fitted on", *columns, "seconds")
    for column in table.columns[2:]:
        column.justify = "right"
    for name, result in results.items():
        report = result.report
        saved, balance = f"{int(report.saved.max()):,}", f"{report.max_over_mean:.3f}"
        table.add_row(
            name,
            _FITTED_ON.get(name, "nothing"),
            f"{report.maximum:,}",
            f"{result.fitted.maximum:,}",
            balance,
            f"{result.off_rank_share:.1%}",
            f"{result.fullest:.3f}",
            saved,
            f"{result.seconds:.3f}",
        )
    return table


def save_heat_map(path: Path, matrix: Tensor, title: str, highest: int) -> None:
    """Write a matrix between ranks as a PNG, dark where it is high.

    Args:
        path: The file.
        matrix: int64 [M, M], owners by requesters.
        title: Above the picture.
        highest: The end of the scale, so that pictures can be compared.
    """
    from matplotlib.figure import Figure  # takes a moment and is needed nowhere else
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="requesting rank", ylabel="owning rank")
    image = axes.imshow(matrix.numpy(), cmap="Blues", vmin=0, vmax=max(highest, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, label="rows")
    with new_file(path) as partial:
        figure.savefig(partial, dpi=150, format="png")
