"""``lightning-tgnn plan``: which strategy, with which options, for a stream, a model and a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from rich.console import Console

from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.planner import Cluster, Stream, rank
from lightning_tgnn.algorithms.streams.information_loss import MAX_LOSS, EventDistances, event_distances
from lightning_tgnn.algorithms.streams.stream_statistics import ends_by_node
from lightning_tgnn.checks import check_fraction, check_int, check_positive
from lightning_tgnn.commands.bench.comparison import RunOptions
from lightning_tgnn.commands.plan.candidates import Candidates
from lightning_tgnn.commands.plan.measure import SHARDS, Measurements, measure
from lightning_tgnn.commands.plan.recipe import recipe_of
from lightning_tgnn.commands.plan.tables import figures_of, print_plans
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.commands.simulate.given_costs import read_link
from lightning_tgnn.data import TemporalDataModule
from lightning_tgnn.files.memory import available_memory
from lightning_tgnn.files.whole import write_text
from lightning_tgnn.tasks import LinkPrediction

_DESCRIPTION = """Choose a strategy for a cluster: measure training on this machine, simulate all plans, recommend one.

  lightning-tgnn plan --source wikipedia.txt.gz --machines 4 --devices 8 --link 10000:0.1 --memory 64

Some processes train for some steps with each strategy: the seconds of stages are those of this machine, with as many
at once as a machine of the cluster is to run. All plans of sven, depcache, pipetgl and disttgl that fit the cluster are
then simulated on its links. The first row of the table is recommended: of the plans that are nearly as fast as the
fastest, the one that costs least in accuracy.

