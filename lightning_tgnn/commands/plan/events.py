"""``lightning-tgnn plan`` on streams of events: which strategy, for a stream, a model and a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from rich.console import Console

from lightning_tgnn.algorithms.schedules.planner import Assessment, Cluster, Stream, assess, rank
from lightning_tgnn.algorithms.streams.information_loss import MAX_LOSS, EventDistances, event_distances
from lightning_tgnn.algorithms.streams.node_ends import ends_by_node
from lightning_tgnn.checks import InvalidArgumentError, check_fraction, check_int, check_positive
from lightning_tgnn.commands.plan.candidates import Candidates, remote_rows
from lightning_tgnn.commands.plan.cluster_options import ClusterOptions
from lightning_tgnn.commands.plan.gradient_compression import chosen_compressions, describe_gradients
from lightning_tgnn.commands.plan.measure import Measurements, measure
from lightning_tgnn.commands.plan.recipe import Trained, recipe_of
from lightning_tgnn.commands.plan.tables import describe_spread, metrics_of, print_plans
from lightning_tgnn.commands.shared.kinds import KindOption
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.files.memory import available_memory
from lightning_tgnn.files.whole import write_text
from lightning_tgnn.tasks import LinkPrediction

_DESCRIPTION = """Choose a strategy for a cluster: measure training on this machine, simulate all plans, recommend one.

  lightning-tgnn plan --source wikipedia.txt.gz --machines 4 --devices 8 --link 10000:0.1 --memory 64
  lightning-tgnn plan --config RECIPE --machines 4                  for the data and the model of a recipe of fit
  lightning-tgnn plan --kind snapshots --help                       strategies for groups of snapshots

Some processes train for some steps with each strategy: the seconds of stages are measured on this machine, with as many
at once as a machine of the cluster is to run. All plans of sven, depcache, pipetgl and disttgl that fit the cluster are
then simulated on its links. The first row of the table is recommended: of the plans that are nearly as fast as the
fastest, the one that costs least in accuracy.

