"""One HTML page of several runs: settings that differ, metrics, speed and the curves over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

import numpy as np

from lightning_tgnn.commands.report import run_charts
from lightning_tgnn.commands.report.run_figures import figure_rows, validation_in_training
from lightning_tgnn.commands.report.run_log import RunLog, Series

_CURVES = ("train/loss", "val/ap", "val/accuracy", "val/f1", "val/loss")
_SPEEDS = ("system/events_per_second", "system/milliseconds_per_step")
Rows = dict[str, list[str]]


def tables_of(logs: Sequence[RunLog], settings: Sequence[Mapping[str, str]]) -> dict[str, Rows]:
    """Return what the page shows, by title: rows by name, with a value for each run.

    Args:
        logs: Of the runs.
        settings: Of each, by name.
    """
    named = {name: [held.get(name, "") for held in settings] for held in settings for name in held}
    differing = {name: values for name, values in sorted(named.items()) if len(set(values)) > 1}
    rows = [{row[0]: row for row in figure_rows(log)} for log in logs]
    none = ("", "", "", "", "")
    names = sorted({name for held in rows for name in held})
    metrics: Rows = {}
    for title, place in (("best validation", 1), ("tested checkpoint, validation", 3), ("test", 4)):
        for name in names:
            values = [held.get(name, none)[place] for held in rows]
            if any(values):
                metrics[f"{name}, {title}"] = values
    return {"Settings that differ": differing, "Metrics": metrics, "Speed, median": _speeds(logs)}


def comparison_of(logs: Sequence[RunLog], settings: Sequence[Mapping[str, str]], notices: list[str]) -> str:
    """Return the page.

    Args:
        logs: Of the runs.
        settings: Of each, by name.
        notices: What the reader has to know, one line each.
    """
    from jinja2 import Environment, StrictUndefined

    source = files("lightning_tgnn.commands.report").joinpath("comparison.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(source)
    names = [str(log.folder) for log in logs]
    return template.render(names=names, notices=notices, tables=tables_of(logs, settings), charts=_charts(logs, names))


def _speeds(logs: Sequence[RunLog]) -> Rows:
    found: Rows = {}
    for tag in _SPEEDS:
        there = [log.of_kind("scalars").get(tag) for log in logs]
        if any(there):
            found[tag.removeprefix("system/")] = [
                "" if curve is None else f"{np.median(curve.numbers()):,.1f}" for curve in there
            ]
    return found


def _charts(logs: Sequence[RunLog], names: Sequence[str]) -> list[str]:
    """Return a chart for each of some curves that a run has."""
    charts = []
    for tag in _CURVES:
        curves: dict[str, Series] = {}
        for log, name in zip(logs, names, strict=True):
            curve = (validation_in_training(log) if tag.startswith("val/") else log.of_kind("scalars")).get(tag)
            curves |= {} if curve is None else {name: curve}
        if curves:
            charts.append(run_charts.lines(curves, title=tag))
    return charts