DIR gets recipe.yaml, for lightning-tgnn fit --config; plan.json with all figures; and costs.yaml, for
lightning-tgnn simulate --stages.
"""
_TOLERANCE = 0.05


@dataclass(frozen=True)
class PlanOptions:
    """What to plan for.

    Args:
        machines: Of the cluster.
        devices: Processes that train on each of them.
        link: From a machine to the others, shared by its processes: MBIT, or MBIT:MILLISECONDS.
        local_link: Between the processes of a machine, the same.
        memory: Gigabytes of node state that each machine has room for; what this one has free if null.
        batch_size: Events per process and turn; what saturates a device if null, as far as information is not lost.
        max_loss: Share of the updates of node memory that a global batch may lose.
        processes: That are measured at once on this machine; as many as devices if null, but two where there are
            several machines, so that something is exchanged.
        steps: To measure at a time. Each strategy has one such window to warm up and three that count, in every round;
            the fastest one is taken, which others on the machine have disturbed least.
        rounds: Times that the strategies take turns.
        epochs: Of the recipe, as those of one process.
        accelerator: "cpu", "gpu" or "auto".
        output: Folder of the results, which are overwritten.
    """

    machines: int = 1
    devices: int = 2
    link: str = "10000:0.1"
    local_link: str = "80000:0.01"
    memory: float | None = None
    batch_size: int | None = None
    max_loss: float = MAX_LOSS
    processes: int | None = None
    steps: int = 15
    rounds: int = 2
    epochs: int = 10
    accelerator: str = "auto"
    output: str = "runs/plan"

    def __post_init__(self) -> None:
        for name in ("machines", "devices", "steps", "rounds", "epochs"):
            check_int(name, getattr(self, name), minimum=1, cure="give a number, for example 2")
        for name in ("batch_size", "processes"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1, cure="give a number, or leave it out")
        if self.memory is not None:
            check_positive("memory", self.memory, cure="give gigabytes, for example 64")
        check_fraction("max_loss", self.max_loss, cure=f"{MAX_LOSS} is the default, a lower share is stricter")
        self.cluster  # noqa: B018 - which reads the links

    @property
    def cluster(self) -> Cluster:
        """Where the plan is to run."""
        links = Links(read_link("local_link", self.local_link), read_link("link", self.link))
        here = available_memory()
        memory = float("inf") if here is None else float(here)
        return Cluster(self.machines, self.devices, links, memory if self.memory is None else 1e9 * self.memory)

    @property
    def measured_at_once(self) -> int:
        """Processes that are measured."""
        return self.processes or max(self.devices, min(2, self.machines * self.devices))


def plan_options() -> Options:
    """Return what the command takes."""
    skipped: dict[Callable[..., Any], set[str]] = {TemporalDataModule: {"batch_size"}, LinkPrediction: set()}
    return Options("plan", _DESCRIPTION, {PlanOptions: set(), **skipped})


def plan(arguments: Sequence[str]) -> None:
    """Run the command; every process measures, the first one plans.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or no plan fits.
        DataError: The source holds something that must not be trained on.
    """
    own, of_data, of_task = plan_options().parse(arguments)
    options = PlanOptions(**own)
    data = TemporalDataModule(**of_data)
    LinkPrediction(**of_task)  # before processes are started: a mistake is said once
    run = RunOptions(devices=options.measured_at_once, num_nodes=1, accelerator=options.accelerator)
    found = measure(
        data,
        of_task,
        run,
        options.batch_size,
        steps=options.steps,
        rounds=options.rounds,
        several_machines=options.machines > 1,
    )
    _recommend(options, data, found, of_data, of_task)


@rank_zero_only
def _recommend(
    options: PlanOptions,
    data: TemporalDataModule,
    found: Measurements,
    of_data: dict[str, Any],
    of_task: dict[str, Any],
) -> None:
    """Rank all plans, print them and keep what was found."""
    folder, console, cluster = Path(options.output), Console(), options.cluster
    distances, events = _distances(data), len(data.split.train)
    largest = distances.largest_batch(options.max_loss, events)
    candidates = Candidates(found, cluster, largest, options.batch_size is not None)
    stream = Stream(cache(distances.loss), options.max_loss, found.state_bytes)
    plans = rank(candidates.all(), cluster, stream, tolerance=_TOLERANCE)
    print_plans(plans, console)
    recipe = recipe_of(
        plans[0].candidate,
        cluster,
        of_data,
        of_task,
        accelerator=options.accelerator,
        epochs=options.epochs,
    )
    write_text(folder / "recipe.yaml", recipe)
    costs = {
        name: {"seconds": given.seconds, "bytes": given.sent, "batch_size": given.batch_size}
        for name, given in candidates.costs().items()
        if name != SHARDS
    }
    write_text(folder / "costs.yaml", yaml.safe_dump({"strategies": costs}, sort_keys=False))
    figures = {"options": asdict(options), "measured": asdict(found), "largest_batch": largest}
    figures |= {"plans": [figures_of(one) for one in plans]}
    write_text(folder / "plan.json", json.dumps(figures, indent=1))
    lines = [
        f"measured with {found.processes} processes at once on this machine, batches of {found.batch_size:,} events; "
        f"{found.fixed_share:.0%} of their time does not grow with the events",
        f"global batches of up to {largest:,} events lose at most {options.max_loss:.0%} of the updates of node memory",
        f"recipe: {_start(options.machines, options.devices)}lightning-tgnn fit --config {folder / 'recipe.yaml'}",
        "",
        recipe,
        f"figures: {folder / 'plan.json'}; simulate --stages {folder / 'costs.yaml'}",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _distances(data: TemporalDataModule) -> EventDistances:
    """Return how far apart the events of nodes are in the training split."""
    train = data.split.train
    return event_distances(*ends_by_node(data.store.src[train].numpy(), data.store.dst[train].numpy()))


def _start(machines: int, devices: int) -> str:
    """Return what stands before the command where several machines run it."""
    if machines == 1:
        return ""
    meeting = "--rdzv-backend c10d --rdzv-id plan --rdzv-endpoint HOST:29500"  # HOST is the first machine
    return f"torchrun --nnodes {machines} --nproc-per-node {devices} {meeting} --no-python "
