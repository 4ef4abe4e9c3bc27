"""``lightning-tgnn plan`` on snapshots: which strategy, for groups of snapshots, a model and a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from rich.console import Console

from lightning_tgnn.algorithms.schedules.planner import compression_cost
from lightning_tgnn.checks import InvalidArgumentError, check_int
from lightning_tgnn.commands.plan.cluster_options import ClusterOptions
from lightning_tgnn.commands.plan.gradient_compression import chosen_compressions, describe_gradients
from lightning_tgnn.commands.plan.recipe import Trained, snapshot_recipe_of
from lightning_tgnn.commands.plan.snapshot_candidates import (
    SnapshotCandidate,
    SnapshotCandidates,
    groups_of,
    sizes_of,
)
from lightning_tgnn.commands.plan.snapshot_measure import SnapshotMeasurements, measure_snapshots
from lightning_tgnn.commands.plan.tables import FOR_COMPARISON
from lightning_tgnn.commands.shared.kinds import KindOption
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.commands.shared.results import print_results
from lightning_tgnn.commands.simulate.snapshot_costs import SnapshotCosts, SnapshotSizes, written_costs
from lightning_tgnn.data import SnapshotDataModule
from lightning_tgnn.files.whole import write_text
from lightning_tgnn.tasks import SnapshotLinkPrediction

_DESCRIPTION = """Choose a strategy for a cluster: measure training on this machine, simulate all plans, recommend one.

  lightning-tgnn plan --kind snapshots --source soc-sign-bitcoinotc.csv.gz --num_snapshots 60 --machines 4 --devices 2
  lightning-tgnn plan --kind events --help                          strategies for streams

Some processes train whole groups: what each operator takes on a snapshot, by its vertices and edges, is measured on
this machine, with as many at once as a machine of the cluster is to run. An epoch of blad with one and two processes on
a device, balanced by load and by number, of snapshot_partition and of vertex_partition is then simulated on the links
of the cluster. All of them train the same weights, but for what a compression of gradients changes. The first row of
the table is recommended: of the plans that are nearly as fast as the fastest, those whose gradients lose least, and of
these the one that sends least between machines.

