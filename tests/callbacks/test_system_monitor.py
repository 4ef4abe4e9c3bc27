"""The monitor in one process: what is logged is what was there, training is not changed, nothing stays behind."""

import csv

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_tgnn import FullGraphDataModule, NodeClassification, SystemMonitor
from lightning_tgnn.callbacks.progress_bar import shortened
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.report.run_log import read_run, stage_seconds
from tests.multiprocess.training import build, fit

STAGES = {"sample", "fetch", "update", "embed", "score", "write", "backward", "step", "other"}


class Seen(Callback):
    """Counts entries by itself, and keeps the scores and the embeddings of the latest validation."""

    def __init__(self):
        self.rates, self.scores, self.memory, self.embedded = [], None, [], {}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        series = torch.cat([batch.src, batch.dst, batch.negatives.flatten()])
        neighbors = batch.nodes[batch.neighbor_index[batch.neighbor_mask]] if len(batch.neighbor_mask) else series[:0]
        sampled, original = torch.cat([series, neighbors]), torch.cat([batch.src, batch.dst])
        self.rates.append([len(sampled), len(sampled.unique()), len(original), len(original.unique())])

    def on_validation_epoch_start(self, trainer, module):
        self.embedded = {}

    def on_validation_batch_start(self, trainer, module, batch, batch_idx):
        updated = module.apply_mail(module.fetch(batch.nodes).wait())
        vectors = type(module).embed(module, updated, batch)  # the task's own, which the monitor does not see
        sides = [batch.src.tolist(), batch.dst.tolist()]
        for node in {*sides[0], *sides[1]}:
            self.embedded[node] = {}  # of a batch before
        for side, nodes in enumerate(sides):
            for event, node in enumerate(nodes):
                self.embedded[node][side] = vectors[side * len(batch) + event].numpy()

    def on_validation_epoch_end(self, trainer, module):
        kept = module.val_metrics.against_first["ap"]
        self.scores = torch.cat(kept.positive).sigmoid(), torch.cat(kept.negatives).sigmoid()

    def on_train_epoch_end(self, trainer, module):
        memory = module.state_store.state_dict()["memory"]
        self.memory.append(int((memory.norm(dim=1) > 0).sum()))


def monitored(folder, model="tgn", epochs=2, callbacks=(), **options):
    monitor = SystemMonitor(every_n_steps=4)
    logger = TensorBoardLogger(folder, "", version=0)
    data, task = build(model, 24)
    outcome = fit(data, task, "auto", 1, callbacks=[monitor, *callbacks], epochs=epochs, logger=logger, **options)
    logger.finalize("success")
    return monitor, task, outcome, folder / "version_0"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    seen = Seen()
    monitor, task, outcome, folder = monitored(tmp_path_factory.mktemp("run"), callbacks=[seen])
    return {"seen": seen, "monitor": monitor, "task": task, "outcome": outcome, "log": read_run(folder), "dir": folder}


def test_training_is_the_same_and_the_task_is_left_as_it_was(run):
    plain = fit(*build("tgn", 24), "auto", 1)
    assert torch.equal(plain["losses"], run["outcome"]["losses"])
    assert plain["val"] == run["outcome"]["val"]
    assert not {"apply_mail", "embed", "score", "make_mails", "commit"} & set(vars(run["task"]))
    assert run["task"].stage_order is run["task"].default_stage_order


def test_shares_are_of_one_whole(run):
    shares = {tag: series for tag, series in run["log"].series.items() if tag.startswith("time/")}
    assert {tag.removeprefix("time/") for tag in shares} == STAGES
    totals = np.sum([series.numbers() for series in shares.values()], axis=0)
    assert totals == pytest.approx(1)
    assert len(totals) == 4  # two windows an epoch, the second a short one
    assert set(run["monitor"].seconds) == {*STAGES, "validation"}
    assert all(spent > 0 for spent in run["monitor"].seconds.values())


def test_redundancy_is_that_of_the_batches(run):
    rates = np.array(run["seen"].rates)
    assert len(rates) == 12
    for name, of in (("eta_1", 0), ("eta_2", 2)):
        windows = [rates[first:last].sum(0) for first, last in ((0, 4), (4, 6), (6, 10), (10, 12))]
        expected = [1 - window[of + 1] / window[of] for window in windows]
        assert run["log"].series[f"redundancy/{name}"].numbers() == pytest.approx(expected)


