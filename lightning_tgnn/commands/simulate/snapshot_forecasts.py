"""``lightning-tgnn simulate`` of strategies on snapshots: BLAD, and the two schemes that it is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from lightning_tgnn.algorithms.schedules.group_placement import groups_by_count, groups_by_load
from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.snapshot_epochs import (
    EpochForecast,
    blad_epoch,
    snapshot_partition_epoch,
    vertex_partition_epoch,
)
from lightning_tgnn.algorithms.schedules.snapshot_groups import BALANCES, EVEN, LOAD, PAPER, SEARCH, SPLITS
from lightning_tgnn.algorithms.schedules.snapshot_loads import backward_seconds, forward_seconds
from lightning_tgnn.algorithms.schedules.snapshot_operators import predicted_groups
from lightning_tgnn.algorithms.traffic.gradient_compression import COMPRESSIONS
from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int, check_not_negative, refusal
from lightning_tgnn.commands.shared.options import name_and_options
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.commands.simulate.snapshot_costs import SnapshotCosts
from lightning_tgnn.types.layout import RankLayout

BLAD, VERTICES, SNAPSHOTS = "blad", "vertex_partition", "snapshot_partition"
_COMPRESSION = "gradient_compression"
SNAPSHOT_OPTIONS: dict[str, dict[str, Any]] = {
    BLAD: {
        "balance": LOAD,
        "split": SEARCH,
        "reorder": True,
        "processes_per_device": 1,
        "open_groups": 2,
        _COMPRESSION: None,
    },
    SNAPSHOTS: {"processes_per_device": 1, "open_groups": None, _COMPRESSION: None},
    VERTICES: {"remote": 0.5, "embeddings": 1.0, _COMPRESSION: None},
}
_FLOAT = 4  # bytes
_SPLITS = {SEARCH: LOAD, PAPER: PAPER}  # of `blad_epoch`


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


@dataclass(frozen=True)
class SnapshotPlan:
    """A strategy on snapshots with its options.

    Attributes:
        written: As the user wrote it.
        name: Of the strategy.
        options: All of them.
    """

    written: str
    name: str
    options: dict[str, Any]

    @classmethod
    def of(cls, written: str) -> SnapshotPlan:
        """Return the plan that is written ``NAME:OPTION=VALUE:...``.

        Raises:
            InvalidArgumentError: The strategy or an option is unknown, or an option has a value that cannot work.

        >>> SnapshotPlan.of("blad:balance=even").options["balance"]
        'even'
        """
        name, given = name_and_options("strategy", written)
        check_choice("strategy", name, SNAPSHOT_OPTIONS)
        for option in given:
            check_choice(f"option of {name}", option, SNAPSHOT_OPTIONS[name])
        options = {**SNAPSHOT_OPTIONS[name], **given}
        if options[_COMPRESSION] is not None:
            check_choice(f"{_COMPRESSION} of {name}", options[_COMPRESSION], COMPRESSIONS)
        if name == BLAD:
            check_choice("balance of blad", options["balance"], BALANCES)
            check_choice("split of blad", options["split"], SPLITS)
            if not isinstance(options["reorder"], bool):
                cure = "give one of them"
                raise InvalidArgumentError(refusal("reorder of blad", "true or false", options["reorder"], cure))
        if name == BLAD or options.get("open_groups") is not None:
            usual = "2 is usual" if name == BLAD else "as many as ranks, up to 8, are usual"
            check_int(f"open_groups of {name}", options["open_groups"], minimum=1, cure=usual)
        if name == VERTICES:
            check_not_negative("remote of vertex_partition", options["remote"], cure="0.5 is half of a rank's vertices")
            cure = "1 is a row for each target"
            check_not_negative("embeddings of vertex_partition", options["embeddings"], cure=cure)
        if options.get("processes_per_device", 1) not in (1, 2):
            requirement, received = f"processes_per_device of {name}", options["processes_per_device"]
            raise InvalidArgumentError(refusal(requirement, "1 or 2", received, "give one of them"))
        return cls(written, name, options)

    def devices(self, ranks: int) -> int:
        """Return how many devices so many ranks are.

        Raises:
            InvalidArgumentError: The ranks do not make devices.
        """
        per_device = self.options.get("processes_per_device", 1)
        if ranks % per_device:
            requirement = f"a multiple of the {per_device} processes of a device"
            raise InvalidArgumentError(refusal("ranks", requirement, ranks, "give an even number"))
        return int(ranks // per_device)

    def epoch(
        self,
        sizes: np.ndarray,
        costs: SnapshotCosts,
        layout: RankLayout,
        links: Links,
        *,
        group_size: int,
        groups: int,
        numbers: Sequence[int] | None = None,
        shares: CutSnapshots | None = None,
    ) -> EpochForecast:
        """Forecast an epoch, with what updates take beside their operators, on every rank.

        No message is faster than the processes send and receive it.

        Args:
            sizes: int64 [T, 3], vertices and edges of each snapshot, and targets of the group that it ends.
            costs: Of operators.
            layout: Of the ranks.
            links: Between them.
            group_size: Snapshots of a group; the first groups have fewer.
            groups: Of an update, over all ranks.
            numbers: Of the last snapshots of the groups, as they are played; None plays each snapshot's group once.
            shares: What each rank has of snapshots where their vertices are cut; None is the same for all.

        Raises:
            InvalidArgumentError: The ranks do not make devices.
        """
        played = range(len(sizes)) if numbers is None else numbers
        spans = [slice(max(last + 1 - group_size, 0), last + 1) for last in played]
        updates = [range(first, min(first + groups, len(spans))) for first in range(0, len(spans), groups)]
        slower = Links(links.within.after(costs.message), links.between.after(costs.message))
        found = self._of_operators(sizes, spans, updates, costs, layout, slower, shares)
        # One rank sends no gradients, and compresses none.
        compression = self.options[_COMPRESSION] if layout.ranks > 1 else None
        beside = len(updates) * costs.update_seconds(compression)
        return replace(found, seconds=found.seconds + beside, busy=found.busy + beside)

    def _of_operators(
        self,
        sizes: np.ndarray,
        spans: Sequence[slice],
        updates: list[range],
        costs: SnapshotCosts,
        layout: RankLayout,
        links: Links,
        shares: CutSnapshots | None,
    ) -> EpochForecast:
        """Forecast the operators and messages of an epoch, given the snapshots of groups and the groups of updates."""
        devices = self.devices(layout.ranks)
        own = [sizes[span] for span in spans]
        if self.name == VERTICES:
            travel = (self.options[name] for name in ("remote", "embeddings"))
            cut = shares or CutSnapshots.equal(sizes, layout.ranks, *travel)
            return _cut_by_vertices(cut, spans, costs.where_cut, layout, links, updates, self.options[_COMPRESSION])
        compression = self.options[_COMPRESSION]
        operators = predicted_groups(
            costs.model, own, costs.widths, costs.backward_width, exchanged_widths=costs.exchanged_widths
        )
        states = [_FLOAT * costs.state_width * float(one[:, 0].max()) for one in own]
        if self.name == SNAPSHOTS:
            device_of = [rank * devices // layout.ranks for rank in range(layout.ranks)]
            return snapshot_partition_epoch(
                operators, updates, layout, state_bytes=states, compression=compression,
                gradient_bytes=costs.gradient_bytes(compression), devices=device_of, rates=costs.rates, links=links,
                open_groups=self.options["open_groups"],
            )  # fmt: skip
        seconds = [float(sum(both.sum() for both in one.seconds)) for one in operators]
        split = EVEN if self.options["balance"] == EVEN else _SPLITS[self.options["split"]]
        return blad_epoch(
            operators, [_dealt(update, seconds, devices, self.options["balance"]) for update in updates], layout,
            split=split, reorder=self.options["reorder"], state_bytes=states,
            compression=compression, gradient_bytes=costs.gradient_bytes(compression), hand_over=costs.hand_over,
            rates=costs.rates, open_groups=self.options["open_groups"], links=links,
        )  # fmt: skip


def _cut_by_vertices(
    cut: CutSnapshots,
    spans: Sequence[slice],
    costs: SnapshotCosts,
    layout: RankLayout,
    links: Links,
    updates: list[range],
    compression: str | None,
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
    return vertex_partition_epoch(
        [np.stack(of_ranks, axis=1) for of_ranks in zip(*forward, strict=True)],
        [np.stack(of_ranks, axis=1) for of_ranks in zip(*backward, strict=True)],
        updates, layout, feature_bytes=[cut.sent[span] * width * _FLOAT for span in spans],
        embedding_bytes=[embedded * cut.scored[span.stop - 1] for span in spans] if embedded else None,
        exchanges=(len(layers), len(layers)), gradient_bytes=costs.gradient_bytes(compression), links=links,
        compression=compression,
    )  # fmt: skip


def _dealt(update: range, seconds: Sequence[float], devices: int, balance: str) -> tuple[tuple[int, ...], ...]:
    if balance == LOAD:
        dealt = groups_by_load([seconds[place] for place in update], devices)
    else:
        dealt = groups_by_count(len(update), devices)
    return tuple(tuple(update[place] for place in places) for places in dealt)


def snapshot_figures(plan: SnapshotPlan, found: EpochForecast, hosts: int) -> dict[str, Any]:
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


def print_snapshot_forecasts(figures: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a row for each.

    Args:
        figures: As `snapshot_figures` returns them, in order.
        console: Where to.
    """
    table = Table("strategy", "ranks", "s/epoch", "waiting", "overlap", "MB sent", "MB in shared memory")
    for column in (*table.columns[1:5], table.columns[6]):
        column.justify = "right"
    for one in figures:
        sent = ", ".join(f"{size / 1e6:,.1f} {kind}" for kind, size in one["bytes_sent"].items() if size)
        shared = f"{one['bytes_in_shared_memory'] / 1e6:,.1f}"
        row = f"{one['seconds_per_epoch']:,.3f}", f"{one['waiting']:.1%}", f"{one['overlap']:.1%}", sent or "0", shared
        table.add_row(one["strategy"], str(one["ranks"]), *row)
    print_table(table, console)
