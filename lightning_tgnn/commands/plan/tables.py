"""The output of `plan`: the plans in a table, and the reason for the recommended one in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from lightning_tgnn.algorithms.schedules.planner import Assessment
from lightning_tgnn.commands.shared.results import print_results

_SHOWN = 12
FOR_COMPARISON = "to compare with: the same global batches on the cores of one rank; bench measures it"


def print_plans(found: Sequence[Assessment], alone: Assessment, console: Console, *, wide: bool = False) -> None:
    """Print a row for each plan, the recommended one first, and one for one process.

    Args:
        found: As `planner.rank` returns them.
        alone: One process.
        console: Where to.
        wide: Whether the table has all columns.
    """
    rows = [(one, reason(one, found, place)) for place, one in enumerate(found[:_SHOWN])]
    print_results([_row(one, why, wide) for one, why in [*rows, (alone, FOR_COMPARISON)]], console, wide=wide)
    if note := where_state_belongs(found):
        console.out(note, highlight=False)
    hidden = found[_SHOWN:]
    left_out = [one for one in hidden if one.objection]
    if left_out:  # by speed, as `planner.rank` has them
        more = f"; {len(left_out) - 1} more are left out, see plan.json" if len(left_out) > 1 else ""
        line = f"left out: {left_out[0].candidate.written}: {left_out[0].objection}{more}"
        console.out(line, highlight=False)
    if slower := len(hidden) - len(left_out):
        console.out(f"slower and in plan.json: {slower} more", highlight=False)


def _row(one: Assessment, why: str, wide: bool) -> dict[str, Any]:
    """Return what the table has of a plan."""
    further = {
        "state_bytes": one.state_bytes,
        "sent_per_event": one.sent_per_event,
        "updates_lost": one.loss,
        "staleness": one.staleness,
    }
    return {
        "strategy": one.candidate.written,
        "batch_size": one.candidate.batch_size,
        "events_per_second": one.events_per_second,
        "why": why,
    } | (further if wide else {})


def where_state_belongs(found: Sequence[Assessment]) -> str:
    """Say whether all node state on every rank, or rows cut over the ranks, is the better choice.

    Empty for one rank, and where neither can be recommended.

    Args:
        found: As `planner.rank` returns them.
    """
    first = {one.candidate.strategy: one for one in reversed(found)}
    whole, cut = first.get("depcache"), first.get("sven")
    if whole is None or cut is None or not cut.state_per_event:
        return ""
    if whole.objection and cut.objection:
        return ""
    for refused, taken in ((whole, cut), (cut, whole)):
        if refused.objection:
            return f"{taken.candidate.strategy} rather than {refused.candidate.strategy}: {refused.objection}"
    better, other = sorted((whole, cut), key=lambda one: -one.events_per_second)
    sent = [one.state_per_event * one.candidate.batch_size / 1e3 for one in (better, other)]
    return (
        f"{better.candidate.strategy} rather than {other.candidate.strategy}: {better.events_per_second:,.0f} against "
        f"{other.events_per_second:,.0f} events/s, "
        f"of node state {sent[0]:,.0f} against {sent[1]:,.0f} kB a rank and turn"
    )


def reason(one: Assessment, found: Sequence[Assessment], place: int) -> str:
    """Return in words why a plan is recommended, or why it is not.

    Args:
        one: The plan.
        found: All, the recommended one first.
        place: Its place among them.
    """
    if one.objection:
        return one.objection
    first = found[0]
    fastest = max(each.events_per_second for each in found if not each.objection)
    slower = 1 - one.events_per_second / fastest
    waits = ", ".join(f"{share:.0%} for {name}" for name, share in list(one.waits_for.items())[:2] if share >= 0.01)
    waiting = (f"; {one.candidate.note}" if one.candidate.note else "") + (f"; waits {waits}" if waits else "")
    if place == 0:
        others = any(each.objection and each.events_per_second > fastest for each in found)
        best = "the fastest of those that are not left out" if others else "the fastest"
        speed = best if slower < 0.005 else f"{slower:.1%} slower than {best}, and costs less accuracy"
        return f"recommended: {speed}{waiting}"
    if one.events_per_second > first.events_per_second:
        faster = one.events_per_second / first.events_per_second - 1
        return f"{faster:.0%} faster, but {_dearer(one, first)}{waiting}"
    return f"{slower:.1%} slower than the fastest{waiting}"


def _dearer(one: Assessment, first: Assessment) -> str:
    """Say what a plan costs in accuracy beyond the recommended one."""
    if one.staleness > first.staleness:
        return f"staleness {one.staleness} instead of {first.staleness}"
    if one.loss > first.loss:
        return f"loses {one.loss:.0%} of the updates instead of {first.loss:.0%}"
    compression = one.candidate.options.get("gradient_compression")
    if compression != first.candidate.options.get("gradient_compression"):
        return f"gradients travel as {compression or 'they are'}"
    return "updates of more batches at once"


def describe_spread(spread: float, plans: Sequence[Assessment]) -> str:
    """Say how far the windows of a strategy lie apart, and of which plans the order may be another in the next run.

    Args:
        spread: As `Measurements.spread` is.
        plans: The recommended one first.
    """
    said = f"the median window of a strategy took up to {spread:.0%} longer than its fastest, which counts"
    fitting = [plan for plan in plans if not plan.objection]
    least = max(plan.events_per_second for plan in fitting) / (1 + spread)
    close = sum(plan.events_per_second >= least for plan in fitting)
    if close < 2:
        return said
    return f"{said}: the first {close} plans are not distinguishable here; take auto-state, or more --rounds"


def metrics_of(one: Assessment) -> dict[str, Any]:
    """Return all that is known of a plan as plain values."""
    held = {name: value for name, value in vars(one).items() if name != "candidate"}
    plan = one.candidate
    return {
        "plan": plan.written,
        "strategy": plan.strategy,
        "options": dict(plan.options),
        "batch_size": plan.batch_size,
        "global_batch": plan.global_batch,
        "batches_at_once": plan.batches_at_once,
        "staleness": one.staleness,
        **held,
        "links": asdict(plan.costs.links),
    }