def test_events_per_second_are_those_of_the_steps(run):
    log = run["log"]
    seconds = log.series["system/milliseconds_per_step"].numbers() * [4, 2, 4, 2] / 1e3
    assert log.series["system/events_per_second"].numbers() * seconds == pytest.approx([96, 37, 96, 37], rel=1e-4)
    assert sum(seconds) == pytest.approx(sum(run["monitor"].seconds[stage] for stage in STAGES), rel=1e-4)


def test_scores_are_those_of_the_metrics(run):
    for name, scores in zip(("positive", "negative"), run["seen"].scores, strict=True):
        bins = run["log"].series[f"scores/val_{name}"].values[-1]
        assert bins[:, 2].sum() == len(scores)
        mean = ((bins[:, 0] + bins[:, 1]) / 2 * bins[:, 2]).sum() / len(scores)
        assert mean == pytest.approx(float(scores.mean()), abs=0.05)
    true, false, _, missed, precision, recall = run["log"].series["scores/val_curve"].values[-1]
    positives, negatives = run["seen"].scores
    place = 64  # half of the thresholds
    assert true[place] == (positives >= 0.5).sum()
    assert false[place] == (negatives >= 0.5).sum()
    assert missed[place] == (positives < 0.5).sum()
    assert precision[place] == pytest.approx(true[place] / (true[place] + false[place]))
    assert recall[place] == pytest.approx(true[place] / len(positives))


def test_memory_is_that_of_the_nodes_that_have_one(run):
    for tag in ("memory/norm", "memory/age"):
        counted = [bins[:, 2].sum() for bins in run["log"].series[tag].values]
        assert counted == run["seen"].memory
    assert "memory/broken_rows" not in run["log"].series


def test_embeddings_are_of_the_nodes_seen_last(run):
    (folder,) = run["dir"].glob("*/embeddings")
    points = np.loadtxt(folder / "tensors.tsv")
    labels = [line.split("\t") for line in (folder / "metadata.tsv").read_text().splitlines()]
    assert labels[0] == ["node", "side"]
    seen = run["seen"].embedded
    assert sorted(int(node) for node, _ in labels[1:]) == sorted(seen)
    assert {side for _, side in labels[1:]} == {"0", "1"}
    assert points.shape == (len(seen), 6)
    for point, (node, side) in zip(points, labels[1:], strict=True):
        np.testing.assert_allclose(point, seen[int(node)][int(side)], atol=1e-5, err_msg=f"{node}, {side}")


def test_a_resumed_run_and_a_second_fit_are_monitored_anew(tmp_path):
    monitor, task, outcome, _ = monitored(tmp_path, epochs=1)
    first = dict(monitor.seconds)
    checkpoint = tmp_path / "half.ckpt"
    outcome["trainer"].save_checkpoint(checkpoint)
    resumed, _, _, folder = monitored(tmp_path / "resumed", epochs=2, ckpt_path=str(checkpoint))
    log = read_run(folder)
    assert log.series["system/milliseconds_per_step"].steps == [10, 12]
    assert stage_seconds(log) == pytest.approx(stages_of(resumed), rel=1e-4)
    assert set(resumed.seconds) == {*STAGES, "validation"}
    outcome["trainer"].fit_loop.max_epochs = 2
    outcome["trainer"].fit(task, datamodule=outcome["trainer"].datamodule)
    assert monitor.seconds != first
    assert monitor.latest["redundancy/eta_1"] == pytest.approx(resumed.latest["redundancy/eta_1"])


def stages_of(monitor):
    return {stage: spent for stage, spent in monitor.seconds.items() if stage != "validation"}


@pytest.mark.parametrize("batches", [3, 6])
def test_seconds_logged_are_those_measured_where_gradients_are_accumulated(tmp_path, batches):
    monitor, _, _, folder = monitored(tmp_path, accumulate_grad_batches=batches)
    log = read_run(folder)
    assert log.series["system/window_seconds"].steps == {3: [1, 2, 3, 4], 6: [0, 1, 1, 2]}[batches]
    assert stage_seconds(log) == pytest.approx(stages_of(monitor), rel=1e-4)


