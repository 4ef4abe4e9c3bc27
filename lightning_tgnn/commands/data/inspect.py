"""``lightning-tgnn data inspect``: what an event stream is like, as tables, as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as PrintedTable

from lightning_tgnn.algorithms.streams.information_loss import BUSIEST, MAX_LOSS, LossByKind, largest_batch, share_lost
from lightning_tgnn.algorithms.streams.large_columns import Table, burstiness, in_pieces, summary
from lightning_tgnn.algorithms.streams.node_ends import consecutive_ends
from lightning_tgnn.algorithms.streams.stream_statistics import (
    NodeCounts,
    PairCounts,
    count_statistics,
    repeated_pairs,
    repetition_statistics,
)
from lightning_tgnn.checks import InvalidArgumentError, check_fraction
from lightning_tgnn.commands.data.inspect_snapshots import SnapshotCutOptions, inspect_snapshots
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.data import EventStore
from lightning_tgnn.data.graphs.checks import check_ends
from lightning_tgnn.data.readers.dates import dates_of
from lightning_tgnn.data.sources.open_events import read_source
from lightning_tgnn.data.standardize import Moments
from lightning_tgnn.data.streams.split_stream import tie_notice
from lightning_tgnn.data.streams.store_manifest import Origin
from lightning_tgnn.files.npy_file import NpyWriter, map_npy
from lightning_tgnn.files.unfinished import OwnedFolder
from lightning_tgnn.files.whole import new_file, write_text, writing_to

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AT_ONCE = 1 << 23
"""Entries that are sorted together: some hundred megabytes."""
_BEFORE_TEST = 0.85

_Piece = TypeVar("_Piece", bound="tuple[np.ndarray, ...]")


@dataclass(frozen=True)
class SortedColumns:
    """What sorting has brought, in mapped files.

    Attributes:
        gaps: float64, the times between consecutive events of the stream, of a node (either end) and of a pair.
        distances: How many events lie between consecutive events of a node, plus one; 0 for a self loop.
        losses: What batches lose.
        pairs: How many pairs there are.
    """

    gaps: dict[str, np.ndarray]
    distances: np.ndarray
    losses: LossByKind
    pairs: PairCounts


def sort_columns(
    store: EventStore, nodes: NodeCounts, sizes: Sequence[int], folder: Path, at_once: int = AT_ONCE
) -> SortedColumns:
    """Sort a stream by node and by pair, a part at a time, and write what follows into files.

    Args:
        store: The stream, of nodes within its range.
        nodes: Its counts by node.
        sizes: Of the batches whose loss is wanted, in events.
        folder: Of the files; has to exist, and to stay as long as what is returned.
        at_once: Entries that are sorted together.
    """
    src, dst, time = store.src.numpy(), store.dst.numpy(), store.time.numpy()
    losses, pairs = LossByKind(nodes.node, sizes, BUSIEST), PairCounts()
    with NpyWriter(folder / "stream.npy", np.float64) as between:
        for begin in range(0, len(time), at_once):
            between.append(np.diff(time[begin : begin + at_once + 1]))
    ends = consecutive_ends(src, dst, nodes.node, at_once)
    with (
        NpyWriter(folder / "node.npy", np.float64) as between,
        NpyWriter(folder / "distances.npy", np.min_scalar_type(len(time))) as distances,
    ):
        for own, before, after in _shown(ends, 2 * len(time), at_once, "sorting by node"):
            between.append(time[after] - time[before])
            distances.append(after - before)
            losses.add(own, after - before)
    test_start, by_pair = int(_BEFORE_TEST * len(time)), repeated_pairs(src, dst, store.num_nodes, at_once)
    with NpyWriter(folder / "pair.npy", np.float64) as between:
        for events, is_first in _shown(by_pair, len(time), at_once, "sorting by pair"):
            pairs.add(events, is_first, test_start)
            between.append(np.diff(time[events])[~is_first[1:]])
    gaps = {name: np.asarray(map_npy(folder / f"{name}.npy")) for name in ("stream", "node", "pair")}
    return SortedColumns(gaps, np.asarray(map_npy(folder / "distances.npy")), losses, pairs)


def _shown(pieces: Iterator[_Piece], total: int, at_once: int, what: str) -> Iterator[_Piece]:
    """Show on standard error how far it is, where that takes more than one piece."""
    if total <= at_once:
        yield from pieces
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{what}: {total:,} entries", total=total)
        for piece in pieces:
            yield piece
            progress.advance(task, len(piece[0]))


_DESCRIPTION = """Look at a stream: counts, ties, repetition, degrees, times between events, useful batches.

  lightning-tgnn data inspect --source wikipedia.txt.gz --output runs/inspect

DIR gets stream.json with all metrics, and stream.png with events over time and both distributions.

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
    own, cut_options, data_options = Options("data inspect", _DESCRIPTION, groups).parse(arguments)
    options, cut, folder = InspectOptions(**own), SnapshotCutOptions(**cut_options), Path(own["output"])
    if cut.asked(data_options["source"]):
        if options.max_loss != MAX_LOSS:
            cure = "leave it out, or look at the stream"
            raise InvalidArgumentError("max_loss", "left out with snapshots", options.max_loss, cure)
        inspect_snapshots(cut, data_options, folder)
        return
    store = read_source(**data_options)
    check_ends("src", store.src, store.num_nodes)
    check_ends("dst", store.dst, store.num_nodes)
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        scratch = OwnedFolder(folder / "inspect")
        try:
            described, columns, nodes = describe(store, options.max_loss, scratch.path)
            metrics = {"source": str(data_options["source"]), **described}
            save_stream_figure(folder / "stream.png", store.time.numpy(), nodes.degrees(), columns.gaps)
        finally:
            scratch.remove()
    write_text(folder / "stream.json", json.dumps(metrics, indent=1, ensure_ascii=False))
    _print_stream(Console(), metrics, folder)


