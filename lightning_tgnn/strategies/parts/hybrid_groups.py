"""Groups of snapshots on devices, but for those that all ranks compute together (what BLAD's section 8 leaves open)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.vertex_shares import share_of_snapshot
from lightning_tgnn.strategies.parts.group_memory import sampled_group
from lightning_tgnn.strategies.parts.group_pipeline import GroupPipeline, PipelinedGroups
from lightning_tgnn.strategies.parts.operator_choice import ChosenOperators
from lightning_tgnn.strategies.parts.vertex_shares import SharedVertices, VertexShares
from lightning_tgnn.types import NodeStateTask, OrderPart, RowExchange, Run, SnapshotBatch, SnapshotTask

_PROBE = 1 << 16  # values, 256 kB
_SAMPLED = 256  # vertices of a step that tells the widths
_TIMES = 7


@dataclass(frozen=True, eq=False)
class HybridPipeline(OrderPart):
    """Groups that are cut by vertices come first, on all ranks together; the others go through the device's pipeline.

    Args:
        open_groups: See `GroupPipeline`.
        partition: Of the vertices; see `VertexShares`.
    """

    open_groups: int = 2
    partition: str | Path | Tensor = "metis"

    needs: ClassVar[frozenset[str]] = frozenset({"groups"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> HybridGroups:
        """Return the order of this rank."""
        pipeline = GroupPipeline(self.open_groups).open(run, task)
        return HybridGroups(pipeline, VertexShares(self.partition).open(run, task), run.exchange)


class HybridGroups:
    """The order of one rank; see `HybridPipeline`.

    Args:
        pipeline: Of groups on this rank's device.
        shared: Of groups whose vertices are cut.
        exchange: Between all ranks.

    Attributes:
        pipeline: The same.
    """

    def __init__(self, pipeline: PipelinedGroups, shared: SharedVertices, exchange: RowExchange) -> None:
        self.pipeline, self._shared, self._exchange = pipeline, shared, exchange

    def __call__(self, task: SnapshotTask, batch: SnapshotBatch) -> Tensor:
        """Return the loss of this rank's groups, and of its targets of those that are cut."""
        cut = tuple(group for group in batch.groups if group.is_cut)
        together = self._shared(task, SnapshotBatch(cut)) if cut else None
        loss = self.pipeline(task, SnapshotBatch(tuple(group for group in batch.groups if not group.is_cut)))
        return loss if together is None else loss + together

    def cost_of_cutting(self, task: SnapshotTask, probe: SnapshotBatch) -> tuple[float, float, float]:
        """Return three figures of `GroupCuts` as this rank measures them; all ranks call it.

        Measured: this rank's share of the largest snapshot, the rows that it receives, and the time of a large and of a
        small exchange.

        Args:
            task: Runs one step, which tells the widths of its layers.
            probe: One group, whole.

        Returns:
            Seconds for each edge, seconds for each snapshot, and the share as a multiple of an equal one.
        """
        (group,) = probe.groups
        snapshot = max(group.snapshots, key=lambda each: len(each.vertices))
        small = sampled_group(group, snapshot, _SAMPLED)
        ranks, widths = self._exchange.ranks, ChosenOperators(task.operators)
        before, task.operators = task.operators, widths
        try:
            with torch.no_grad():
                task.step(small.snapshots[0], task.start(small), last=True)
        finally:
            task.operators = before
        own, links = share_of_snapshot(snapshot, self._shared.owner, self._exchange.rank, ranks)
        values = sum(min(pair) for pair in widths.widths.values())
        size = 2 * 4 * values * sum(links.received)  # forward and backward
        rows = torch.zeros(_PROBE, device=snapshot.vertices.device)
        few, many = self._seconds(rows[:ranks]), self._seconds(rows[: _PROBE // ranks * ranks])
        speed = 4 * _PROBE * (ranks - 1) / ranks / many if ranks > 1 else float("inf")
        edges, of_own = (sum(len(edges.columns) for edges in one.layers[0]) for one in (snapshot, own))
        exchanges = 2 * (len(widths.widths) + 1)  # of every layer, and of what the head reads
        return size / speed / max(edges, 1), exchanges * few, ranks * of_own / edges if edges else 1.0

    def _seconds(self, rows: Tensor) -> float:
        """Return the median time of an exchange of as many rows with every rank."""
        shares, seconds = [len(rows) // self._exchange.ranks] * self._exchange.ranks, []
        for _ in range(_TIMES):
            begin = perf_counter()
            self._exchange.start(rows, shares, shares, "probe").wait()
            seconds.append(perf_counter() - begin)
        return median(seconds)
