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

from lightning_tgnn.algorithms.streams.information_loss import MAX_LOSS, largest_batch, share_lost
from lightning_tgnn.algorithms.streams.large_columns import Table, burstiness, in_pieces, summary
from lightning_tgnn.algorithms.streams.stream_statistics import NodeCounts, count_statistics, repetition_statistics
from lightning_tgnn.checks import InvalidArgumentError, check_fraction, refusal
from lightning_tgnn.commands.data.inspect_snapshots import SnapshotCutOptions, inspect_snapshots
from lightning_tgnn.commands.data.sorted_columns import AT_ONCE, SortedColumns, sort_columns
from lightning_tgnn.commands.data.stream_figure import save_stream_figure
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.data import EventStore
from lightning_tgnn.data.graphs.checks import check_ends
from lightning_tgnn.data.readers.dates import dates_of
from lightning_tgnn.data.sources.open_events import read_source
from lightning_tgnn.data.standardize import Moments
from lightning_tgnn.data.streams.origin import Origin
from lightning_tgnn.data.streams.split_stream import tie_notice
from lightning_tgnn.files.scratch_folder import ScratchFolder
from lightning_tgnn.files.whole import write_text, writing_to

_DESCRIPTION = """Look at a stream: counts, ties, repetition, degrees, times between events, useful batches.

  lightning-tgnn data inspect --source wikipedia.txt.gz --output runs/inspect

DIR gets stream.json with all figures, and stream.png with events over time and both distributions.

  lightning-tgnn data inspect --source wikipedia.txt.gz --snapshots 100

looks at the stream in snapshots: their sizes, and what changes between them. DIR gets snapshots.json.

A stream may be larger than memory: it is sorted in pieces, into files in DIR of some 50 bytes an event, which go again.
"""

_FEATURES = 12  # that are printed
_BATCH_SIZES = (50, 100, 200, 400, 600, 1000, 2000, 4000, 8000)


