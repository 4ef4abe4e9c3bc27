"""``lightning-tgnn plan``: which strategy, with which options, for a source, a model and a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_tgnn.commands.plan.events import event_options, plan_events
from lightning_tgnn.commands.plan.snapshots import plan_snapshots, snapshot_options
from lightning_tgnn.commands.shared.kinds import EVENTS, SNAPSHOTS, Side, run_for_kind
from lightning_tgnn.commands.shared.recipe_options import with_recipes_as_options


def plan(arguments: Sequence[str]) -> None:
    """Run the command; every process measures, the first one plans.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or no plan fits.
        DataError: The source holds something that must not be trained on.
    """
    sides = {EVENTS: Side(event_options(), plan_events), SNAPSHOTS: Side(snapshot_options(), plan_snapshots)}
    run_for_kind("plan", with_recipes_as_options(arguments), sides)
