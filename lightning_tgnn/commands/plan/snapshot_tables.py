"""The output of `plan` for strategies on snapshots: a table, and the reason for the recommended one in words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from lightning_tgnn.algorithms.schedules.planner import compression_cost
from lightning_tgnn.commands.plan.snapshot_candidates import SnapshotCandidate
from lightning_tgnn.commands.plan.tables import FOR_COMPARISON
from lightning_tgnn.commands.shared.printed import print_table


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
    columns = ("groups/device", "s/epoch", "waiting", "MB between machines")
    shown = range(4) if wide else (0, 1)
    table = Table("plan", *(columns[number] for number in shown), "why")
    for column in table.columns[1:4] if wide else table.columns[1:3]:
        column.justify = "right"
    for one in [*found, alone]:
        figures = ("", "", "", "")
        if not one.objection:
            sent = ", ".join(f"{size / 1e6:,.2f} {kind}" for kind, size in one.sent.items() if size)
            figures = str(one.batch_size), f"{one.seconds:,.3f}", f"{one.waiting:.1%}", sent or "0"
        why = FOR_COMPARISON if one is alone else snapshot_reason(one, found)
        table.add_row(one.written, *(figures[number] for number in shown), why)
    print_table(table, console, wide=wide)


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