DIR gets recipe.yaml, for lightning-tgnn fit --config; plan.json with all metrics; and costs.yaml and snapshots.yaml,
for lightning-tgnn simulate --stages and --snapshots: the last line printed is that command.
"""
_GROUPS = 8
_SAMPLING = {"batch_size", "num_layers", "vertices_per_batch", "fanouts", "num_hops"}


@dataclass(frozen=True)
class SnapshotPlanOptions:
    """What to plan for.

    Args:
        groups_per_update: Groups that all ranks train together for an update of the weights; as few as are at least 8
            and a multiple of the processes of the cluster if null.
        measured_epochs: Behind one to warm up.
        updates: Of each of these epochs; all if null.
        gradient_compression: Names of compressions of gradients that may be recommended, separated by commas: bfloat16,
            int8, powersgd; gradients travel as they are if null.
    """

    groups_per_update: int | None = None
    measured_epochs: int = 2
    updates: int | None = None
    gradient_compression: str | None = None

    def __post_init__(self) -> None:
        chosen_compressions(self.gradient_compression)
        check_int("measured_epochs", self.measured_epochs, minimum=1, cure="2 is usual")
        for name in ("groups_per_update", "updates"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1, cure="give a number, or leave it out")

    def groups(self, ranks: int) -> int:
        """Return the groups of an update over so many ranks."""
        return self.groups_per_update or -(-_GROUPS // ranks) * ranks


def snapshot_options() -> Options:
    """Return what the command takes for snapshots."""
    classes = (KindOption, ClusterOptions, SnapshotPlanOptions, SnapshotDataModule, SnapshotLinkPrediction)
    return Options("plan", _DESCRIPTION, {kind: set() for kind in classes} | {SnapshotDataModule: _SAMPLING})


def plan_snapshots(
    cluster_options: dict[str, Any], own: dict[str, Any], data_options: dict[str, Any], task_options: dict[str, Any]
) -> None:
    """Measure, forecast all plans, and write the recipe of the first.

    Args:
        cluster_options: Arguments of `ClusterOptions`.
        own: Arguments of `SnapshotPlanOptions`.
        data_options: Arguments of `SnapshotDataModule`.
        task_options: Arguments of `SnapshotLinkPrediction`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
        DataError: The source holds something that must not be trained on.
    """
    data_options["num_layers"] = task_options["num_layers"]
    where, options, data = (
        ClusterOptions(**cluster_options),
        SnapshotPlanOptions(**own),
        SnapshotDataModule(**data_options),
    )
    SnapshotLinkPrediction(**task_options)  # before processes are started: a mistake is reported once
    run, cluster = where.run, where.cluster(float("inf"))
    groups = options.groups(cluster.ranks)
    here = max(groups // cluster.ranks, 1)
    data.prepare_data()
    if (fewer := len(data.split.train)) < run.processes.ranks:
        cure = "give fewer --processes, or cut the source into more snapshots"
        raise InvalidArgumentError("processes", f"at most the {fewer} groups", run.processes.ranks, cure)
    where.check_output()
    # Where vertices are cut no product is kept: rows of neighbours travel each time.
    ways = {task_options["reuse"]: options.measured_epochs}
    if cluster.ranks > 1:
        ways.setdefault(False, 1)
    measured = [
        measure_snapshots(
            data,
            task_options,
            run,
            reuse=reuse,
            groups=here,
            epochs=epochs,
            updates=options.updates,
            local=cluster.links.within,
        )
        for reuse, epochs in ways.items()
    ]
    _recommend(where, options, data, groups, measured, data_options, task_options)


@rank_zero_only
def _recommend(
    where: ClusterOptions,
    options: SnapshotPlanOptions,
    data: SnapshotDataModule,
    groups: int,
    measured: list[SnapshotMeasurements],
    data_options: dict[str, Any],
    task_options: dict[str, Any],
) -> None:
    """Rank all plans, print them and keep what was found."""
    folder, console, cluster = Path(where.output), Console(), where.cluster(float("inf"))
    found, shared = measured[0], measured[-1]
    costs = _with_first_product(found.costs, shared.costs)
    compressions = chosen_compressions(options.gradient_compression)
    on_gpu = _on_gpu(where.accelerator)
    candidates = SnapshotCandidates(data, costs, groups, cluster, on_gpu, compressions, where.epochs)
    plans, alone = candidates.all(), candidates.alone()
    print_snapshot_plans(plans, alone, console, wide=where.wide)
    first = plans[0]
    trained = Trained(data_options, task_options, where.accelerator, where.epochs)
    recipe = snapshot_recipe_of(first.strategy, first.options, first.batch_size, cluster, trained)
    write_text(folder / "recipe.yaml", recipe)
    write_text(folder / "costs.yaml", yaml.safe_dump(written_costs(costs), sort_keys=False))
    sizes = SnapshotSizes(sizes_of(data), data.group_size, groups_of(data), groups)
    write_text(folder / "snapshots.yaml", yaml.safe_dump(sizes.written(), sort_keys=False))
    metrics = {"options": asdict(where) | asdict(options), "groups_per_update": groups}
    metrics |= {"groups": len(groups_of(data)), "measured": [_metrics(one) for one in measured]}
    metrics |= {"plans": [one.metrics() | {"why": snapshot_reason(one, plans)} for one in plans]}
    metrics |= {"one_process": alone.metrics()}
    write_text(folder / "plan.json", json.dumps(metrics, indent=1))
    errors = ", ".join(f"{name} {error:.0%}" for name, error in found.error.items())
    lines = [
        f"measured with {found.processes} processes at once on this machine; predicted seconds of snapshots of sizes "
        f"that were not fitted are off by: {errors or 'not known, for all have one size'}",
        f"an epoch has {len(groups_of(data)):,} groups of up to {data.group_size} snapshots, {groups} an update, which "
        f"takes {1e3 * costs.update:.1f} ms beside its snapshots",
        *describe_gradients(costs.gradients, found.compressed, cluster.ranks),
        f"recipe: {where.start}lightning-tgnn fit --config {folder / 'recipe.yaml'}",
        "",
        recipe,
        f"metrics: {folder / 'plan.json'}",
        f"the same, for other clusters: {_simulation(plans, where, folder)}",
    ]
    for line in lines:
        console.out(line, highlight=False)


def _with_first_product(costs: SnapshotCosts, shared: SnapshotCosts) -> SnapshotCosts:
    """Return costs with the first layer's product as it was measured where none is kept: nothing else differs."""
    first = {name: load for name, load in shared.model.loads.items() if name == "graph 1"}
    return replace(costs, where_cut_loads=first)


