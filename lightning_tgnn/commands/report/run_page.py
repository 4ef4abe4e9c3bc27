"""One HTML page of a run: settings, metrics, curves, and where the time went. It needs nothing beside itself."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lightning_tgnn.commands.report import run_charts
from lightning_tgnn.commands.report.run_log import (
    RunLog,
    Series,
    figure_rows,
    is_of_baseline,
    stage_seconds,
    stage_shares,
    validation_in_training,
)

_SHOWN = ("train/loss", "train/accuracy", "system/events_per_second", "system/milliseconds_per_step")
_MEMORY = {"memory/norm": "norm", "memory/age": "age, in the stream's unit"}
# Lines of every page: of those written from now on, and of those written before.
_MARKS = (
    b'<meta name="generator" content="lightning-tgnn report">',
    b"body { font: 15px/1.5 system-ui, sans-serif; color:",
)
_HEAD = 65_536  # bytes, among them the name of a folder
# Where settings stand in a recipe, and in what a run from Python has logged.
_FACTS = {"model": ("model.model", "model"), "source": ("data.source",), "strategy": ("trainer.strategy",)}
# Shown elsewhere, or of no interest as a curve.
_NO_CURVE = ("epoch", "hp_metric", "train/events_per_second", "memory/broken_rows", "system/window_seconds")


def page_of(log: RunLog, settings: Mapping[str, str], notices: list[str]) -> str:
    """Return the page.

    Args:
        log: Of the run.
        settings: By name.
        notices: What the reader has to know, one line each.
    """
    from jinja2 import Environment, StrictUndefined

    source = files("lightning_tgnn.commands.report").joinpath("report.html").read_text(encoding="utf-8")
    # Everything that comes from a run is escaped; what is not are our own charts, marked so in the template.
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(source)
    stages, rows = stage_seconds(log), figure_rows(log)
    baselines = [row for row in rows if is_of_baseline(f"test/{row[0]}")]
    own = [row for row in rows if row not in baselines]
    return template.render(
        folder=str(log.folder),
        facts=_facts(log, settings),
        notices=notices,
        metrics={"Metrics": own, "Baselines": baselines},
        stages=_stage_rows(stages),
        charts=_sections(log, stages),
        settings=settings,
        table=_all_scalars(log),
    )


def is_page(path: Path) -> bool:
    """Whether a file is a page of a run, of this version or an earlier one."""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(_HEAD)
        return any(mark in head for mark in _MARKS)
    return False


def _facts(log: RunLog, settings: Mapping[str, str]) -> list[tuple[str, str]]:
    facts = [("first value", _moment(log.began)), ("logged over", _duration(log.ended - log.began))]
    facts.append(("steps", str(max(max(series.steps) for series in log.series.values()))))
    for title, names in _FACTS.items():
        facts += [(title, settings[name]) for name in names if name in settings][:1]
    if (rate := log.by_kind("scalars").get("system/events_per_second")) is not None:
        facts.append(("events/s, median", f"{np.median(rate.numbers()):,.0f}"))
    return facts


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):  # no time, or none of this calendar
        return "not known"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "not known"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _stage_rows(stages: Mapping[str, float]) -> list[tuple[str, str, str]]:
    total = sum(stages.values()) or 1.0
    longest = sorted(stages.items(), key=lambda item: -item[1])
    return [(stage, f"{seconds:.2f}", f"{seconds / total:.1%}") for stage, seconds in longest]


def _sections(log: RunLog, stages: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the charts of each section, without empty sections."""
    sections = {
        "Training and validation": _curves(log),
        "Where the time of training steps goes": _times(log, stages),
        "Redundancy": _redundancy(log),
        "Scores": _scores(log),
        "Node memory": _memory(log),
        "Exchange and more": _others(log),
        "Pictures": _pictures(log),
    }
    return {title: charts for title, charts in sections.items() if charts}


def _curves(log: RunLog) -> list[str]:
    scalars = log.by_kind("scalars")
    charts = [run_charts.lines({tag: scalars[tag]}, title=tag) for tag in _SHOWN if tag in scalars]
    if validation := validation_in_training(log):
        for title, is_baseline in (("baselines", True), ("validation", False)):
            chosen = {tag: curve for tag, curve in validation.items() if is_of_baseline(tag) == is_baseline}
            if chosen:
                charts.insert(1, run_charts.lines(chosen, title=title))
    return charts


def _times(log: RunLog, stages: Mapping[str, float]) -> list[str]:
    if not stages:
        return []
    total = sum(stages.values()) or 1.0
    bars = run_charts.share_bars({stage: seconds / total for stage, seconds in stages.items()})
    steps, shares = stage_shares(log)
    return [bars, run_charts.stacked_shares(steps, shares)] if len(steps) > 1 else [bars]


def _redundancy(log: RunLog) -> list[str]:
    rates = {tag: series for tag, series in log.by_kind("scalars").items() if tag.startswith("redundancy/")}
    return [run_charts.lines(rates, title="share of entries that repeat a node of their batch")] if rates else []


def _scores(log: RunLog) -> list[str]:
    counted, charts = log.by_kind("histograms"), []
    for split in ("val", "test"):
        names = {name: f"scores/{split}_{name}" for name in ("positive", "negative")}
        shown = {name: counted[tag].values[-1] for name, tag in names.items() if tag in counted}
        if shown:
            charts.append(run_charts.histograms(shown, title=f"{split}: probability", xlabel="probability"))
    curves = {tag.removeprefix("scores/"): series.values[-1] for tag, series in log.by_kind("pr_curves").items()}
    return [*charts, run_charts.precision_recall(curves, title="precision and recall")] if curves else charts


def _memory(log: RunLog) -> list[str]:
    counted = log.by_kind("histograms")
    return [
        run_charts.histograms(_first_and_last(counted[tag]), title=f"memory: {title}", xlabel=title)
        for tag, title in _MEMORY.items()
        if tag in counted
    ]


def _first_and_last(series: Series) -> dict[str, np.ndarray]:
    names = [f"step {step}" for step in (series.steps[0], series.steps[-1])]
    return dict(zip(names, (series.values[0], series.values[-1]), strict=True))


def _others(log: RunLog) -> list[str]:
    shown = ("val/", "test/", "time/", "redundancy/")
    return [
        run_charts.lines({tag: series}, title=tag)
        for tag, series in log.by_kind("scalars").items()
        if tag not in (*_SHOWN, *_NO_CURVE) and not tag.startswith(shown)
    ]


def _pictures(log: RunLog) -> list[Any]:
    """Return the latest picture of each tag: width, height, then the file itself."""
    from markupsafe import escape

    return [
        f'<img alt="{escape(tag)}" src="data:image/png;base64,{base64.b64encode(series.values[-1][2]).decode()}">'
        for tag, series in log.by_kind("images").items()
    ]


def _all_scalars(log: RunLog) -> list[tuple[str, ...]]:
    rows = []
    for tag, series in log.by_kind("scalars").items():
        numbers = series.numbers()
        rows.append((tag, str(len(numbers)), *(f"{value:.5g}" for value in (*numbers[[0, -1]], *_ends(numbers)))))
    return rows


def _ends(numbers: np.ndarray) -> tuple[float, float]:
    there = numbers[~np.isnan(numbers)]
    return (float(there.min()), float(there.max())) if len(there) else (float("nan"), float("nan"))
