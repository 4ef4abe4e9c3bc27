"""What pictures and traces hold, bar by bar."""

import json

import numpy as np
import pytest

from lightning_tgnn.algorithms.schedules.painter import chrome_trace, timeline_figure
from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline
from lightning_tgnn.algorithms.schedules.simulator import Costs, simulate
from lightning_tgnn.types import RankLayout
from lightning_tgnn.types.outline import Timeline


@pytest.fixture(scope="module")
def timeline():
    costs = Costs({"sample": 2e-3, "fetch": 1e-3, "backward": 5e-3}, {"gradients": 1e6})
    return simulate(PipeTGLOutline().of(3), RankLayout.of(3), costs, 4).timeline()


def bars_of(timeline):
    names = [(timeline.stages[stage], timeline.resource_of(stage)) for stage in timeline.stage]
    return sorted(zip(names, timeline.rank.tolist(), timeline.begin.tolist(), timeline.end.tolist(), strict=True))


def test_a_trace_has_a_complete_event_for_each_bar(timeline):
    held = json.loads(json.dumps(chrome_trace(timeline)))["traceEvents"]
    bars = [event for event in held if event["ph"] == "X"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in held if e["name"] == "thread_name"}
    assert {e["args"]["name"] for e in held if e["name"] == "process_name"} == {"rank 0", "rank 1", "rank 2"}
    assert {e["args"]["turn"] for e in bars} == {0, 1, 2, 3}
    found = sorted(
        ((e["name"], threads[e["pid"], e["tid"]]), e["pid"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in bars
    )
    for bar, known in zip(found, bars_of(timeline), strict=True):
        assert bar[:2] == known[:2]
        assert bar[2:] == pytest.approx(known[2:])
    for event in bars:
        assert event["cat"] == threads[event["pid"], event["tid"]]


def test_a_picture_has_a_row_for_each_rank_and_a_bar_for_each_stage(timeline):
    figure = timeline_figure(timeline, "three ranks")
    (axes,) = figure.axes
    assert len(axes.patches) == len(timeline)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    assert axes.get_title(loc="left") == "three ranks"
    shown = {timeline.stages[stage] for stage in timeline.stage}
    assert {text.get_text() for text in axes.get_legend().get_texts()} == shown
    widths = sorted(patch.get_width() for patch in axes.patches)
    assert axes.get_xlabel() == "ms"
    assert widths == pytest.approx(sorted((timeline.end - timeline.begin) * 1e3))
    rows = sorted(round(patch.get_y() + patch.get_height() / 2) for patch in axes.patches if patch.get_height() == 0.5)
    computed = [timeline.resource_of(stage) == "compute" for stage in timeline.stage]
    assert rows == sorted(timeline.rank[computed])


def test_ranks_that_are_picked_keep_their_numbers(timeline):
    figure = timeline_figure(timeline.of(ranks=[2], turns=[3]))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["2"]
    assert min(patch.get_x() for patch in figure.axes[0].patches) == 0


def test_nothing_is_drawn_of_nothing():
    none = np.empty(0, dtype=np.int64)
    empty = Timeline((), none, none, none, none.astype(float), none.astype(float))
    assert chrome_trace(empty) == {"traceEvents": [], "displayTimeUnit": "ms"}
    assert not timeline_figure(empty).axes[0].patches
