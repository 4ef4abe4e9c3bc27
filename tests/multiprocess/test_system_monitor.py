"""The monitor on two ranks under every strategy: metrics are those of all ranks, each row and each score once."""

import json
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_tgnn import (
    CDFGNNStrategy,
    DepCacheStrategy,
    DepCommStrategy,
    FullGraphDataModule,
    NodeClassification,
    SvenStrategy,
    SystemMonitor,
    TimelineMonitor,
)
from lightning_tgnn.algorithms.schedules.painter import chrome_trace
from lightning_tgnn.commands.report.run_log import read_run
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

RANKS = 2
POINTS = 25
STRATEGIES = {
    "sven": lambda: SvenStrategy(partition="interval", staleness=0, micro_batches=2),
    "stale": lambda: SvenStrategy(partition="interval", staleness=1),
    "depcomm": lambda: DepCommStrategy(partition="interval"),
    "depcache": lambda: DepCacheStrategy(),
}


class Entries(Callback):
    """Counts, on its own rank, sources, destinations and distinct ones."""

    def __init__(self):
        self.written = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.written.append([2 * len(batch), len(torch.cat([batch.src, batch.dst]).unique())])


def monitored(name, folder, monitor):
    logger, entries = TensorBoardLogger(folder, name, version=0), Entries()
    data, task = build("tgn", 24 // RANKS)
    timeline = TimelineMonitor(turns=3, first=2)
    outcome = fit(data, task, STRATEGIES[name](), RANKS, callbacks=[monitor, timeline, entries], logger=logger)
    logger.finalize("success")
    return {
        "losses": outcome["losses"],
        "timeline": timeline.timeline,
        "latest": monitor.latest,
        "seconds": set(monitor.seconds),
        "written": entries.written,
        "with_memory": int((outcome["state"]["memory"].norm(dim=1) > 0).sum()) if "memory" in outcome["state"] else 0,
    }


def on_graph(folder, monitor):
    logger = TensorBoardLogger(folder, "cdfgnn", version=0)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=CDFGNNStrategy(),
        max_epochs=4,
        logger=logger,
        log_every_n_steps=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[monitor],
    )
    data = FullGraphDataModule("synthetic", synthetic={"num_nodes": 60, "num_edges": 200})
    trainer.fit(NodeClassification("gcn", hidden_dim=8), datamodule=data)
    logger.finalize("success")
    return {"latest": monitor.latest, "seconds": set(monitor.seconds)}


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    monitor = SystemMonitor(every_n_steps=4, points=POINTS)  # one for all fits
    answers = {name: monitored(name, folder, monitor) for name in STRATEGIES}
    data, task = build("tgn", 24 // RANKS)
    answers["plain"] = fit(data, task, STRATEGIES["sven"](), RANKS)["losses"]
    return answers | {"cdfgnn": on_graph(folder, SystemMonitor(points=POINTS))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def ranks(folder):
    return run_ranks(on_rank, RANKS, str(folder), timeout=150)


def logged(folder, name):
    return read_run(Path(folder) / name / "version_0").series


@pytest.mark.parametrize("name", STRATEGIES)
def test_figures_are_those_of_all_ranks(ranks, folder, name):
    series, written = logged(folder, name), torch.tensor([answer[name]["written"] for answer in ranks]).sum(0)
    windows = [written[first:last].sum(0).tolist() for first, last in ((0, 4), (4, 6), (6, 10), (10, 12))]
    expected = [1 - distinct / entries for entries, distinct in windows]
    assert series["redundancy/eta_2"].numbers() == pytest.approx(expected, rel=1e-4)
    seconds = series["system/milliseconds_per_step"].numbers() * [4, 2, 4, 2] / 1e3
    events = [entries / 2 for entries, _ in windows]
    assert series["system/events_per_second"].numbers() * seconds == pytest.approx(events, rel=1e-4)
    assert ranks[0][name]["latest"] == ranks[1][name]["latest"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_stage_has_its_time(ranks, folder, name):
    stages = {"sample", "wait", "fetch", "update", "embed", "score", "write", "backward", "step", "other"}
    for answer in ranks:
        assert answer[name]["seconds"] == stages | {"validation"}
    total = sum(series.numbers() for tag, series in logged(folder, name).items() if tag.startswith("time/"))
    assert total == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_row_and_each_score_is_counted_once(ranks, folder, name):
    series = logged(folder, name)
    for tag in ("memory/norm", "memory/age"):
        assert series[tag].values[-1][:, 2].sum() == ranks[0][name]["with_memory"]
    for side in ("positive", "negative"):
        assert series[f"scores/val_{side}"].values[-1][:, 2].sum() == 29  # of 190 events those from 133 to 161
    assert series["memory/norm"].values[-1][:, 2].sum() > 10


def test_losses_are_those_without_the_monitor(ranks):
    for answer in ranks:
        assert torch.equal(answer["sven"]["losses"], answer["plain"])


def test_a_cut_graph_has_its_stages(ranks, folder):
    stages = {"wait", "embed", "backward", "step", "other"}
    assert {tag for tag in logged(folder, "cdfgnn") if tag.startswith("time/")} == {f"time/{name}" for name in stages}
    for answer in ranks:
        assert answer["cdfgnn"]["seconds"] == stages | {"validation"}
    assert ranks[0]["cdfgnn"]["latest"] == ranks[1]["cdfgnn"]["latest"]


def projected(folder):
    """Return what is known of the points, and their embeddings."""
    (written,) = Path(folder).glob("version_0/*/embeddings")
    rows = [line.split("\t") for line in (written / "metadata.tsv").read_text().splitlines()]
    return rows, np.loadtxt(written / "tensors.tsv")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process on the same global batches."""
    logger = TensorBoardLogger(tmp_path_factory.mktemp("alone"), "", version=0)
    fit(*build("tgn", 24), "auto", 1, callbacks=[SystemMonitor(points=POINTS)], logger=logger)
    logger.finalize("success")
    return projected(logger.save_dir)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_projector_has_the_nodes_of_all_ranks(ranks, alone, folder, name):
    rows, points = projected(Path(folder) / name)
    assert rows == alone[0]
    assert len(rows) - 1 == len(points) > 10
    if name != "stale":  # whose gradients are late
        np.testing.assert_allclose(points, alone[1], atol=1e-4)


def test_the_projector_has_the_vertices_of_all_ranks(ranks, folder):
    graph = FullGraphDataModule("synthetic", synthetic={"num_nodes": 60, "num_edges": 200}).graph
    last = graph.val.nonzero()[:, 0][-POINTS:].tolist()
    rows, points = projected(Path(folder) / "cdfgnn")
    assert rows == [["node", "label"], *([str(node), str(int(graph.labels[node]))] for node in last)]
    assert points.shape == (len(last), int(graph.labels.max()) + 1)


@pytest.mark.parametrize("name", STRATEGIES)
def test_timelines_have_the_stages_of_all_ranks(ranks, folder, name):
    first, second = (answer[name]["timeline"] for answer in ranks)
    assert chrome_trace(first) == chrome_trace(second)
    for rank in range(RANKS):
        own = first.of(ranks=[rank])
        assert {"fetch", "update", "embed", "score", "write", "backward", "step"} <= {own.stages[s] for s in own.stage}
        assert set(own.turn) == {2, 3, 4}
    assert json.loads((Path(folder) / name / "version_0" / "timeline.json").read_text()) == chrome_trace(first)
    assert "timeline" in logged(folder, name)
