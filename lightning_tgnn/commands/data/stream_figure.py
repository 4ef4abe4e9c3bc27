"""A picture of an event stream: events over time, degrees and times between events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_tgnn.algorithms.streams.stream_statistics import degrees, gaps
from lightning_tgnn.data import EventStore
from lightning_tgnn.files.whole import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 120
_GAP_BINS = 60
_GAP_LABELS = {"stream": "of the stream", "node": "of a node", "pair": "of a pair"}


def save_stream_figure(path: Path, store: EventStore) -> None:
    """Write the picture of a stream as a PNG.

    Args:
        path: The file.
        store: The stream.
    """
    from matplotlib.figure import Figure  # takes a moment and is needed nowhere else

    src, dst, time = store.src.numpy(), store.dst.numpy(), store.time.numpy()
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    over_time, of_nodes, between = figure.subplots(1, 3)
    over_time.hist(time - time[0], bins=_BINS, color="tab:blue")
    over_time.set(title="Events over time", xlabel="time since the first event", ylabel="events")
    _draw_degrees(of_nodes, degrees(src, dst))
    _draw_gaps(between, gaps(src, dst, time))
    with new_file(path) as partial:
        figure.savefig(partial, dpi=110, format="png")


def _draw_degrees(axes: Axes, counts: dict[str, np.ndarray]) -> None:
    for name, values in counts.items():
        degree, nodes = np.unique(values, return_counts=True)
        at_least = nodes[::-1].cumsum()[::-1] / len(values)
        axes.step(degree, at_least, where="pre", label=f"as {name}" if name != "node" else "as either")
    axes.set(title="Degrees", xlabel="events of a node", ylabel="share of nodes with at least so many")
    axes.set(xscale="log", yscale="log")
    axes.legend()


def _draw_gaps(axes: Axes, found: dict[str, np.ndarray]) -> None:
    positive = {name: values[values > 0] for name, values in found.items() if (values > 0).any()}
    if positive:
        low, high = min(map(np.min, positive.values())), max(map(np.max, positive.values()))
        edges = np.geomspace(low, max(high, low * 10), _GAP_BINS)
        for name, values in positive.items():
            weights = np.full(len(values), 1 / len(found[name]))
            axes.hist(values, bins=edges.tolist(), weights=weights, histtype="step", label=_GAP_LABELS[name])
        axes.legend()
        axes.set_xscale("log")
    axes.set(title="Time between consecutive events", xlabel="time, where above 0", ylabel="share")
