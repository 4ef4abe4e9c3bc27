"""``lightning-tgnn simulate``: how strategies would do on more ranks and hosts, from the seconds of their stages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from lightning_tgnn.algorithms.schedules.painter import chrome_trace, timeline_figure
from lightning_tgnn.algorithms.schedules.simulation import Simulation
from lightning_tgnn.algorithms.schedules.simulator import simulate as simulated
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.commands.shared.results import print_results
from lightning_tgnn.commands.simulate.given_costs import GivenCosts, read_costs
from lightning_tgnn.commands.simulate.options import DESCRIPTION, SimulateOptions
from lightning_tgnn.commands.simulate.plans import SimulatedPlan
from lightning_tgnn.commands.simulate.snapshot_costs import read_sizes, read_snapshot_costs
from lightning_tgnn.commands.simulate.snapshot_forecasts import (
    forecast_epoch,
    snapshot_metrics,
    snapshot_row,
)
from lightning_tgnn.files.whole import check_apart, new_file, write_text
from lightning_tgnn.types.layout import RankLayout
from lightning_tgnn.types.outline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PICTURED = 16  # ranks


def simulate(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
        DataError: The folder of stages is not the folder of a run.
    """
    (given,) = Options("simulate", DESCRIPTION, {SimulateOptions: set()}).parse(arguments)
    options = SimulateOptions(**given)
    check_apart(options.places, options.files_read)
    console = Console()
    for line in (_snapshots if options.on_snapshots else _events)(options, console):
        console.out(line, highlight=False)


def _events(options: SimulateOptions, console: Console) -> list[str]:
    """Simulate strategies on events, print the table, and return what is to be reported beside it."""
    plans = [SimulatedPlan.of(word) for word in options.written]
    costs = read_costs(options.stages, options.bytes)
    plans = [plan.with_shares(costs.for_plan(plan).shares) for plan in plans]
    size = options.batch_size or costs.batch_size or 600
    forecasts: list[Forecast] = []
    for plan in plans:
        for ranks in options.counts:
            found = _simulated(plan, costs, ranks, options)
            forecasts.append(Forecast.of(plan.written, found, options.hosts, size))
    print_results([forecast.row() for forecast in forecasts], console)
    lines = [f"{options.turns} turns of {size} events per rank; the second half is taken to be steady"]
    needed = {name for plan in plans for name in _missing(costs, plan, options)}
    if missing := sorted(needed, key=lambda name: (name.startswith("bytes of "), name)):
        lines.append(f"not given and taken to be 0: {', '.join(missing)}")
    last = _simulated(plans[-1], costs, max(options.counts), options)
    lines += _painted(last.timeline(), f"{plans[-1].written}, {last.ranks} ranks", options)
    return lines + _kept(size, [forecast.metrics() for forecast in forecasts], options)


