"""Recorded timelines in one process; those of several are in `tests/multiprocess/test_system_monitor.py`."""

import json
from itertools import pairwise

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_tgnn import FullGraphDataModule, NodeClassification, TimelineMonitor
from lightning_tgnn.__main__ import main
from lightning_tgnn.algorithms.schedules.painter import chrome_trace
from lightning_tgnn.checks import InvalidArgumentError
from tests.multiprocess.training import build, fit

STAGES = {"fetch", "update", "embed", "score", "write", "backward", "step", "other"}


def recorded(folder, logger=TensorBoardLogger, **settings):
    monitor, log = TimelineMonitor(**settings), logger(folder, "", version=0)
    data, task = build("tgn", 24)
    outcome = fit(data, task, "auto", 1, callbacks=[monitor], epochs=1, logger=log)
    log.finalize("success")
    assert not task.stages._listeners
    return monitor.timeline, outcome, folder / "version_0"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("run"), turns=3, first=2)


def test_bars_of_a_rank_follow_each_other(run):
    timeline = run[0]
    assert STAGES <= set(timeline.stages) <= STAGES | {"sample"}
    assert set(timeline.turn) == {2, 3, 4}
    assert set(timeline.rank) == {0}
    bars = sorted(zip(timeline.begin, timeline.end, timeline.turn, strict=True))
    assert bars[0][0] == 0
    for (_, end, turn), (begin, _, later) in pairwise(bars):
        assert begin >= end - 1e-9
        assert begin - end < 1e-9 or later == turn + 1  # a step leaves nothing out
    for turn in (2, 3, 4):
        assert {timeline.stages[stage] for stage in timeline.of(turns=[turn]).stage} >= STAGES


def test_training_is_the_same(run):
    plain = fit(*build("tgn", 24), "auto", 1, epochs=1)
    assert torch.equal(plain["losses"], run[1]["losses"])


def test_the_report_shows_the_picture_and_the_trace_is_beside_the_logs(run, capsys):
    timeline, _, folder = run
    main(["report", str(folder)])
    assert '<img alt="timeline" src="data:image/png;base64,' in (folder / "report.html").read_text()
    assert json.loads((folder / "timeline.json").read_text()) == chrome_trace(timeline)


def test_a_logger_without_pictures_gets_the_trace(tmp_path):
    timeline, _, folder = recorded(tmp_path, CSVLogger, turns=2, first=0)
    assert json.loads((folder / "timeline.json").read_text()) == chrome_trace(timeline)


def test_a_fit_that_ends_early_is_recorded_as_far_as_it_goes(tmp_path):
    timeline, outcome, _ = recorded(tmp_path, turns=100, first=2)
    assert set(timeline.turn) == set(range(2, len(outcome["losses"])))
    assert recorded(tmp_path / "none", turns=1, first=100)[0] is None


def test_static_graphs_have_what_lightning_tells(tmp_path):
    monitor = TimelineMonitor(turns=2, first=1)
    settings = {"accelerator": "cpu", "max_epochs": 4, "logger": False, "enable_checkpointing": False}
    trainer = pl.Trainer(**settings, callbacks=[monitor], enable_progress_bar=False, enable_model_summary=False)
    data = FullGraphDataModule("synthetic", synthetic={"num_nodes": 60, "num_edges": 200})
    trainer.fit(NodeClassification("gcn", hidden_dim=8), datamodule=data)
    assert {"backward", "step", "other"} <= set(monitor.timeline.stages)
    assert set(monitor.timeline.turn) == {1, 2}


def test_numbers_are_refused_when_the_callback_is_made():
    with pytest.raises(InvalidArgumentError, match="turns must be an integer of at least 1, got 0; 8 fit in a picture"):
        TimelineMonitor(turns=0)
    with pytest.raises(InvalidArgumentError, match="first must be an integer of at least 0, got -1"):
        TimelineMonitor(first=-1)
