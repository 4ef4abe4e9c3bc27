"""Timelines as pictures and as traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_tgnn.types.outline import RESOURCES, Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MICROSECONDS = 1e6
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def timeline_figure(timeline: Timeline, title: str = "") -> Figure:
    """Return a matplotlib figure with a row for each rank and a bar for each stage.

    A thick bar is what a rank computes. Thin bars above it show what its worker and its links do.

    Args:
        timeline: The timeline to draw; `Timeline.of` picks ranks and turns.
        title: Title above the picture.
    """
    from matplotlib import colormaps  # takes a moment and is needed nowhere else
    from matplotlib.figure import Figure

    ranks = np.unique(timeline.rank)
    used = [resource for resource in RESOURCES if resource in {timeline.resource_of(s) for s in set(timeline.stage)}]
    start = float(timeline.begin.min()) if len(timeline) else 0.0
    unit, name = next((found for found in _UNITS if timeline.seconds >= 2 * found[0]), _UNITS[-1])
    figure = Figure(figsize=(11, 1.6 + 0.45 * max(len(ranks), 1)), layout="constrained")
    axes = figure.add_subplot(xlabel=name, ylabel="rank")
    axes.set_title(title, loc="left")
    row = np.searchsorted(ranks, timeline.rank)
    shown = [stage for stage in range(len(timeline.stages)) if (timeline.stage == stage).any()]
    for colour, stage in enumerate(shown):
        own = timeline.stage == stage
        lane = used.index(timeline.resource_of(stage))
        height, above = (0.5, 0.0) if timeline.resource_of(stage) == RESOURCES[0] else (0.13, 0.22 + 0.15 * lane)
        begin = (timeline.begin[own] - start) / unit
        width = (timeline.end[own] - timeline.begin[own]) / unit
        look: dict[str, Any] = {"color": colormaps["tab20"](colour % 20), "edgecolor": "white", "linewidth": 0.3}
        axes.barh(row[own] - above, width, height, begin, label=timeline.stages[stage], **look)
    axes.set_yticks(range(len(ranks)), [str(rank) for rank in ranks])
    axes.set_ylim(max(len(ranks), 1) - 0.6, -0.7)
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    if shown:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as the JSON that ``chrome://tracing`` and Perfetto open: a process for each rank.

    Each bar is a complete event, ``"ph": "X"``, in microseconds, with its turn. Each resource of a rank is a thread.
    """
    start = float(timeline.begin.min()) if len(timeline) else 0.0
    lanes = [RESOURCES.index(timeline.resource_of(stage)) for stage in range(len(timeline.stages))]
    events: list[dict[str, Any]] = []
    for rank in np.unique(timeline.rank).tolist():
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        for lane in sorted({lanes[stage] for stage in set(timeline.stage[timeline.rank == rank].tolist())}):
            named = {"name": RESOURCES[lane]}
            events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": named})
    columns = (timeline.stage, timeline.rank, timeline.turn, timeline.begin - start, timeline.end - timeline.begin)
    for stage, rank, turn, begin, lasts in zip(*(column.tolist() for column in columns), strict=True):
        events.append(
            {
                "ph": "X",
                "name": timeline.stages[stage],
                "cat": RESOURCES[lanes[stage]],
                "pid": rank,
                "tid": lanes[stage],
                "ts": begin * _MICROSECONDS,
                "dur": lasts * _MICROSECONDS,
                "args": {"turn": turn},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
