"""``lightning-tgnn simulate`` of strategies on snapshots: BLAD, and the two schemes that it is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.operator_order import search_of
from lightning_tgnn.algorithms.schedules.snapshot_epochs import EpochForecast, pipelined_groups, shared_groups
from lightning_tgnn.algorithms.schedules.snapshot_groups import PAPER, SnapshotGroups
from lightning_tgnn.algorithms.schedules.snapshot_loads import backward_seconds, forward_seconds
from lightning_tgnn.algorithms.schedules.snapshot_operators import predicted_groups
from lightning_tgnn.algorithms.traffic.gradient_compression import gradient_traffic
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.simulate.plans import SimulatedPlan
from lightning_tgnn.commands.simulate.snapshot_costs import SnapshotCosts
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import RowShares

_FLOAT = 4  # bytes
_USUAL_REMOTE = 0.5


@dataclass(frozen=True, eq=False)
class CutSnapshots:
    """What ranks have of snapshots whose vertices are cut.

    Attributes:
        sizes: float64 [T, ranks, 3], vertices, edges and targets.
        sent: float64 [T, ranks], rows that a rank sends for a product.
        scored: float64 [T, ranks], rows that it sends for the targets of the group that a snapshot ends.
    """

    sizes: np.ndarray
    sent: np.ndarray
    scored: np.ndarray

    @classmethod
    def equal(cls, sizes: np.ndarray, ranks: int, remote: float, embeddings: float) -> CutSnapshots:
        """Return equal shares of snapshots of sizes [T, 3].

        Args:
            sizes: Vertices, edges and targets.
            ranks: That have them.
            remote: Rows that a rank sends for a product, over its vertices.
            embeddings: Rows that it sends for targets, over its targets.
        """
        each = np.repeat(sizes[:, None] / ranks, ranks, axis=1)
        return cls(each, remote * each[..., 0], embeddings * each[..., 2])


def forecast_epoch(
    plan: SimulatedPlan,
    sizes: np.ndarray,
    costs: SnapshotCosts,
    layout: RankLayout,
    links: Links,
    *,
    group_size: int,
    groups: int,
    numbers: Sequence[int] | None = None,
    cut: CutSnapshots | None = None,
) -> EpochForecast:
    """Forecast an epoch of a strategy on snapshots.

    No message is faster than the processes send and receive it.

    Args:
        plan: The strategy.
        sizes: int64 [T, 3], vertices and edges of each snapshot, and targets of the group that it ends.
        costs: Of operators.
        layout: Of the ranks.
        links: Between them.
        group_size: Snapshots of a group; the first groups have fewer.
        groups: Of an update, over all ranks.
        numbers: Of the last snapshots of the groups, as they are played; None plays each snapshot's group once.
        cut: What each rank has of snapshots where their vertices are cut; None is the same for all.

    Raises:
        InvalidArgumentError: The ranks do not fit the strategy, or nobody knows what its order takes.
    """
    from lightning_tgnn.strategies.parts import GroupPipeline, SnapshotMemory, VertexShares

    made = plan.plan(layout.ranks, len(set(layout.hosts)))
    played = range(len(sizes)) if numbers is None else numbers
    spans = [slice(max(last + 1 - group_size, 0), last + 1) for last in played]
    updates = [range(first, min(first + groups, len(spans))) for first in range(0, len(spans), groups)]
    slower = Links(links.within.after(costs.message), links.between.after(costs.message))
    compression = plan.compression if layout.ranks > 1 else None  # one rank sends no gradients, and compresses none
    update_costs = costs.update_costs(compression, layout.ranks, slower)
    order, schedule, store = made.order, made.schedule, made.store
    if isinstance(order, VertexShares):
        shares = RowShares(**{"remote": _USUAL_REMOTE, **plan.shares})
        cut = cut or CutSnapshots.equal(sizes, layout.ranks, shares.remote, shares.embeddings)
        found = _cut_by_vertices(cut, spans, costs.where_cut, layout, slower, updates)
    elif isinstance(order, GroupPipeline):
        assert isinstance(schedule, SnapshotGroups), schedule
        assert isinstance(store, SnapshotMemory), store
        own = [sizes[span] for span in spans]
        operators = predicted_groups(
            costs.model, own, costs.widths, costs.backward_width, exchanged_widths=costs.exchanged_widths
        )
        found = pipelined_groups(
            operators, updates, layout, schedule, open_groups=order.open_groups,
            search=search_of(None if store.split == PAPER else costs.rates) if store.reorder else None,
            state_bytes=[_FLOAT * costs.state_width * float(one[:, 0].max()) for one in own],
            hand_over=costs.hand_over, rates=costs.rates, links=slower,
        )  # fmt: skip
    else:
        cure = "give a strategy on snapshots with the order GroupPipeline or VertexShares"
        raise InvalidArgumentError("strategy", "one whose groups can be timed", plan.written, cure)
    size = costs.gradient_bytes(compression)
    sent = gradient_traffic(compression, size, len(updates), layout.ranks)
    return found.updated(made.outline(plan.name), layout, update_costs, sent)


def _cut_by_vertices(
    cut: CutSnapshots,
    spans: Sequence[slice],
    costs: SnapshotCosts,
    layout: RankLayout,
    links: Links,
    updates: list[range],
) -> EpochForecast:
    """Forecast ranks that each compute their vertices of all snapshots."""
    forward, backward = [], []
    for rank in range(layout.ranks):
        own = [cut.sizes[span, rank] for span in spans]
        forward.append(forward_seconds(costs.model, own, costs.widths))
        backward.append(backward_seconds(costs.model, own, costs.backward_width))
    layers = costs.graph_widths
    width = sum(layers) / len(layers) if layers else 0.0
    embedded = _FLOAT * costs.embedding_width
    return shared_groups(
        [np.stack(per_rank, axis=1) for per_rank in zip(*forward, strict=True)],
        [np.stack(per_rank, axis=1) for per_rank in zip(*backward, strict=True)],
        updates, layout, feature_bytes=[cut.sent[span] * width * _FLOAT for span in spans],
        embedding_bytes=[embedded * cut.scored[span.stop - 1] for span in spans] if embedded else None,
        exchanges=(len(layers), len(layers)), links=links,
    )  # fmt: skip


def snapshot_metrics(plan: SimulatedPlan, found: EpochForecast, hosts: int) -> dict[str, Any]:
    """Return a forecast as plain values."""
    return {
        "strategy": plan.written,
        "ranks": len(found.busy),
        "hosts": hosts,
        "seconds_per_epoch": found.seconds,
        "waiting": float(found.waiting.mean()),
        "waiting_of_worst": float(found.waiting.max()),
        "overlap": found.overlap,
        "bytes_sent": found.sent,
        "bytes_in_shared_memory": found.shared,
    }


def snapshot_row(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return what the table has of a forecast; see `snapshot_metrics`."""
    sent = metrics["bytes_sent"]
    more = {"bytes_per_epoch": sum(sent.values()), "sent_by_kind": sent}
    return {
        **metrics,
        "waiting_share": metrics["waiting"],
        "bytes_in_memory": metrics["bytes_in_shared_memory"],
        **more,
    }
