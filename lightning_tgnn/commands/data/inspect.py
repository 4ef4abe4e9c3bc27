"""``lightning-tgnn data inspect``: what an event stream is like, as tables, as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as PrintedTable

from lightning_tgnn.algorithms.streams.information_loss import MAX_LOSS, event_distances, loss_by_degree
from lightning_tgnn.algorithms.streams.stream_statistics import (
    Table,
    burstiness,
    count_statistics,
    degrees,
    ends_by_node,
    gaps,
    repetition_statistics,
    summary,
)
from lightning_tgnn.checks import check_fraction
from lightning_tgnn.commands.data.inspect_snapshots import CutOptions, inspect_snapshots
from lightning_tgnn.commands.data.stream_figure import save_stream_figure
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.data import EventStore
from lightning_tgnn.data.sources.open_events import read_source
from lightning_tgnn.data.streams.split_stream import tie_notice
from lightning_tgnn.files.whole import write_text

_DESCRIPTION = """Look at a stream: counts, ties, repetition, degrees, times between events, useful batches.

  lightning-tgnn data inspect --source wikipedia.txt.gz --output runs/inspect

DIR gets stream.json with all figures, and stream.png with events over time and both distributions.

  lightning-tgnn data inspect --source wikipedia.txt.gz --snapshots 100

looks at the stream in snapshots: their sizes, and what changes between them. DIR gets snapshots.json.
"""

_BEFORE_TEST = 0.85
_BUSIEST = 0.1
_BATCH_SIZES = (50, 100, 200, 400, 600, 1000, 2000, 4000, 8000)


@dataclass(frozen=True)
class InspectOptions:
    """What to look for.

    Args:
        output: Folder of the results; files of an earlier look are overwritten.
        max_loss: The largest useful batch loses at most this share of the updates of node memory. 0.75 lets Wikipedia's
            usual batch of 600, which loses 0.73, pass.
    """

    output: str = "runs/inspect"
    max_loss: float = MAX_LOSS

    def __post_init__(self) -> None:
        check_fraction("max_loss", self.max_loss, cure="0.75 is the default, a lower share is stricter")


def inspect(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or the folder cannot be written.
        DataError: The source holds something that must not be trained on.
    """
    groups: dict[Callable[..., Any], set[str]] = {InspectOptions: set(), CutOptions: set(), read_source: set()}
    own, of_cut, of_data = Options("data inspect", _DESCRIPTION, groups).parse(arguments)
    options, cut, folder = InspectOptions(**own), CutOptions(**of_cut), Path(own["output"])
    if cut.asked(of_data["source"]):
        inspect_snapshots(cut, of_data, folder)
        return
    store = read_source(**of_data)
    figures = {"source": str(of_data["source"]), **describe(store, options.max_loss)}
    write_text(folder / "stream.json", json.dumps(figures, indent=1, ensure_ascii=False))
    save_stream_figure(folder / "stream.png", store)
    _print_stream(Console(), figures, folder)


def describe(store: EventStore, max_loss: float) -> dict[str, Any]:
    """Return the figures of a stream as plain values.

    Args:
        store: The stream.
        max_loss: Share of the updates of node memory that the largest useful batch may lose.
    """
    src, dst, time = store.src.numpy(), store.dst.numpy(), store.time.numpy()
    repetition = repetition_statistics(src, dst, int(_BEFORE_TEST * len(store))) if len(store) > 1 else {}
    return {
        "nodes": store.num_nodes,
        "edge_feature_dim": store.edge_feature_dim,
        "node_feature_dim": store.node_feature_dim,
        "has_labels": store.labels is not None,
        "fingerprint": store.fingerprint,
        "counts": count_statistics(src, dst, time),
        "repetition": repetition,
        "degrees": summary(degrees(src, dst)),
        "gaps": _gap_table(gaps(src, dst, time)),
        "batches": _batches(src, dst, max_loss),
    }


def _gap_table(found: dict[str, np.ndarray]) -> Table:
    return {name: {**row, "burstiness": burstiness(found[name])} for name, row in summary(found).items()}


def _batches(src: np.ndarray, dst: np.ndarray, max_loss: float) -> dict[str, Any]:
    nodes, events = ends_by_node(src, dst)
    degree = np.bincount(nodes)
    busy = degree >= max(np.quantile(degree[degree > 0], 1 - _BUSIEST), 1)
    of_all, of_busy = event_distances(nodes, events), event_distances(nodes, events, busy)
    return {
        "max_loss": max_loss,
        "largest": of_all.largest_batch(max_loss, len(src)),
        "loss": {size: of_all.loss(size) for size in _BATCH_SIZES},
        "loss_of_busiest_tenth": {size: of_busy.loss(size) for size in _BATCH_SIZES},
        "loss_by_degree": loss_by_degree(nodes, events, _BATCH_SIZES),
    }


def _print_stream(console: Console, figures: dict[str, Any], folder: Path) -> None:
    """Print the figures of a stream and where their files are.

    Args:
        console: Where to.
        figures: What `describe` returned.
        folder: Where the files are.
    """
    single = PrintedTable("", "value")
    single.columns[1].justify = "right"
    for name, value in {"nodes": figures["nodes"], **figures["counts"], **figures["repetition"]}.items():
        single.add_row(name.replace("_", " "), _text(value))
    print_table(single, console)
    if notice := tie_notice(figures["counts"]["tie_rate"]):
        console.print(notice, soft_wrap=True)
    _print_rows(console, "events per", figures["degrees"])
    _print_rows(console, "gaps of", figures["gaps"])
    _print_batches(console, figures["batches"])
    console.print(f"figures and picture: {folder}", soft_wrap=True)


def _print_rows(console: Console, title: str, rows: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(rows.values()), {}))
    table = PrintedTable(title, *names)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in rows.items():
        table.add_row(name, *(_text(row[column]) for column in names))
    print_table(table, console)


def _print_batches(console: Console, batches: dict[str, Any]) -> None:
    table = PrintedTable("batch size", *(f"{size:,}" for size in batches["loss"]))
    table.add_row("updates lost", *(f"{loss:.0%}" for loss in batches["loss"].values()))
    table.add_row("busiest tenth", *(f"{loss:.0%}" for loss in batches["loss_of_busiest_tenth"].values()))
    for degree, losses in batches["loss_by_degree"].items():
        table.add_row(f"nodes of {degree} events", *(f"{loss:.0%}" for loss in losses.values()))
    print_table(table, console)
    console.print(f"largest batch that loses at most {batches['max_loss']:.0%}: {batches['largest']:,} events")


def _text(value: float) -> str:
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):,}"
    digits = 0 if abs(value) >= 1000 else 2 if abs(value) >= 10 else 4
    return f"{value:,.{digits}f}"
