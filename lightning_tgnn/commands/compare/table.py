"""The table of ``lightning-tgnn compare``: a row for each model and kind of negatives, of means over seeds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from lightning_tgnn.commands.shared.printed import BASELINES, FIGURES, row_and_figure
from lightning_tgnn.files.memory import readable_size
from lightning_tgnn.files.whole import write_text


@dataclass
class Row:
    """Metrics of one model with one kind of negatives.

    Attributes:
        model: Its name.
        negatives: Protocol and kind of the negatives.
        values: One value for each seed, by metric.
        cost: One value for each seed of ``events_per_second`` and ``peak_bytes``; empty for a baseline.
    """

    model: str
    negatives: str
    values: dict[str, list[float]] = field(default_factory=dict)
    cost: dict[str, list[float]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return what JSON holds."""
        return {"model": self.model, "negatives": self.negatives, "metrics": self.values, **self.cost}


def rows_of(results: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Row]:
    """Return the rows of the results of runs, models in the order in which they come and baselines last.

    Args:
        results: The model, and the result of `ComparedRun`, for each seed of each model.
    """
    rows: dict[tuple[str, str], Row] = {}
    baselines: dict[tuple[str, str], Row] = {}
    for model, result in results:
        for kind, measured in result["tests"].items():
            own: set[tuple[str, str]] = set()
            for name, value in measured.items():
                place = row_and_figure(name)
                if place is None:
                    continue
                baseline, rule, figure = place
                negatives = ", ".join(part for part in (rule, kind) if part)
                key = (BASELINES.get(baseline, model), negatives)
                table = baselines if baseline else rows
                values = table.setdefault(key, Row(*key)).values.setdefault(figure, [])
                # Seeds of weights do not change what learns nothing.
                if not baseline:
                    own.add(key)
                    values.append(value)
                elif not values:
                    values.append(value)
            for key in own:
                for cost in ("events_per_second", "peak_bytes"):
                    if result[cost] is not None:
                        rows[key].cost.setdefault(cost, []).append(result[cost])
    return [*rows.values(), *baselines.values()]


def _form(values: Sequence[float] | None) -> str:
    if not values:
        return ""
    deviation = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{fmean(values):.4f}{deviation}"


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the head and the rows of the table, as they are read."""
    found = {figure for row in rows for figure in row.values}
    figures = [figure for figure in FIGURES if figure in found] + sorted(found - FIGURES.keys())
    head = ["model", "negatives", *(FIGURES.get(figure, figure) for figure in figures), "events/s", "peak memory"]
    body = [
        [
            row.model,
            row.negatives,
            *(_form(row.values.get(figure)) for figure in figures),
            f"{fmean(row.cost['events_per_second']):,.0f}" if "events_per_second" in row.cost else "",
            readable_size(round(max(row.cost["peak_bytes"]))) if "peak_bytes" in row.cost else "",
        ]
        for row in rows
    ]
    return [head, *body]


def printed(lines: Sequence[Sequence[str]]) -> Table:
    """Return the table for a terminal."""
    table = Table(*lines[0])
    for line in lines[1:]:
        table.add_row(*line)
    return table


def write(rows: Sequence[Row], folder: Path, about: Mapping[str, Any]) -> list[Path]:
    """Write ``compare.md``, ``compare.csv`` and ``compare.json``, and return where they are."""
    lines = cells(rows)
    markdown = ["| " + " | ".join(line) + " |" for line in (lines[0], ["---"] * len(lines[0]), *lines[1:])]
    figures = sorted({figure for row in rows for figure in row.values})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    costs = ("events_per_second", "peak_bytes")
    columns = [column for figure in figures for column in (figure, f"{figure}_std")]
    table.writerow(["model", "negatives", "seeds", *columns, *costs])
    for row in rows:
        numbers: list[object] = []
        for figure in figures:
            values = row.values.get(figure, [])
            numbers += [fmean(values) if values else "", stdev(values) if len(values) > 1 else ""]
        spent = [fmean(row.cost[cost]) if cost in row.cost else "" for cost in costs]
        table.writerow([row.model, row.negatives, max(map(len, row.values.values())), *numbers, *spent])
    contents = {
        "compare.md": "\n".join(markdown) + "\n",
        "compare.csv": text.getvalue(),
        "compare.json": json.dumps({**about, "rows": [row.plain() for row in rows]}, indent=2),
    }
    for name, content in contents.items():
        write_text(folder / name, content)
    return [folder / name for name in contents]