def _snapshots(options: SimulateOptions, console: Console) -> list[str]:
    """Simulate strategies on snapshots, print the table, and return what is to be reported beside it."""
    if options.snapshots is None:
        cure = "give --snapshots '{count: 100, vertices: 5000, edges: 50000, varies: 7}', or a CSV file"
        raise InvalidArgumentError("snapshots", "the sizes of snapshots", options.snapshots, cure)
    plans, costs = [SimulatedPlan.of(word) for word in options.written], read_snapshot_costs(options.stages)
    given = read_sizes(options.snapshots)
    size = options.batch_size or (None if given.groups_per_update else 4)
    length = options.group_size or given.group_size or 8
    metrics = []
    for plan in plans:
        for ranks in options.counts:
            layout = RankLayout.of(ranks, per_host=ranks // options.hosts)
            devices = ranks // plan.strategy(ranks).fewest_ranks
            groups = size * devices if size else given.groups_per_update or 0
            found = forecast_epoch(
                plan, given.sizes, costs, layout, options.links, group_size=length, groups=groups, numbers=given.groups
            )
            metrics.append(snapshot_metrics(plan, found, options.hosts))
    print_results([snapshot_row(one) for one in metrics], console)
    played = len(given.sizes if given.groups is None else given.groups)
    update = f"{size} per device and update" if size else f"{given.groups_per_update} an update"
    lines = [f"{played} groups of up to {length} snapshots, {update}"]
    if found.pipelines:
        title = f"{plan.written}, {ranks} ranks, the longest device of the first update"
        lines += _painted(found.pipelines[0].timeline, title, options)
    elif options.timeline or options.trace:
        lines.append(f"{plan.written} has no timeline: its ranks keep step")
    sent = "B: bytes sent over links, of hidden state between ranks of one host too if others are on another one"
    return [*lines, sent, *_kept(size, metrics, options)]


def _kept(batch_size: int | None, metrics: list[dict[str, Any]], options: SimulateOptions) -> list[str]:
    """Write the metrics where that is asked for, and say where they are."""
    if options.output is None:
        return []
    write_text(Path(options.output), json.dumps({"batch_size": batch_size, "forecasts": metrics}, indent=1))
    return [f"metrics: {options.output}"]


def _missing(costs: GivenCosts, plan: SimulatedPlan, options: SimulateOptions) -> list[str]:
    return costs.for_plan(plan).missing(plan, max(options.counts))


def _simulated(plan: SimulatedPlan, costs: GivenCosts, ranks: int, options: SimulateOptions) -> Simulation:
    layout = RankLayout.of(ranks, per_host=ranks // options.hosts)
    outline = plan.outline(ranks, options.hosts)
    taken = costs.for_plan(plan).of(plan, outline, ranks, options.links)
    return simulated(outline, layout, taken, options.turns)


def _painted(whole: Timeline, title: str, options: SimulateOptions) -> list[str]:
    """Write the pictures that are asked for, and say where they are."""
    timeline, lines = whole.of(turns=range(options.shown_turns)), []
    if options.timeline is not None:
        shown = timeline.of(ranks=range(_PICTURED))
        _save(Path(options.timeline), timeline_figure(shown, title))
        lines.append(f"timeline: {options.timeline}")
    if options.trace is not None:
        write_text(Path(options.trace), json.dumps(chrome_trace(timeline)))
        lines.append(f"trace: {options.trace}, for chrome://tracing and ui.perfetto.dev")
    return lines


def _save(path: Path, figure: Figure) -> None:
    with new_file(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


@dataclass(frozen=True)
class Forecast:
    """A strategy on some ranks.

    Attributes:
        strategy: As it was written.
        ranks: How many.
        hosts: They are on.
        staleness: Updates that the weights of a batch lack.
        events_per_second: Of all ranks.
        seconds_per_turn: In steady state.
        bubble: Share of the time in which a rank computes nothing, the mean of the ranks.
        bubble_of_worst: That of the rank that has most of it.
        waiting: Seconds per turn for which a rank waits in steady state, by stage, the mean of the ranks.
        critical_path: Seconds per turn by stage, the mean of all turns, of what held up each other until the end.
    """

    strategy: str
    ranks: int
    hosts: int
    staleness: int
    events_per_second: float
    seconds_per_turn: float
    bubble: float
    bubble_of_worst: float
    waiting: dict[str, float]
    critical_path: dict[str, float]

    @classmethod
    def of(cls, strategy: str, found: Simulation, hosts: int, batch_size: int) -> Forecast:
        """Return the metrics of a simulated run.

        Raises:
            InvalidArgumentError: No stage of the simulated strategy takes time.
        """
        if not found.period:
            cure = "measured ones are in the folder of a run with SystemMonitor"
            raise InvalidArgumentError("seconds", f"above 0 for some stage of {strategy}", 0, cure)
        bubble, turns = found.bubble, found.turns - found.steady
        return cls(
            strategy=strategy,
            ranks=found.ranks,
            hosts=hosts,
            staleness=found.outline.staleness,
            events_per_second=found.events_per_second(batch_size),
            seconds_per_turn=found.period,
            bubble=float(bubble.mean()),
            bubble_of_worst=float(bubble.max()),
            waiting={name: float(seconds.mean()) / turns for name, seconds in found.waiting(found.steady).items()},
            critical_path={name: seconds / found.turns for name, seconds in found.critical_path().items()},
        )

    def metrics(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self)

    def row(self) -> dict[str, Any]:
        """Return what the table has of it."""
        waits = {"waits_for": ", ".join(list(self.waiting)[:2]), "hangs_on": _longest(self.critical_path)}
        return self.metrics() | waits


def _longest(path: dict[str, float]) -> str:
    total = sum(path.values())
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in list(path.items())[:3] if total)
