"""The monitor of snapshots in one process, and its metrics from counts; with ranks: `tests/multiprocess`."""

import logging

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_tgnn import BLADStrategy, SnapshotMonitor, TimelineMonitor
from lightning_tgnn.__main__ import main
from lightning_tgnn.algorithms.schedules.snapshot_loads import Load, LoadModel, Measured
from lightning_tgnn.algorithms.schedules.stage_times import overlap_seconds
from lightning_tgnn.callbacks.snapshot_monitor import RankCounts, snapshot_metrics, sums_of_snapshots
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Flow
from lightning_tgnn.strategies.parts.load_meter import MeasuredLoads, OperatorCall
from tests.multiprocess.snapshots import build
from tests.multiprocess.training import build as build_stream
from tests.multiprocess.training import fit

LOADS = MeasuredLoads(LoadModel({"graph 1": Load(1.0, 0.0, 0.5), "backward": Load(0.0, 1.0, 0.0)}))


def call(operator, seconds, snapshots, vertices, edges, begin=0.0):
    return OperatorCall(
        Measured(operator, seconds, len(snapshots), vertices, edges), snapshots, ((begin, begin + seconds),)
    )


def counts(**given):
    return RankCounts(steps=2, seconds=10.0, **given)


@st.composite
def spans(draw):
    """Return what runs one after the other, float64 [n, 2]; some of it for no time."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=0, max_size=16).filter(lambda found: len(found) % 2 == 0))
    return np.cumsum(lengths).reshape(-1, 2).astype(np.float64)


@seed(0)
@settings(max_examples=200, deadline=None)
@given(spans(), spans())
def test_overlap_equals_that_of_every_pair(first, second):
    pairs = [(own, other) for own in first.tolist() for other in second.tolist()]
    expected = sum(max(0.0, min(own[1], other[1]) - max(own[0], other[0])) for own, other in pairs)
    assert overlap_seconds(first, second) == overlap_seconds(second, first) == expected


def test_figures_of_calls():
    one, other = counts(waited=1.0), counts(waited=4.0)
    one.add_calls([call("graph 1", 2.0, (3,), 5, 4), call("forward", 4.0, (3,), 5, 4)], None)
    one.add_calls([call("graph 1", 4.0, (3,), 5, 4), call("nn 1", 1.0, (3,), 5, 4)], LOADS)
    other.add_calls([call("forward", 2.0, (4,), 5, 6), call("backward", 8.0, (3, 4), 10, 10)], LOADS)
    metrics = snapshot_metrics([RankCounts.of(rank.packed()) for rank in (one, other)], [])
    assert metrics == pytest.approx(
        {
            "snapshots/waiting_share": 0.25,
            "snapshots/longest_waiting_share": 0.4,
            "snapshots/forward_milliseconds": 3000,
            "snapshots/predicted_forward_milliseconds": 4000,
            "snapshots/error_forward": 1.0,
            "snapshots/error_graph_1": 0.25,
            "snapshots/backward_milliseconds": 8000,
            "snapshots/predicted_backward_milliseconds": 10_000,
            "snapshots/error_backward": 0.25,
        }
    )


def test_bytes_of_kinds_are_per_step_and_of_all_ranks():
    flows = {"hidden state": Flow(sent=4), "gradient of hidden state is there": Flow(sent=8), "features": Flow(sent=2)}
    one, other = counts(), counts()
    one.add_sent(flows, {"gradients": Flow(sent=100)}, 30)
    other.add_sent({"embeddings_gradient": Flow(sent=6)}, {"gradients": Flow(sent=100)}, 0)
    metrics = snapshot_metrics([one, other], [])
    kinds = {"hidden_state": 6, "features": 4, "weights": 100, "shared_memory": 15}
    assert {name: metrics[f"snapshots/{name}_bytes"] for name in kinds} == kinds


def test_overlap_is_of_different_kinds_on_one_device():
    one, other, apart = counts(), counts(), counts()
    one.add_calls([call("graph 2", 4.0, (0,), 1, 1, begin=0.0), call("nn 1", 2.0, (0,), 1, 1, begin=4.0)], None)
    in_turn = [("rnn 1", 0.5, 0.0), ("graph 1", 3.0, 1.0), ("nn 2", 0.5, 7.0), ("rnn 1", 1.0, 6.0)]
    other.add_calls([call(name, seconds, (1,), 1, 1, begin=begin) for name, seconds, begin in in_turn], None)
    apart.add_calls([call("rnn 2", 6.0, (1,), 1, 1, begin=0.0)], None)
    assert snapshot_metrics([one, other, apart], [(0, 1)])["snapshots/overlap_share"] == pytest.approx(0.05)
    assert snapshot_metrics([one, other, apart], [(0, 2)])["snapshots/overlap_share"] == pytest.approx(0.4)
    assert snapshot_metrics([one, other, apart], [(1, 2), (0, 1)])["snapshots/overlap_share"] == pytest.approx(
        (0.3 + 0.05) / 2
    )
    assert "snapshots/overlap_share" not in snapshot_metrics([one, other], [])


def test_forward_passes_of_a_snapshot_are_added_up():
    calls = [call("forward", 2.0, (7,), 5, 2), call("forward", 4.0, (7,), 5, 4), call("nn 1", 1.0, (7,), 5, 4)]
    (found,) = sums_of_snapshots(calls, LOADS).items()
    assert found[0] == 7
    assert vars(found[1]) == {
        "calls": 2,
        "seconds": 6.0,
        "num_predicted": 2,
        "measured": 6.0,
        "predicted": 5.0,
        "error": 0.25,
    }


@pytest.mark.usefixtures("in_own_group")
def test_one_process_logs_its_loads_and_the_report_shows_them(tmp_path, capsys):
    monitor, timeline = SnapshotMonitor(every_n_steps=3), TimelineMonitor(turns=1, first=1, name="early")
    logger = TensorBoardLogger(tmp_path, "", version=0)
    data, task = build("wd_gcn", 2)
    strategy = BLADStrategy(processes_per_device=1)
    fit(data, task, strategy, 1, logger=logger, callbacks=[monitor, timeline], epochs=2)
    logger.finalize("success")
    assert not task.stages._listeners
    found = monitor.latest
    assert 0 <= found["snapshots/waiting_share"] < 1
    assert found["snapshots/error_forward"] > 0
    assert not any(value for name, value in found.items() if name.endswith("_bytes"))
    assert "snapshots/overlap_share" not in found
    main(["report", str(logger.log_dir)])
    page = (tmp_path / "version_0" / "report.html").read_text()
    for picture in ("snapshots/loads", "early"):
        assert f'<img alt="{picture}" src="data:image/png;base64,' in page
    assert "snapshots/forward_milliseconds" in page
    assert "graph" in page


@pytest.mark.usefixtures("in_own_group")
def test_what_breaks_off_leaves_no_listener():
    data, task = build("wd_gcn", 2)
    fit(data, task, BLADStrategy(processes_per_device=1), 1, epochs=1)

    def fails(gradient):
        raise ArithmeticError("in backward")

    hook = next(iter(task.parameters())).register_hook(fails)
    monitor = SnapshotMonitor()
    with pytest.raises(ArithmeticError):
        fit(data, task, BLADStrategy(processes_per_device=1), 1, callbacks=[monitor], epochs=1)
    hook.remove()
    assert not task.stages._listeners
    fit(data, task, BLADStrategy(processes_per_device=1), 1, callbacks=[monitor], epochs=1)
    assert monitor.latest["snapshots/forward_milliseconds"] > 0


def test_where_no_snapshots_are_trained_it_says_so_once(caplog):
    with caplog.at_level(logging.INFO):
        fit(*build_stream("jodie", 40), "auto", 1, callbacks=[SnapshotMonitor()], epochs=1)
    said = [record.message for record in caplog.records if "SnapshotMonitor" in record.message]
    why = "SingleDeviceStrategy is none of blad, snapshot_partition and vertex_partition"
    assert said == [f"SnapshotMonitor has nothing to do: {why}"]


def test_arguments_are_refused_when_callbacks_are_made():
    with pytest.raises(InvalidArgumentError, match="every_n_steps must be an integer of at least 1, got 0"):
        SnapshotMonitor(0)
    with pytest.raises(InvalidArgumentError, match=r"name must be letters, .* got 'a/b'; a file has this name"):
        TimelineMonitor(name="a/b")
