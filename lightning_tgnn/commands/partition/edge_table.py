"""What `partition` finds for a static graph and how it tells its user."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from lightning_tgnn.algorithms.partitions.replicas import CutReport
from lightning_tgnn.commands.partition.edges_to_cut import EdgesToCut
from lightning_tgnn.commands.shared.printed import print_table


@dataclass(frozen=True)
class CutResult:
    """A vertex-cut, how long it took, and what it costs.

    Attributes:
        part: int32 [E], the rank of every edge.
        seconds: To make it.
        report: What it costs.
    """

    part: Tensor
    seconds: float
    report: CutReport

    def figures(self) -> dict[str, Any]:
        """Return all but the parts as plain values."""
        return {**asdict(self.report), "seconds": self.seconds}


def print_cuts(console: Console, results: dict[str, CutResult], edges: EdgesToCut, folder: Path) -> None:
    """Print what cuts cost, and how to go on.

    Args:
        console: Where to.
        results: By method.
        edges: What was cut.
        folder: Where the files are.
    """
    best = min(results, key=lambda name: results[name].report.replication_factor)
    going_on = f"to train with one: partition: {folder / best}.pt in the strategy's init_args"
    without = "no partition files: a stream has no features and labels of vertices to train on"
    lines = (
        f"{edges.num_nodes:,} vertices, {len(edges.src):,} edges",
        "replicas: per vertex; edges, vertices: those of the rank with most, over the mean",
        "inner, outer: mirrors whose master is on their host, and on another",
        "crossing: rows between hosts each way, where one rank of a host speaks for a vertex (the strategy's relay)",
        f"results: {folder}",
        going_on if edges.trainable else without,
    )
    print_table(_table(results), console)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _table(results: dict[str, CutResult]) -> Table:
    table = Table("method", "replicas", "edges", "vertices", "inner", "outer", "crossing", "seconds")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, result in results.items():
        report = result.report
        shares = (report.replication_factor, report.edge_imbalance, report.vertex_imbalance)
        counts = (report.inner, report.outer, report.crossing)
        table.add_row(name, *map("{:.3f}".format, shares), *map("{:,}".format, counts), f"{result.seconds:.2f}")
    return table
