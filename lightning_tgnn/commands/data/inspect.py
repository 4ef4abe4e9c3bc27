"""``lightning-tgnn data inspect``: what an event stream is like, as tables, as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from lightning_tgnn.algorithms.streams.information_loss import event_distances
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
from lightning_tgnn.commands.data.inspect_table import print_stream
from lightning_tgnn.commands.data.stream_figure import save_stream_figure
from lightning_tgnn.commands.shared.event_source import SOURCE
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.data import EventStore
from lightning_tgnn.data.sources.open_events import read_source
from lightning_tgnn.files.whole import write_text

_DESCRIPTION = """Look at a stream: counts, ties, repetition, degrees, times between events, useful batches.

  lightning-tgnn data inspect --source wikipedia.txt.gz --output runs/inspect

DIR gets stream.json with all figures, and stream.png with events over time and both distributions.
"""

_LAST_PART = 0.85
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
    max_loss: float = 0.75

    def __post_init__(self) -> None:
        check_fraction("max_loss", self.max_loss, cure="0.75 is the default, a lower share is stricter")


def inspect(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or the folder cannot be written.
        DataError: The source holds something that must not be trained on.
    """
    own, of_data = Options("data inspect", _DESCRIPTION, {InspectOptions: set(), **SOURCE}).parse(arguments)
    options, folder = InspectOptions(**own), Path(own["output"])
    store = read_source(**of_data)
    figures = {"source": str(of_data["source"]), **describe(store, options.max_loss)}
    write_text(folder / "stream.json", json.dumps(figures, indent=1, ensure_ascii=False))
    save_stream_figure(folder / "stream.png", store)
    print_stream(Console(), figures, folder)


def describe(store: EventStore, max_loss: float) -> dict[str, Any]:
    """Return the figures of a stream as plain values.

    Args:
        store: The stream.
        max_loss: Share of the updates of node memory that the largest useful batch may lose.
    """
    src, dst, time = store.src.numpy(), store.dst.numpy(), store.time.numpy()
    repetition = repetition_statistics(src, dst, int(_LAST_PART * len(store))) if len(store) > 1 else {}
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
    }