DIR gets recipe.yaml, for lightning-tgnn fit --config; plan.json with all metrics; and costs.yaml, for
lightning-tgnn simulate --stages.
"""


_BENCHED = 3


@dataclass(frozen=True)
class PlanOptions:
    """What to plan for.

    Args:
        memory: Gigabytes of node state that each machine has room for; what this one has free if null.
        batch_size: Events per process and turn; what saturates a device if null, as far as information is not lost.
        max_loss: Share of the updates of node memory that a global batch may lose.
        steps: To measure at a time. Each strategy has one such window to warm up and three that count, in every round;
            the fastest one is taken, which others on the machine have disturbed least.
        rounds: Times that the strategies take turns.
        gradient_compression: Names of compressions of gradients that may be recommended, separated by commas: bfloat16,
            int8, powersgd; gradients travel as they are if null.
    """

    memory: float | None = None
    batch_size: int | None = None
    max_loss: float = MAX_LOSS
    steps: int = 15
    rounds: int = 2
    gradient_compression: str | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "rounds"):
            check_int(name, getattr(self, name), minimum=1, cure="give a number, for example 2")
        if self.batch_size is not None:
            check_int("batch_size", self.batch_size, minimum=1, cure="give a number, or leave it out")
        if self.memory is not None:
            check_positive("memory", self.memory, cure="give gigabytes, for example 64")
        chosen_compressions(self.gradient_compression)
        check_fraction("max_loss", self.max_loss, cure=f"{MAX_LOSS} is the default, a lower share is stricter")

    @property
    def memory_bytes(self) -> float:
        """Of node state that each machine has room for.

        Raises:
            InvalidArgumentError: ``memory`` is None, and the system does not tell how much is free.
        """
        if self.memory is not None:
            return 1e9 * self.memory
        here = available_memory()
        if here is None:
            requirement = "given where the system does not tell how much is free"
            raise InvalidArgumentError("memory", requirement, None, "give gigabytes, for example 64")
        return float(here)


def event_options() -> Options:
    """Return what the command takes for streams of events."""
    classes = (KindOption, ClusterOptions, PlanOptions, TemporalDataModule, LinkPrediction)
    return Options("plan", _DESCRIPTION, {kind: set() for kind in classes} | {TemporalDataModule: {"batch_size"}})


def plan_events(
    cluster_options: dict[str, Any], own: dict[str, Any], data_options: dict[str, Any], task_options: dict[str, Any]
) -> None:
    """Measure, rank all plans, and write the recipe of the first.

    Args:
        cluster_options: Arguments of `ClusterOptions`.
        own: Arguments of `PlanOptions`.
        data_options: Arguments of `TemporalDataModule`.
        task_options: Arguments of `LinkPrediction`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or no plan fits.
        DataError: The source holds something that must not be trained on.
    """
    where, options = ClusterOptions(**cluster_options), PlanOptions(**own)
    data = TemporalDataModule(**data_options)
    LinkPrediction(**task_options)  # before processes are started: a mistake is reported once
    cluster = where.cluster(options.memory_bytes)
    _check_events(len(data.split.train), cluster.ranks, where)
    where.check_output()
    found = measure(
        data,
        task_options,
        where.run,
        options.batch_size,
        steps=options.steps,
        rounds=options.rounds,
    )
    _recommend(where, options, cluster, data, found, data_options, task_options)


def _check_events(events: int, ranks: int, where: ClusterOptions) -> None:
    """Refuse more ranks than events before anything is measured.

    Raises:
        InvalidArgumentError: The ranks, or the processes that measure, are more than the events.
    """
    for argument, given in (("devices times machines", ranks), ("processes", where.run.processes.ranks)):
        if given > events:
            requirement = f"at most the {events:,} events that are trained on"
            raise InvalidArgumentError(argument, requirement, given, "give fewer, or a longer stream")


@rank_zero_only
def _recommend(
    where: ClusterOptions,
    options: PlanOptions,
    cluster: Cluster,
    data: TemporalDataModule,
    found: Measurements,
    data_options: dict[str, Any],
    task_options: dict[str, Any],
) -> None:
    """Rank all plans, print them and keep what was found."""
    folder, console = Path(where.output), Console()
    distances, events = _distances(data), len(data.split.train)
    compressions = chosen_compressions(options.gradient_compression)
    largest = distances.largest_batch(options.max_loss, events)
    keep_batch, trained = options.batch_size is not None, (events, where.epochs)
    candidates = Candidates(found, cluster, largest, keep_batch, compressions, trained=trained)
    remote = remote_rows(data, cluster.ranks, candidates.shared_batch_size)
    if remote is not None:
        candidates = replace(candidates, remote=remote.share)
    # Before any plan may be refused: measuring takes minutes, and `simulate` takes what was measured.
    costs = {
        name: {"seconds": given.seconds, "bytes": given.sent, "batch_size": given.batch_size, "shares": given.shares}
        for name, given in candidates.costs().items()
    }
    write_text(folder / "costs.yaml", yaml.safe_dump({"strategies": costs}, sort_keys=False))
    stream = Stream(cache(distances.loss), options.max_loss, found.state_bytes)
    plans = rank(candidates.all(), cluster, stream)
    alone = assess(candidates.alone(), replace(cluster, machines=1, devices=1), stream)
    print_plans(plans, alone, console, wide=where.wide)
    recipe = recipe_of(
        plans[0].candidate, cluster, Trained(data_options, task_options, where.accelerator, where.epochs)
    )
    write_text(folder / "recipe.yaml", recipe)
    metrics = {"options": asdict(where) | asdict(options), "measured": asdict(found), "largest_batch": largest}
    metrics |= {"remote_rows": None if remote is None else remote.metrics()}
    metrics |= {"plans": [metrics_of(one) for one in plans], "one_process": metrics_of(alone)}
    write_text(folder / "plan.json", json.dumps(metrics, indent=1))
    lines = [
        f"measured with {found.processes} processes at once on this machine, batches of {found.batch_size:,} events; "
        + describe_share(found.fixed_share),
        describe_spread(found.spread, plans),
        f"global batches of up to {largest:,} events lose at most {options.max_loss:.0%} of the updates of node memory",
        *([] if remote is None else remote.said()),
        *describe_gradients(found.gradient_bytes, found.compressed, cluster.ranks),
        *_measured_by(where, folder, plans),
        f"recipe: {where.start}lightning-tgnn fit --config {folder / 'recipe.yaml'}",
        "",
        recipe,
        f"metrics: {folder / 'plan.json'}; simulate --stages {folder / 'costs.yaml'}",
    ]
    for line in lines:
        console.out(line, highlight=False)


def _measured_by(where: ClusterOptions, folder: Path, plans: Sequence[Assessment]) -> list[str]:
    """Return the command that measures the first plan of each of the fastest strategies, on the same batches."""
    first = {one.candidate.strategy: one.candidate.written for one in reversed(plans) if not one.objection}
    fitting = [one.candidate.written for one in plans if one.candidate.written in first.values()][:_BENCHED]
    if not first:
        return []
    command = f"{where.start}lightning-tgnn bench --config {folder / 'recipe.yaml'}"
    strategies = ",".join([*fitting, "auto-state"])
    return [f"measure them beside each other: {command} --strategies {strategies} --one_process true"]


def describe_share(fixed_share: float | None) -> str:
    """Say which share of a turn does not grow with its events.

    >>> describe_share(0.25)
    '25% of their time does not grow with the events'
    """
    if fixed_share is None:
        return "noise hid how much of their time does not grow with the events"
    return f"{fixed_share:.0%} of their time does not grow with the events"


def _distances(data: TemporalDataModule) -> EventDistances:
    """Return how far apart the events of nodes are in the training split."""
    train = data.split.train
    return event_distances(*ends_by_node(data.store.src[train].numpy(), data.store.dst[train].numpy()))