def test_a_run_that_fails_leaves_nothing_behind(tmp_path):
    class Fails(Callback):
        def on_train_batch_end(self, *_):
            raise ZeroDivisionError

    data, task = build("jodie", 24)
    with pytest.raises(ZeroDivisionError):
        fit(data, task, "auto", 1, callbacks=[SystemMonitor(), Fails()], default_root_dir=tmp_path)
    assert not {"apply_mail", "embed", "score", "make_mails", "commit"} & set(vars(task))
    fit(data, task, "auto", 1, callbacks=[monitor := SystemMonitor()], epochs=1)
    assert set(monitor.seconds) == {*STAGES, "validation"}


def test_other_loggers_get_the_numbers_and_none_is_no_matter(tmp_path):
    logger = CSVLogger(tmp_path, "", version=0)
    options = {"epochs": 1, "num_sanity_val_steps": 2, "accumulate_grad_batches": 2}
    fit(*build("apan", 24), "auto", 1, callbacks=[SystemMonitor(2)], logger=logger, **options)
    with (tmp_path / "version_0" / "metrics.csv").open() as lines:
        (*_, columns) = [row for row in csv.DictReader(lines) if row["time/embed"]]
    assert 0 < float(columns["time/backward"]) < 1
    fit(*build("apan", 24), "auto", 1, callbacks=[SystemMonitor(points=0)], limit_val_batches=0, epochs=1)


def test_broken_memory_is_told_and_not_counted(tmp_path):
    class Breaks(Callback):
        def on_train_epoch_end(self, trainer, module):
            module.state_store.rows.memory[:3] = torch.nan

    _, _, _, folder = monitored(tmp_path, "jodie", 1, limit_val_batches=0)
    whole = read_run(folder).series["memory/norm"].values[0][:, 2].sum()
    logger = TensorBoardLogger(tmp_path, "broken", version=0)
    options = {"callbacks": [Breaks(), SystemMonitor()], "logger": logger, "epochs": 1, "limit_val_batches": 0}
    fit(*build("jodie", 24), "auto", 1, **options)
    logger.finalize("success")
    log = read_run(tmp_path / "broken" / "version_0")
    assert log.series["memory/broken_rows"].values == [3]
    assert log.series["memory/norm"].values[0][:, 2].sum() == whole - 3


def test_a_static_graph_has_the_figures_that_make_sense_there(tmp_path):
    data = FullGraphDataModule("synthetic", synthetic={"num_nodes": 60, "num_edges": 200})
    logger = TensorBoardLogger(tmp_path, "", version=0)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=logger,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[monitor := SystemMonitor()],
    )
    trainer.fit(task := NodeClassification("gcn", hidden_dim=8), datamodule=data)
    logger.finalize("success")
    log = read_run(tmp_path / "version_0")
    assert {tag for tag in log.series if tag.startswith("time/")} == {
        f"time/{s}" for s in ("embed", "backward", "step", "other")
    }
    assert not [tag for tag in log.series if tag.startswith(("redundancy", "memory", "scores"))]
    assert "system/events_per_second" not in log.series
    assert "forward" not in vars(task)
    (folder,) = (tmp_path / "version_0").glob("*/embeddings")
    rows = [line.split("\t") for line in (folder / "metadata.tsv").read_text().splitlines()]
    assert rows[0] == ["node", "label"]
    scored = {str(node): str(int(data.graph.labels[node])) for node in np.flatnonzero(np.asarray(data.graph.val))}
    assert dict(rows[1:]) == scored
    assert set(monitor.seconds) == {"embed", "backward", "step", "other", "validation"}


def test_counts_are_refused_when_the_monitor_is_made():
    with pytest.raises(InvalidArgumentError, match="every_n_steps must be an integer of at least 1, got 0; give batch"):
        SystemMonitor(0)
    with pytest.raises(InvalidArgumentError, match="points must be an integer of at least 0, got -1; give nodes"):
        SystemMonitor(points=-1)


def test_the_bar_says_events_per_second_and_ap():
    metrics = {"v_num": 1, "train/loss": torch.tensor(0.51234), "train/events_per_second": 12345.6, "val/ap": 0.98765}
    assert shortened(metrics) == {"loss": "0.512", "events/s": "12,346", "val AP": "0.9877"}
