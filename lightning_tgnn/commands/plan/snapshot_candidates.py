"""Plans of all strategies on snapshots, with what an epoch takes on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch

from lightning_tgnn.algorithms.partitions.simple import metis_partition
from lightning_tgnn.algorithms.schedules.planner import TOLERANCE, Cluster, compression_cost
from lightning_tgnn.algorithms.schedules.snapshot_groups import EVEN, LOAD
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.bench.tables import ALONE
from lightning_tgnn.commands.plan.gradient_compression import too_short_for
from lightning_tgnn.commands.plan.recipe import written_as
from lightning_tgnn.commands.simulate.plans import SimulatedPlan
from lightning_tgnn.commands.simulate.snapshot_costs import SnapshotCosts
from lightning_tgnn.commands.simulate.snapshot_forecasts import CutSnapshots, forecast_epoch
from lightning_tgnn.data import SnapshotDataModule

BLAD, VERTICES, SNAPSHOTS = "blad", "vertex_partition", "snapshot_partition"


@dataclass(frozen=True)
class SnapshotCandidate:
    """A plan that may be taken.

    Attributes:
        strategy: Its name.
        options: Arguments of the strategy that differ from its defaults.
        batch_size: Groups of a device and update.
        seconds: Of an epoch.
        waiting: Share of it in which a rank computes nothing, the mean over ranks.
        sent: Bytes that go from a machine to another in it, by kind.
        objection: Why it cannot be taken; empty where it can.
        travel: What of their rows ranks send where vertices are cut, as options of the simulator.
    """

    strategy: str
    options: Mapping[str, Any]
    batch_size: int = 0
    seconds: float = float("inf")
    waiting: float = 0.0
    sent: Mapping[str, float] = field(default_factory=dict)
    objection: str = ""
    travel: Mapping[str, float] = field(default_factory=dict)

    @property
    def written(self) -> str:
        """As `lightning-tgnn bench` writes it."""
        return written_as(self.strategy, self.options)

    @property
    def simulated(self) -> str:
        """As `lightning-tgnn simulate` writes it."""
        travel = {name: round(share, 4) for name, share in self.travel.items()}
        return written_as(self.strategy, {**self.options, **travel})

    def metrics(self) -> dict[str, Any]:
        """Return all that is known of it as plain values; there are no seconds of what cannot be taken."""
        forecast = {"seconds": self.seconds, "waiting": self.waiting, "bytes_between_machines": dict(self.sent)}
        known = {"objection": self.objection} if self.objection else {"batch_size": self.batch_size, **forecast}
        return {"plan": self.written, "strategy": self.strategy, "options": dict(self.options), **known}


@dataclass(frozen=True)
class SnapshotCandidates:
    """Makes plans from what was measured.

    Args:
        data: What is trained on.
        costs: Of operators.
        groups: Of an update, over all ranks.
        cluster: Where the plans are to run.
        on_gpu: Whether the devices are GPUs.
        compressions: Of gradients, by their names, beside none.
        epochs: Of the recipe; None for so many that every compression begins.
    """

    data: SnapshotDataModule
    costs: SnapshotCosts
    groups: int
    cluster: Cluster
    on_gpu: bool
    compressions: Sequence[str] = ()
    epochs: int | None = None

    def all(self) -> list[SnapshotCandidate]:
        """Return the plans of all strategies, the recommended one first, those that cannot be taken last.

        All of them train the same weights but for what compression of gradients changes. So of the plans that are
        nearly as fast as the fastest, those are taken whose compression changes least; of these the one that sends
        least between machines is recommended, and of these the fastest.
        """
        found = sorted(self._made(), key=lambda one: one.seconds)
        limit = found[0].seconds / (1 - TOLERANCE)
        near = [one for one in found if not one.objection and one.seconds <= limit]
        first = min(near, key=lambda one: (compression_cost(one.options), sum(one.sent.values())))
        return [first, *(one for one in found if one is not first)]

    def alone(self) -> SnapshotCandidate:
        """Return one process that trains the groups of all ranks, to compare the plans with."""
        one = replace(self, cluster=replace(self.cluster, machines=1, devices=1))
        return replace(one._taken(BLAD, {"processes_per_device": 1}, self.groups), strategy=ALONE, options={})

    def _made(self) -> Iterator[SnapshotCandidate]:
        several = self.cluster.ranks > 1  # one process sends nothing that could be compressed
        chosen = [{}, *({"gradient_compression": name} for name in (self.compressions if several else ()))]
        for processes in (2, 1):
            for balance, more in product((LOAD, EVEN), chosen):
                options: dict[str, Any] = {"processes_per_device": processes}
                yield self._blad(options | ({} if balance == LOAD else {"balance": balance}) | more, processes)
        for name in (SNAPSHOTS, VERTICES):
            yield from self._shared(name, chosen)

    def _blad(self, options: dict[str, Any], processes: int) -> SnapshotCandidate:
        cluster, objection = self.cluster, ""
        if processes > 1 and self.on_gpu:
            objection = "two processes on a GPU have not been measured: see lightning-tgnn bench"
        elif cluster.devices % processes:
            objection = f"its pairs of processes do not fit {cluster.devices} on each machine"
        elif self.groups % (cluster.ranks // processes):
            objection = f"{self.groups} groups of an update do not fit {cluster.ranks // processes} devices"
        objection = objection or self._too_short(options)
        if objection:
            return SnapshotCandidate(BLAD, options, objection=objection)
        return self._taken(BLAD, options, self.groups * processes // cluster.ranks)

    def _shared(self, name: str, chosen: Sequence[Mapping[str, Any]]) -> Iterator[SnapshotCandidate]:
        """Yield plans whose ranks all share each group, with each of some options."""
        shares, objection = None, ""
        if self.cluster.ranks == 1:
            objection = "one process has nobody to share groups with"
        elif name == VERTICES:
            try:
                shares = vertex_shares(self.data, self.cluster.ranks)
            except InvalidArgumentError as error:  # what cuts the graph is not installed
                objection = str(error)
        for options in chosen:
            if left_out := objection or self._too_short(options):
                yield SnapshotCandidate(name, options, objection=left_out)
            else:
                yield self._taken(name, options, self.groups, shares)

    def _too_short(self, options: Mapping[str, Any]) -> str:
        """Say why the recipe would send all gradients as they are; empty where it would not."""
        if self.epochs is None:
            return ""
        updates = -(-len(groups_of(self.data)) // self.groups)
        return too_short_for(options.get("gradient_compression"), self.epochs * updates)

    def _taken(
        self, name: str, options: Mapping[str, Any], batch_size: int, shares: CutSnapshots | None = None
    ) -> SnapshotCandidate:
        plan, layout, played = SimulatedPlan(name, name, dict(options)), self.cluster.layout, groups_of(self.data)
        found = forecast_epoch(
            plan, sizes_of(self.data), self.costs, layout, self.cluster.links,
            group_size=self.data.group_size, groups=self.groups, numbers=played, cut=shares,
        )  # fmt: skip
        waiting = float(found.waiting.mean())
        travel, sent = {}, found.sent_between(layout)
        if shares is not None:
            scored = float(self.data.targets.counts[list(played)].sum())
            travel["remote"] = float(shares.sent.sum() / max(shares.sizes[..., 0].sum(), 1.0))
            travel["embeddings"] = float(shares.scored.sum() / max(scored, 1.0))
        return SnapshotCandidate(name, options, batch_size, found.seconds, waiting, sent, travel=travel)


def sizes_of(data: SnapshotDataModule) -> np.ndarray:
    """Return vertices and edges of every snapshot, and the targets of the group that it ends, int64 [T, 3]."""
    return np.stack([*data.snapshots.sizes, data.targets.counts], axis=1)


def groups_of(data: SnapshotDataModule) -> Sequence[int]:
    """Return the groups of training in the order of the first epoch, by the number of their last snapshot."""
    return data.train_dataloader().split.for_epoch(0, 1)


def vertex_shares(data: SnapshotDataModule, ranks: int) -> CutSnapshots:
    """Return what ranks have of every snapshot of training where METIS cuts the vertices, as `vertex_partition` does.

    Bytes sent for targets are counted in the first epoch, with the negatives of its links.

    Args:
        data: Whose snapshots.
        ranks: That have the vertices.

    Raises:
        InvalidArgumentError: METIS is not installed.
    """
    edges = data.sequence
    owner = metis_partition(edges.src, edges.dst, edges.num_nodes, ranks)
    sizes, sent, scored_by_others, played, targets = [], [], [], {*groups_of(data)}, data.targets
    for snapshot in data.snapshots[: max(played) + 1]:
        of = owner[snapshot.vertices]
        reader, row = (
            torch.cat([getattr(relation, side) for relation in snapshot.layers[0]]) for side in ("rows", "columns")
        )
        reader = of[reader]
        scored = torch.full((ranks,), targets.counts[snapshot.number] / ranks, dtype=torch.float64)
        counted = (torch.bincount(each, minlength=ranks) for each in (of, reader))
        sizes.append(torch.stack([*counted, scored], dim=1))
        sent.append(_sent(row, reader, of, ranks))
        rows = (targets.for_group(snapshot.number, 0) if snapshot.number in played else targets.none(0)).rows
        # The owner of its first row scores a target.
        scorer = owner[rows[:, 0]].repeat_interleave(rows.shape[1])
        scored_by_others.append(_sent(rows.flatten(), scorer, owner, ranks))
    return CutSnapshots(*(torch.stack(each).double().numpy() for each in (sizes, sent, scored_by_others)))


def _sent(row: torch.Tensor, reader: torch.Tensor, owner: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return how many rows each rank sends where ranks read some, int64 [ranks].

    A row travels once to a rank that reads it, however often it does.
    """
    travelling = (reader * len(owner) + row)[reader != owner[row]].unique() % max(len(owner), 1)
    return torch.bincount(owner[travelling], minlength=ranks)
