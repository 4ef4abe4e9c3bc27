"""``lightning-tgnn report``: one HTML page of a run, or of several beside each other."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console

from lightning_tgnn.checks import InvalidArgumentError, with_home
from lightning_tgnn.commands.report import run_charts
from lightning_tgnn.commands.report.run_log import RunLog, Series, figure_rows, read_latest, validation_in_training
from lightning_tgnn.commands.report.run_page import is_page, page_of
from lightning_tgnn.commands.shared.parse_errors import OneLineErrors
from lightning_tgnn.files.whole import check_ending, write_text

_DESCRIPTION = """Write one HTML page of a run from its logs: metrics, settings, curves, shares of time, tables.

  lightning-tgnn report runs/quickstart/version_0
  lightning-tgnn report runs/quickstart --output quickstart.html     the latest version that has trained
  lightning-tgnn report runs/a runs/b                                compares runs: settings that differ, metrics, speed
"""
_OUTPUT = "The page, a new file or a page of before; report.html in the folder of the run, or comparison.html here."
_ENDINGS = (".html", ".htm")
_SETTINGS_FILES = ("config.yaml", "hparams.yaml")


def report(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        DataError: The folder holds no run that has logged something.
        InvalidArgumentError: The page cannot be written, its name has another ending, or it would replace a file that
            is no page.
    """
    parser = OneLineErrors(
        "lightning-tgnn report",
        description=_DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", nargs="+", help="Folder of a run, or of its versions.")
    parser.add_argument("--output", help=_OUTPUT)
    chosen = parser.parse_args(arguments)
    given, run_dirs = chosen.output and Path(with_home(chosen.output)), [Path(with_home(one)) for one in chosen.run_dir]
    if given:
        check_ending("output", given, *_ENDINGS)
        _check_kept(given)
    logs = [read_latest(run_dir) for run_dir in run_dirs]
    settings, notices = list[dict[str, str]](), list[str]()
    for log, run_dir in zip(logs, run_dirs, strict=True):
        held, without = read_settings(log.folder)
        settings.append(held)
        said = [*log.notices, *([] if without is None else [without])]
        if log.folder != run_dir:
            which = "the latest version that has trained" if log.has_trained else "the latest version"
            said.insert(0, f"{log.folder.name} is {which} in {run_dir}")
        notices += said if len(logs) == 1 else [f"{log.folder}: {line}" for line in said]
    if len(logs) == 1:
        output = given or logs[0].folder / "report.html"
        page = page_of(logs[0], settings[0], notices)
    else:
        output = given or Path("comparison.html")
        _check_kept(output)
        page = comparison_of(logs, settings, notices)
    write_text(output, page)
    console = Console()
    for line in (*notices, f"page: {output}"):
        console.out(line, highlight=False)


def _check_kept(output: Path) -> None:
    """Refuse to write over a file that is no page of a run; such a one may be replaced."""
    if output.is_file() and not is_page(output):
        cure = "name another file, or remove that one"
        raise InvalidArgumentError("output", "a new file, or a page of a run to replace", str(output), cure)


def read_settings(folder: Path) -> tuple[dict[str, str], str | None]:
    """Return the settings that are not null, by name with dots, and a notice where there are none to read.

    Args:
        folder: Of a run; the first of ``config.yaml`` and ``hparams.yaml`` that has something counts.
    """
    notice = f"no settings: neither {' nor '.join(_SETTINGS_FILES)} has any"
    for name in _SETTINGS_FILES:
        path = folder / name
        if not path.exists():
            continue
        try:
            read = yaml.safe_load(path.read_text(encoding="utf-8"))
            settings = dict(_flat(read)) if isinstance(read, dict) else {}
        except (
            yaml.YAMLError,
            OSError,
            ValueError,
            RecursionError,
        ) as error:  # no such date; an alias to itself
            notice = f"{name} cannot be read: {' '.join(str(error).split())}"
            continue
        if settings:
            return settings, None
    return {}, notice


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and value of what a tree holds."""
    if isinstance(value, dict):
        for key, below in value.items():
            # What a class is given stands behind the class as if it were its own.
            yield from _flat(below, name if key in ("class_path", "init_args") else f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(entry, (dict, list)) for entry in value):
        for number, entry in enumerate(value):
            yield from _flat(entry, f"{name}[{number}]")
    elif value is not None:
        yield name, str(value)


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
        there = [log.by_kind("scalars").get(tag) for log in logs]
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
            curve = (validation_in_training(log) if tag.startswith("val/") else log.by_kind("scalars")).get(tag)
            curves |= {} if curve is None else {name: curve}
        if curves:
            charts.append(run_charts.lines(curves, title=tag))
    return charts