def _simulation(plans: list[SnapshotCandidate], where: ClusterOptions, folder: Path) -> str:
    """Return the command that forecasts the plans again, with the links and the share of rows that travels."""
    words = ",".join(one.simulated for one in plans if not one.objection)
    links = f"--link {where.link} --local_link {where.local_link}"
    files = f"--stages {folder / 'costs.yaml'} --snapshots {folder / 'snapshots.yaml'}"
    ranks = f"--ranks {where.machines * where.devices} --hosts {where.machines}"
    return f"lightning-tgnn simulate --strategy {words} {ranks} {links} {files}"


def _metrics(found: SnapshotMeasurements) -> dict[str, Any]:
    """Return what was measured as plain values."""
    compressed = {name: asdict(one) for name, one in found.compressed.items()}
    return {**vars(found), "costs": written_costs(found.costs), "compressed": compressed}


def _on_gpu(accelerator: str) -> bool:
    return accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())


def print_snapshot_plans(
    found: Sequence[SnapshotCandidate], alone: SnapshotCandidate, console: Console, *, wide: bool = False
) -> None:
    """Print a row for each plan, the recommended one first, and one for one process.

    Args:
        found: As `SnapshotCandidates.all` returns them.
        alone: One process.
        console: Where to.
        wide: Whether the table has all columns.
    """
    rows: list[dict[str, Any]] = []
    for one in [*found, alone]:
        why = FOR_COMPARISON if one is alone else snapshot_reason(one, found)
        rows.append({"strategy": one.written, "why": why})
        if not one.objection:
            rows[-1] |= {"batch_size": one.batch_size, "seconds_per_epoch": one.seconds}
        if wide and not one.objection:
            rows[-1] |= {
                "waiting_share": one.waiting,
                "bytes_per_epoch": sum(one.sent.values()),
                "sent_by_kind": one.sent,
            }
    print_results(rows, console, wide=wide)


def snapshot_reason(one: SnapshotCandidate, found: Sequence[SnapshotCandidate]) -> str:
    """Return in words why a plan is recommended, or why it is not.

    Args:
        one: The plan.
        found: All, the recommended one first.
    """
    if one.objection:
        return f"left out: {one.objection}"
    first, fastest = found[0], min(each.seconds for each in found)
    slower = 1 - fastest / one.seconds
    if one is first:
        if slower < 0.005:
            return "recommended: the fastest"
        exact = compression_cost(one.options) < compression_cost(min(found, key=lambda each: each.seconds).options)
        better = "its gradients lose less" if exact else "sends less between machines"
        return f"recommended: {slower:.1%} slower than the fastest, and {better}"
    if one.seconds < first.seconds and compression_cost(one.options) > compression_cost(first.options):
        compression = one.options["gradient_compression"]
        return f"{first.seconds / one.seconds - 1:.1%} faster, but gradients travel as {compression}"
    if one.seconds < first.seconds:
        more = sum(one.sent.values()) / max(sum(first.sent.values()), 1e-12)
        return f"{first.seconds / one.seconds - 1:.1%} faster, but sends {more:.1f} times as much between machines"
    return f"{slower:.1%} slower than the fastest"
