"""Groups of snapshots on devices, but for those that all ranks compute together (what BLAD's section 8 leaves open)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
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

    def seconds_per_edge(self, task: SnapshotTask, probe: SnapshotBatch) -> float:
        """Return what the exchange of rows takes for an edge of a snapshot, forward and backward; all ranks call it.

        Measured: the rows that a rank receives for the largest snapshot, and the speed of an exchange.

        Args:
            task: Runs one step, which tells the widths of its layers.
            probe: One group, whole.
        """
        (group,) = probe.groups
        snapshot = max(group.snapshots, key=lambda each: len(each.vertices))
        small = sampled_group(group, snapshot, _SAMPLED, snapshot.vertices.device)
        ranks, widths = self._exchange.ranks, ChosenOperators(task.operators)
        before, task.operators = task.operators, widths
        try:
            with torch.no_grad():
                task.step(small.snapshots[0], task.start(small), last=True)
        finally:
            task.operators = before
        _, links = share_of_snapshot(snapshot, self._shared.owner, self._exchange.rank, ranks)
        values = sum(min(pair) for pair in widths.widths.values())
        size = 2 * 4 * values * sum(links.received)  # forward and backward
        rows = torch.zeros(_PROBE, device=snapshot.vertices.device)
        shares = [_PROBE // ranks] * ranks
        seconds = []
        for _ in range(3):
            begin = perf_counter()
            self._exchange.start(rows[: sum(shares)], shares, shares, "probe").wait()
            seconds.append(perf_counter() - begin)
        speed = 4 * _PROBE * (ranks - 1) / ranks / min(seconds) if ranks > 1 else float("inf")
        edges = sum(len(edges.columns) for edges in snapshot.layers[0])
        return size / speed / max(edges, 1)
