"""``lightning-tgnn bench``: trains with several strategies in turn and compares speed, traffic and what was learnt."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_tgnn.commands.bench.events import bench_events, event_options
from lightning_tgnn.commands.bench.graph import bench_graph, graph_options
from lightning_tgnn.commands.bench.snapshots import bench_snapshots, snapshot_options
from lightning_tgnn.commands.shared.kinds import EVENTS, GRAPH, SNAPSHOTS, Side, run_for_kind
from lightning_tgnn.commands.shared.recipe_options import with_recipes_as_options


def bench(arguments: Sequence[str]) -> None:
    """Run the command; every process runs all of it, the first one reports.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """
    sides = {
        EVENTS: Side(event_options(), bench_events),
        GRAPH: Side(graph_options(), bench_graph),
        SNAPSHOTS: Side(snapshot_options(), bench_snapshots),
    }
    run_for_kind("bench", with_recipes_as_options(arguments), sides)
