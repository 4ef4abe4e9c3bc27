"""Groups of snapshots on devices, but for those that all ranks compute together (what BLAD's section 8 leaves open)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_tgnn.algorithms.partitions.vertex_shares import share_of_snapshot, share_of_targets
from lightning_tgnn.strategies.parts.group_memory import random_state_kept, sampled_group, without_logs
from lightning_tgnn.strategies.parts.group_pipeline import GroupPipeline, PipelinedGroups
from lightning_tgnn.strategies.parts.operator_choice import ChosenOperators
from lightning_tgnn.strategies.parts.vertex_shares import SharedVertices, VertexShares
from lightning_tgnn.strategies.stage_recorder import wait_for_device
from lightning_tgnn.types import (
    NodeStateTask,
    Operators,
    OrderPart,
    RowExchange,
    Run,
    Snapshot,
    SnapshotBatch,
    SnapshotTask,
)

_PARTITION = "partition"  # in a checkpoint
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
    offers: ClassVar[frozenset[str]] = frozenset({"cut groups"})

    def open(self, run: Run, task: NodeStateTask[object] | None) -> HybridGroups:
        """Return the order of this rank."""
        pipeline = GroupPipeline(self.open_groups).open(run, task)
        return HybridGroups(pipeline, VertexShares(self.partition).open(run, task), run.exchange)


class KeptPartition:
    """Where METIS has had the vertices, for runs that go on."""

    def __init__(self) -> None:
        self._held: tuple[int, Tensor] | None = None

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` was; without it, keep what there is."""
        if (partition := saved.get(_PARTITION)) is not None:
            self._held = int(partition[0]), partition[1]

    def give(self, task: SnapshotTask | None, ranks: int) -> None:
        """Have the order of a task go on with it, on as many ranks."""
        shared = _shared_of(task)
        if shared is not None and self._held is not None and self._held[0] == ranks:
            shared.go_on_with(self._held[1])

    def note(self, task: SnapshotTask | None, ranks: int) -> None:
        """Take down where the order of a task has them, on as many ranks, if METIS has found it."""
        shared = _shared_of(task)
        if shared is not None and (found := shared.found) is not None:
            self._held = ranks, found.to(torch.uint8 if ranks <= 256 else torch.int32).cpu()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold, if there is anything: M and the rank of every vertex, [N]."""
        return {} if self._held is None else {_PARTITION: [*self._held]}


def _shared_of(task: SnapshotTask | None) -> SharedVertices | None:
    order = None if task is None else task.group_order
    order = order.shared if isinstance(order, HybridGroups) else order
    return order if isinstance(order, SharedVertices) else None


class HybridGroups:
    """The order of one rank; see `HybridPipeline`.

    Args:
        pipeline: Of groups on this rank's device.
        shared: Of groups whose vertices are cut.
        exchange: Between all ranks.

    Attributes:
        pipeline: The same.
        shared: The same.
    """

    def __init__(self, pipeline: PipelinedGroups, shared: SharedVertices, exchange: RowExchange) -> None:
        self.pipeline, self.shared, self._exchange = pipeline, shared, exchange

    def __call__(self, task: SnapshotTask, batch: SnapshotBatch) -> Tensor:
        """Return the loss of this rank's groups, and of its targets of those that are cut."""
        cut = tuple(group for group in batch.groups if group.is_cut)
        together = self.shared(task, SnapshotBatch(cut)) if cut else None
        loss = self.pipeline(task, SnapshotBatch(tuple(group for group in batch.groups if not group.is_cut)))
        return loss if together is None else loss + together

    def cost_of_cutting(self, task: SnapshotTask, probe: SnapshotBatch) -> tuple[float, float, float]:
        """Return three figures of `GroupCuts` as this rank measures them; all ranks call it.

        Measured: this rank's share of the largest snapshot, the rows that it receives, and the time of a large and of a
        small exchange.

        Args:
            task: Runs two steps, which tell what it exchanges for a snapshot.
            probe: One group, whole.

        Returns:
            Seconds for each edge, seconds for each snapshot, and the share as a multiple of an equal one.
        """
        (group,) = probe.groups
        snapshot = max(group.snapshots, key=lambda each: len(each.vertices))
        device = snapshot.vertices.device
        assert isinstance(task, torch.nn.Module)
        before, ranks = task.operators, self._exchange.ranks
        # Cut groups are not computed in the orders that are chosen for whole ones, see `SharedVertices`.
        plain = before.inner if isinstance(before, ChosenOperators) else before
        counted = {last: _CountedOperators(plain) for last in (False, True)}
        small = sampled_group(group, snapshot, _SAMPLED, device=device)
        embeddings = None
        try:
            with torch.enable_grad(), random_state_kept(device), without_logs(task):
                for last, operators in counted.items():
                    task.operators = operators
                    _, embeddings = task.step(small.snapshots[0], task.start(small), last=last)
        finally:
            task.operators = before
        own, links = share_of_snapshot(snapshot, self.shared.owner, self._exchange.rank, ranks)
        inner, ends = (counted[last] for last in (False, True))

        def each(of: Callable[[_CountedOperators], float]) -> float:
            """Return the mean over the snapshots of a group, of which the last is another."""
            return of(inner) + (of(ends) - of(inner)) / len(group.snapshots)

        assert embeddings is not None  # of the last snapshot, which a head reads
        _, _, scored = share_of_targets(group, self.shared.owner, self._exchange.rank, ranks)
        elsewhere = len(snapshot.vertices) - len(own.vertices)
        size = 4 * (each(lambda of: of.neighbors) * sum(links.received) + each(lambda of: of.everyones) * elsewhere)
        size += 8 * embeddings.shape[1] * sum(scored.received) / len(group.snapshots)  # rows, and their gradient
        rows = torch.zeros(_PROBE, device=device)
        few, many = self._seconds(rows[:ranks]), self._seconds(rows[: _PROBE // ranks * ranks])
        seconds_per_byte = max(many - few, 0.0) / max(4 * _PROBE * (ranks - 1) / ranks, 1)
        edges, of_own = (sum(len(edges.columns) for edges in one.layers[0]) for one in (snapshot, own))
        exchanges = each(lambda of: of.exchanges) + 2 / len(group.snapshots)  # of what the head reads, too
        return (
            size * seconds_per_byte / max(edges, 1),
            exchanges * few if ranks > 1 else 0.0,
            ranks * of_own / edges if edges else 1.0,
        )

    def _seconds(self, rows: Tensor) -> float:
        """Return the median time of an exchange of as many rows with every rank."""
        shares, seconds = [len(rows) // self._exchange.ranks] * self._exchange.ranks, []
        for _ in range(_TIMES):
            wait_for_device(rows.device)
            begin = perf_counter()
            self._exchange.start(rows, shares, shares, "probe").wait()
            wait_for_device(rows.device)
            seconds.append(perf_counter() - begin)
        return median(seconds)


class _CountedOperators(ChosenOperators):
    """Counts what the operators of a snapshot exchange where its vertices are cut; see `SharedOperators`.

    Attributes:
        neighbors: Numbers of a row that goes to those who have an edge from it, forward and backward.
        everyones: Numbers of a row that goes to all ranks, forward and backward.
        exchanges: Forward and backward; none is backward for rows that need no gradient, such as features.
    """

    def __init__(self, inner: Operators) -> None:
        super().__init__(inner)
        self.neighbors = self.everyones = self.exchanges = 0

    def everyone(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks that share a snapshot."""
        ways = 1 + rows.requires_grad
        self.everyones += ways * rows.shape[1]
        self.exchanges += 1 + ways  # with that of counts
        return super().everyone(rows)

    def aggregate(self, snapshot: Snapshot, layer: int, rows: Tensor, relation: int = 0) -> Tensor:
        """Return the product of a layer's edges with rows."""
        ways = 1 + rows.requires_grad
        self.neighbors += ways * rows.shape[1]
        self.exchanges += ways
        return super().aggregate(snapshot, layer, rows, relation)
