"""A picture of an event stream: events over time, degrees and times between events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_tgnn.algorithms.streams.large_columns import in_pieces
from lightning_tgnn.files.whole import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    over_time, of_nodes, between = figure.subplots(1, 3)
    edges = np.histogram_bin_edges(np.array([0.0, time[-1] - time[0]]), _BINS)
    over_time.stairs(_counted(time, edges + time[0]), edges, fill=True, color="tab:blue")
    over_time.set(title="Events over time", xlabel="time since the first event", ylabel="events")
    _draw_degrees(of_nodes, degrees)
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