def describe(
    store: EventStore, max_loss: float, scratch: Path, at_once: int = AT_ONCE
) -> tuple[dict[str, Any], SortedColumns, NodeCounts]:
    """Return the metrics of a stream as plain values, and what they rest on.

    Args:
        store: The stream.
        max_loss: Share of the updates of node memory that the largest useful batch may lose.
        scratch: Folder for files of some 50 bytes an event; has to exist.
        at_once: Entries that are held in memory together.
    """
    nodes = NodeCounts.of(store.src.numpy(), store.dst.numpy(), store.num_nodes)
    columns = sort_columns(store, nodes, _BATCH_SIZES, scratch, at_once)
    metrics = {
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
    return metrics, columns, nodes


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
        moments = Moments.from_rows(table).to_plain()
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
        "loss": columns.losses.losses(),
        "loss_of_busiest_tenth": columns.losses.busiest_losses(),
        "loss_by_degree": columns.losses.by_degree(),
    }


def _print_stream(console: Console, metrics: dict[str, Any], folder: Path) -> None:
    """Print the metrics of a stream and where their files are.

    Args:
        console: Where to.
        metrics: What `describe` returned.
        folder: Where the files are.
    """
    if metrics["origin"] is not None:
        console.print(str(Origin.from_manifest(metrics["origin"])), soft_wrap=True, markup=False, highlight=False)
    single = PrintedTable("", "value")
    single.columns[1].justify = "right"
    for name, value in {"nodes": metrics["nodes"], **metrics["counts"], **metrics["repetition"]}.items():
        is_date = name in ("first_time", "last_time") and (metrics["origin"] or {}).get("dates")
        single.add_row(name.replace("_", " "), _date(value) if is_date else _text(value))
    print_table(single, console)
    if notice := tie_notice(metrics["counts"]["tie_rate"]):
        console.print(notice, soft_wrap=True)
    _print_rows(console, "events per", metrics["degrees"])
    _print_rows(console, "gaps of", metrics["gaps"])
    features = metrics["features"]
    _print_rows(console, "feature", dict(list(features.items())[:_FEATURES]))
    if len(features) > _FEATURES:
        console.out(f"and {len(features) - _FEATURES} more features, see stream.json", highlight=False)
    _print_batches(console, metrics["batches"])
    console.out(f"metrics and picture: {folder}")


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


_BINS = 120
_GAP_BINS = 60
_GAP_LABELS = {"stream": "of the stream", "node": "of a node", "pair": "of a pair"}


def save_stream_figure(
    path: Path, time: np.ndarray, degrees: dict[str, np.ndarray], gaps: dict[str, np.ndarray]
) -> None:
    """Write the picture of a stream as a PNG. Columns of events are read piece by piece.

    Args:
        path: The file.
        time: float64 [E], non-decreasing.
        degrees: The events per node as a source, as a destination and as either.
        gaps: The times between consecutive events of the stream, of a node and of a pair.
    """
    from matplotlib.figure import Figure  # takes a moment and is needed nowhere else

    figure = Figure(figsize=(13, 3.6), layout="constrained")
    over_time, node_axes, between = figure.subplots(1, 3)
    edges = np.histogram_bin_edges(np.array([0.0, time[-1] - time[0]]), _BINS)
    over_time.stairs(_counted(time, edges + time[0]), edges, fill=True, color="tab:blue")
    over_time.set(title="Events over time", xlabel="time since the first event", ylabel="events")
    _draw_degrees(node_axes, degrees)
    _draw_gaps(between, gaps)
    with new_file(path) as partial:
        figure.savefig(partial, dpi=110, format="png")


def _counted(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return how many of the values are in each bin."""
    counts = np.zeros(len(edges) - 1, np.int64)
    for part in in_pieces(values):
        counts += np.histogram(part, edges)[0]
    return counts


def _draw_degrees(axes: Axes, counts: dict[str, np.ndarray]) -> None:
    for name, values in counts.items():
        degree, nodes = np.unique(values, return_counts=True)
        at_least = nodes[::-1].cumsum()[::-1] / len(values)
        axes.step(degree, at_least, where="pre", label=f"as {name}" if name != "node" else "as either")
    axes.set(title="Degrees", xlabel="events of a node", ylabel="share of nodes with at least so many")
    axes.set(xscale="log", yscale="log")
    axes.legend()


def _draw_gaps(axes: Axes, found: dict[str, np.ndarray]) -> None:
    there = {name: values for name, values in found.items() if len(values) and values.max() > 0}
    if there:
        low = min(float(part[part > 0].min(initial=np.inf)) for values in there.values() for part in in_pieces(values))
        high = max(float(values.max()) for values in there.values())
        edges = np.geomspace(low, max(high, low * 10), _GAP_BINS)
        for name, values in there.items():
            axes.stairs(_counted(values, edges) / len(values), edges, label=_GAP_LABELS[name])
        axes.legend()
        axes.set_xscale("log")
    axes.set(title="Time between consecutive events", xlabel="time, where above 0", ylabel="share")
