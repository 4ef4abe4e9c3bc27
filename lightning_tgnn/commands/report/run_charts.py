"""The charts of a run's page, each an SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_tgnn.commands.report.run_log import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALL = (5.2, 2.9)
_WIDE = (10.5, 3.0)
_PRECISION, _RECALL = 4, 5  # rows of TensorBoard's curves


def chart(
    draw: Callable[[Axes], None], *, wide: bool = False, ylabel: str = "", xlabel: str = "step", title: str = ""
) -> str:
    """Return an SVG element.

    Args:
        draw: Draws into matplotlib axes.
        wide: Over the whole page.
        ylabel: Beside the axis.
        xlabel: Below the axis.
        title: Above.
    """
    import matplotlib  # takes a moment and is needed nowhere else
    from matplotlib.figure import Figure

    # Letters stay letters: smaller, and found by a search. The salt makes the page the same for the same logs.
    salt, no_formulas = f"{title} {ylabel}", False  # a name with $ is none
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": salt, "font.size": 9, "text.parse_math": no_formulas}
    ):
        figure = Figure(figsize=_WIDE if wide else _SMALL, layout="constrained")
        axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        if axes.get_legend_handles_labels()[1]:
            beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if wide else {}
            axes.legend(frameon=False, fontsize=8, **beside)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def lines(series: Mapping[str, Series], *, title: str) -> str:
    """Return the curves of scalars over steps, with dots where there are few."""

    def draw(axes: Axes) -> None:
        for name, curve in series.items():
            few = "o" if len(curve.steps) < 30 else None
            axes.plot(curve.steps, curve.numbers(), label=name if len(series) > 1 else None, marker=few, markersize=3)

    return chart(draw, title=title)


def stacked_shares(steps: list[int], shares: Mapping[str, np.ndarray]) -> str:
    """Return the shares of a step's time over the run, one on top of the other.

    Args:
        steps: At the end of each window.
        shares: float64 [windows] of each stage.
    """
    from matplotlib.ticker import PercentFormatter

    def draw(axes: Axes) -> None:
        axes.stackplot(steps, *shares.values(), labels=list(shares), colors=_colours(len(shares)))
        axes.set(ylim=(0, 1), xlim=(steps[0], steps[-1]) if steps[-1] > steps[0] else None)
        axes.yaxis.set_major_formatter(PercentFormatter(1))

    return chart(draw, wide=True, ylabel="share of a step")


def share_bars(shares: Mapping[str, float]) -> str:
    """Return a bar for the share of each stage."""
    from matplotlib.ticker import PercentFormatter

    def draw(axes: Axes) -> None:
        bars = axes.barh(list(shares), list(shares.values()), color=_colours(len(shares)))
        axes.bar_label(bars, fmt="{:.1%}", padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(PercentFormatter(1))

    return chart(draw, wide=True, xlabel="share of the time of training steps")


def histograms(counted: Mapping[str, np.ndarray], *, title: str, xlabel: str) -> str:
    """Return distributions, one over the other, as shares of what was counted, per bin of the usual width.

    Args:
        counted: By name, [bins, 3]: left edge, right edge, count.
        title: Above.
        xlabel: Below the axis.
    """

    def draw(axes: Axes) -> None:
        for name, bins in counted.items():
            widths = np.maximum(bins[:, 1] - bins[:, 0], np.finfo(np.float32).tiny)
            heights = bins[:, 2] / max(bins[:, 2].sum(), 1) * np.median(widths) / widths  # empty bins are merged
            axes.stairs(heights, np.append(bins[:, 0], bins[-1:, 1]), fill=True, alpha=0.45, label=name)

    return chart(draw, ylabel="share", title=title, xlabel=xlabel)


def precision_recall(curves: Mapping[str, np.ndarray], *, title: str) -> str:
    """Return precision over recall, of TensorBoard's curves [6, thresholds]."""

    def draw(axes: Axes) -> None:
        for name, curve in curves.items():
            axes.plot(curve[_RECALL], curve[_PRECISION], label=name)
        axes.set(xlim=(0, 1.02), ylim=(0, 1.02))

    return chart(draw, xlabel="recall", ylabel="precision", title=title)


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["tab10"](number % 10) for number in range(count)]
