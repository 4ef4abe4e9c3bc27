"""``lightning-tgnn data inspect --snapshots``: how large snapshots are, and what changes from one to the next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as PrintedTable

from lightning_tgnn.algorithms.streams.stream_statistics import CHANGES, snapshot_changes
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.commands.simulate.snapshot_costs import SnapshotSizes
from lightning_tgnn.data.snapshots.pipeline import SnapshotPipeline
from lightning_tgnn.data.snapshots.sources.open_snapshots import is_synthetic
from lightning_tgnn.data.sources.open_events import read_source
from lightning_tgnn.files.whole import write_text
from lightning_tgnn.types import PredictedLoads

_ROWS = 40


@dataclass(frozen=True)
class SnapshotCutOptions:
    """How to look at a stream in snapshots; see `lightning_tgnn.SnapshotDataModule`.

    Args:
        snapshots: Look at so many windows of time of one length, and not at the stream.
        window: Or at windows of this length.
        events_per_snapshot: Or at windows of so many events.
        overlap: Share of a window that it has in common with the one before.
        lifetime: How long an edge stays after its event.
    """

    snapshots: int | None = None
    window: float | None = None
    events_per_snapshot: int | None = None
    overlap: float = 0.0
    lifetime: float | None = None

    def asked(self, source: object) -> bool:
        """Return whether snapshots are looked at."""
        return is_synthetic(source) or self != SnapshotCutOptions()


def inspect_snapshots(cut: SnapshotCutOptions, data_options: Mapping[str, Any], folder: Path) -> None:
    """Print the metrics of snapshots, and write them to ``snapshots.json``.

    Args:
        cut: How a stream is cut.
        data_options: Arguments of `read_source`.
        folder: Where to write.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or the folder cannot be written.
        DataError: The source holds something that must not be trained on.
    """
    settings = asdict(cut)
    settings["num_snapshots"] = settings.pop("snapshots")
    source = data_options["source"]
    if is_synthetic(source):
        data = SnapshotPipeline(source, synthetic=data_options["synthetic"], **settings)
    else:
        data = SnapshotPipeline(read_source(**data_options), **settings)
    metrics = {"source": str(source), **describe_snapshots(data, None)}
    write_text(folder / "snapshots.json", json.dumps(metrics, indent=1, ensure_ascii=False))
    _print(Console(), metrics, folder)


def describe_snapshots(data: SnapshotPipeline, loads: PredictedLoads | None) -> dict[str, Any]:
    """Return the metrics of snapshots as plain values, with the sizes that a model is given, which `simulate` takes.

    Args:
        data: What is looked at.
        loads: How long snapshots take; None where nobody knows.
    """
    read = data.sequence
    edges = (read.edges(number) for number in range(len(read)))
    changes = snapshot_changes(((one.src.numpy(), one.dst.numpy()) for one in edges), read.num_nodes)
    if loads is not None:
        changes |= {"forward_seconds": loads.forward(*data.snapshots.sizes)}
        changes |= {"backward_seconds": loads.backward(*data.snapshots.sizes)}
    held = changes["edges"][changes["edges"] > 0]
    trained = None
    with suppress(InvalidArgumentError, DataError):  # so few snapshots that there would be no split can be looked at
        trained = data.split.train
    given = SnapshotSizes(np.stack([*data.snapshots.sizes, data.targets.counts], axis=1), groups=trained).written()
    return {
        "nodes": read.num_nodes,
        "fingerprint": read.fingerprint,
        "largest_to_smallest": float(held.max() / held.min()) if len(held) else None,
        "empty": int((changes["edges"] == 0).sum()),
        "times": None if read.times is None else read.times.tolist(),
        "snapshots": {name: column.tolist() for name, column in changes.items()},
        **given,
    }


def _print(console: Console, metrics: Mapping[str, Any], folder: Path) -> None:
    columns: dict[str, list[float]] = metrics["snapshots"]
    table = PrintedTable("snapshot", *(name.replace("_", " ") for name in columns))
    for column in table.columns[1:]:
        column.justify = "right"
    number = len(columns["edges"])
    shown = np.unique(np.linspace(0, number - 1, min(number, _ROWS)).round().astype(int))
    for place in shown:
        table.add_row(str(place), *(_text(column[place]) for column in columns.values()))
    table.add_section()
    # Nothing was before the first snapshot: it has no changes, which are not 0.
    known = [column[1:] if name in CHANGES else column for name, column in columns.items()]
    for name, of in (("smallest", np.min), ("median", np.median), ("largest", np.max)):
        table.add_row(name, *(_text(float(of(column))) if column else "" for column in known))
    print_table(table, console)
    left_out = f"; {len(shown)} are shown" if len(shown) < number else ""
    ratio = metrics["largest_to_smallest"]
    varying = f"the largest has {ratio:.1f} times the edges of the smallest" if ratio else "none has an edge"
    empty = f", {metrics['empty']} are empty" if metrics["empty"] and ratio else ""
    console.print(f"{number:,} snapshots of {metrics['nodes']:,} vertices: {varying}{empty}{left_out}", soft_wrap=True)
    vertices, edges = (f"{min(metrics[name]):,} to {max(metrics[name]):,}" for name in ("vertices", "edges"))
    console.print(f"a model is given {vertices} vertices and {edges} edges of each, loops among them", soft_wrap=True)
    written = folder / "snapshots.json"
    console.out(f"metrics, which simulate --snapshots takes: {written}")


def _text(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,.1f}"