@dataclass(frozen=True)
class InspectOptions:
    """What to look for.

    Args:
        output: Folder of the results; files of an earlier look are overwritten.
        max_loss: The largest useful batch loses at most this share of the updates of node memory. 0.75 lets Wikipedia's
            usual batch of 600, which loses 0.73, pass. Not with snapshots.
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
    groups: dict[Callable[..., Any], set[str]] = {InspectOptions: set(), SnapshotCutOptions: set(), read_source: set()}
    own, of_cut, of_data = Options("data inspect", _DESCRIPTION, groups).parse(arguments)
    options, cut, folder = InspectOptions(**own), SnapshotCutOptions(**of_cut), Path(own["output"])
    if cut.asked(of_data["source"]):
        if options.max_loss != MAX_LOSS:
            cure = "leave it out, or look at the stream"
            raise InvalidArgumentError(refusal("max_loss", "left out with snapshots", options.max_loss, cure))
        inspect_snapshots(cut, of_data, folder)
        return
    store = read_source(**of_data)
    check_ends("src", store.src, store.num_nodes)
    check_ends("dst", store.dst, store.num_nodes)
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        scratch = ScratchFolder(folder, "lightning_tgnn-inspect")
        try:
            described, columns, nodes = describe(store, options.max_loss, scratch.path)
            figures = {"source": str(of_data["source"]), **described}
            save_stream_figure(folder / "stream.png", store.time.numpy(), nodes.degrees(), columns.gaps)
        finally:
            scratch.remove()
    write_text(folder / "stream.json", json.dumps(figures, indent=1, ensure_ascii=False))
    _print_stream(Console(), figures, folder)


def describe(
    store: EventStore, max_loss: float, scratch: Path, at_once: int = AT_ONCE
) -> tuple[dict[str, Any], SortedColumns, NodeCounts]:
    """Return the figures of a stream as plain values, and what they rest on.

    Args:
        store: The stream.
        max_loss: Share of the updates of node memory that the largest useful batch may lose.
        scratch: Folder for files of some 50 bytes an event; has to exist.
        at_once: Entries that are held in memory together.
    """
    nodes = NodeCounts.of(store.src.numpy(), store.dst.numpy(), store.num_nodes)
    columns = sort_columns(store, nodes, _BATCH_SIZES, scratch, at_once)
    figures = {
        "nodes": store.num_nodes,
        "edge_feature_dim": store.edge_feature_dim,
        "node_feature_dim": store.node_feature_dim,
        "has_labels": store.labels is not None,
        "fingerprint": store.fingerprint,
        "origin": None if store.origin is None else store.origin.to_manifest(),
        "counts": count_statistics(store.time.numpy(), nodes),
        "repetition": repetition_statistics(len(store), nodes, columns.pairs) if len(store) > 1 else {},
        "degrees": summary(nodes.degrees(), piece=at_once),
        "gaps": _gap_table(columns.gaps, at_once),
        "features": feature_statistics(store),
        "batches": _batches(columns, len(store), max_loss, at_once),
    }
    return figures, columns, nodes


def feature_statistics(store: EventStore) -> Table:
    """Return the mean, the deviation and the largest size of each feature over the whole stream, by its name.

    Args:
        store: The stream.
    """
    found: Table = {}
    tables = (("edge", store.edge_features, store.edge_feature_names), ("node", store.node_features, None))
    for kind, table, names in tables:
        if table is None:
            continue
        moments = Moments.of_rows(table).to_plain()
        for column, row in enumerate(zip(*moments.values(), strict=True)):
            found[names[column] if names else f"{kind} feature {column}"] = dict(zip(moments, row, strict=True))
    return found


def _gap_table(found: dict[str, np.ndarray], at_once: int) -> Table:
    rows = summary(found, piece=at_once)
    return {name: {**row, "burstiness": burstiness(found[name], at_once)} for name, row in rows.items()}


def _batches(columns: SortedColumns, num_events: int, max_loss: float, at_once: int) -> dict[str, Any]:
    from lightning_tgnn.algorithms.streams.statistics_loops import lost_to  # imports the compiler

    def loss(size: int) -> float:
        lost = sum(lost_to(part, size) for part in in_pieces(columns.distances, at_once))
        return share_lost(lost, size, 2 * num_events)

    return {
        "max_loss": max_loss,
        "largest": largest_batch(loss, max_loss, num_events),
        "loss": columns.losses.of_all(),
        "loss_of_busiest_tenth": columns.losses.of_busiest(),
        "loss_by_degree": columns.losses.by_degree(),
    }


def _print_stream(console: Console, figures: dict[str, Any], folder: Path) -> None:
    """Print the figures of a stream and where their files are.

    Args:
        console: Where to.
        figures: What `describe` returned.
        folder: Where the files are.
    """
    if figures["origin"] is not None:
        console.print(str(Origin.of_manifest(figures["origin"])), soft_wrap=True, markup=False, highlight=False)
    single = PrintedTable("", "value")
    single.columns[1].justify = "right"
    for name, value in {"nodes": figures["nodes"], **figures["counts"], **figures["repetition"]}.items():
        is_date = name in ("first_time", "last_time") and (figures["origin"] or {}).get("dates")
        single.add_row(name.replace("_", " "), _date(value) if is_date else _text(value))
    print_table(single, console)
    if notice := tie_notice(figures["counts"]["tie_rate"]):
        console.print(notice, soft_wrap=True)
    _print_rows(console, "events per", figures["degrees"])
    _print_rows(console, "gaps of", figures["gaps"])
    features = figures["features"]
    _print_rows(console, "feature", dict(list(features.items())[:_FEATURES]))
    if len(features) > _FEATURES:
        console.out(f"and {len(features) - _FEATURES} more features, see stream.json", highlight=False)
    _print_batches(console, figures["batches"])
    console.out(f"figures and picture: {folder}")


def _print_rows(console: Console, title: str, rows: dict[str, dict[str, float]]) -> None:
    if not rows:
        return
    names = list(next(iter(rows.values())))
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


def _date(seconds: float) -> str:
    """Return a time that was a date as one again."""
    import pandas as pd

    return str(dates_of(pd.Series([seconds])).iloc[0])


def _text(value: float) -> str:
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):,}"
    digits = 0 if abs(value) >= 1000 else 2 if abs(value) >= 10 else 4
    return f"{value:,.{digits}f}"
