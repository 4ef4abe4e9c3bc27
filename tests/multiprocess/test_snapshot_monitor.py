"""Monitors of snapshots on two ranks: what is logged is what was counted, and training is not changed."""

import csv
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_tgnn import (
    BLADStrategy,
    SnapshotMonitor,
    SnapshotPartitionStrategy,
    SystemMonitor,
    TimelineMonitor,
    VertexPartitionStrategy,
)
from lightning_tgnn.algorithms.schedules.painter import chrome_trace
from lightning_tgnn.commands.report.run_log import read_run
from lightning_tgnn.strategies.parts.load_meter import FORWARD
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.snapshots import build
from tests.multiprocess.training import as_torchrun, fit

RANKS, EPOCHS, WINDOW = 2, 3, 2
STRATEGIES = {
    "blad": lambda: BLADStrategy(processes_per_device=2),
    "snapshot_partition": lambda: SnapshotPartitionStrategy(),
    "vertex_partition": lambda: VertexPartitionStrategy(partition="interval"),
}
MODELS = {"blad": "tgcn", "snapshot_partition": "wd_gcn", "vertex_partition": "evolvegcn_o"}


class Counted(Callback):
    """Counts each step by itself, beside whoever else reads the counters."""

    def __init__(self):
        self.steps, self.calls = [], []

    def on_train_start(self, trainer, module):
        self.pipeline = trainer.strategy.snapshot_state.pipeline
        if self.pipeline is not None:
            self.pipeline.meter.add(self.calls.append, module.stages)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        strategy = trainer.strategy
        self.calls.clear()
        self.loads = strategy.snapshot_state.loads
        self.before = strategy.exchange.traffic.snapshot(), strategy.gradient_traffic.snapshot(), self.moved

    @property
    def moved(self):
        return 0 if self.pipeline is None else self.pipeline.hand_over.moved

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        strategy, (rows, gradients, moved) = trainer.strategy, self.before
        travelled = strategy.exchange.traffic.since(rows)
        self.steps.append(
            {
                "hidden_state": sum(flow.sent for name, flow in travelled.items() if "hidden state" in name),
                "features": sum(flow.sent for name, flow in travelled.items() if "hidden state" not in name),
                "weights": sum(flow.sent for flow in strategy.gradient_traffic.since(gradients).values()),
                "shared_memory": self.moved - moved,
                "calls": [
                    (call.measured.operator, call.measured.seconds, call.spans, self.predicted(call.measured))
                    for call in self.calls
                ],
                "epoch": trainer.current_epoch,
            }
        )

    def predicted(self, one):
        if self.loads is None:
            return None
        if one.operator == FORWARD:
            sizes = np.array([one.vertices]), np.array([one.edges])
            return float(self.loads.step(*sizes, last=one.last is not None)[0])
        return self.loads.model.seconds_of(one) if one.operator in self.loads.model.loads else None

    def on_train_end(self, trainer, module):
        if self.pipeline is not None:
            self.pipeline.meter.remove(self.calls.append, module.stages)


def monitored(name, folder):
    data, task = build(MODELS[name], 2)
    counted, monitor, system = Counted(), SnapshotMonitor(every_n_steps=WINDOW), SystemMonitor(every_n_steps=WINDOW)
    timelines = [TimelineMonitor(turns=2, first=0, name="before"), TimelineMonitor(turns=2, first=5, name="after")]
    loggers = [CSVLogger(folder, name, version=0), TensorBoardLogger(folder, f"{name}-pictures", version=0)]
    callbacks = [counted, monitor, system, *timelines]
    outcome = fit(data, task, STRATEGIES[name](), RANKS, epochs=EPOCHS, logger=loggers, callbacks=callbacks)
    loggers[1].finalize("success")
    assert not task.stages._listeners
    return {
        "steps": counted.steps,
        "latest": monitor.latest,
        "losses": outcome["losses"],
        "weights": outcome["weights"],
        "timelines": [timeline.timeline for timeline in timelines],
        "stages": set(system.seconds),
        "seconds": sum(system.seconds.values()) - system.seconds["validation"],
    }


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    answers = {name: monitored(name, folder) for name in STRATEGIES}
    plain = fit(*build(MODELS["blad"], 2), STRATEGIES["blad"](), ranks, epochs=EPOCHS)
    return answers | {"plain": {"losses": plain["losses"], "weights": plain["weights"]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def ranks(folder):
    return run_ranks(on_rank, RANKS, str(folder), timeout=150)


def logged(folder, name):
    with (folder / name / "version_0" / "metrics.csv").open() as lines:
        rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(lines)]
    return [row for row in rows if "snapshots/waiting_share" in row]


def windows(steps):
    """Return the numbers of the steps of each window."""
    for epoch in range(EPOCHS):
        own = [number for number, step in enumerate(steps) if step["epoch"] == epoch]
        yield from (own[first : first + WINDOW] for first in range(0, len(own), WINDOW))


@pytest.mark.parametrize("name", STRATEGIES)
def test_bytes_are_those_that_were_counted(ranks, folder, name):
    rows = logged(folder, name)
    found = list(windows(ranks[0][name]["steps"]))
    assert len(found) == len(rows) > EPOCHS
    total = dict.fromkeys(("features", "hidden_state", "weights", "shared_memory"), 0)
    for row, window in zip(rows, found, strict=True):
        for kind in total:
            sent = sum(answer[name]["steps"][step][kind] for answer in ranks for step in window)
            assert row.get(f"snapshots/{kind}_bytes", 0) == pytest.approx(sent / len(window)), kind
            total[kind] += sent
        assert 0 <= row["snapshots/waiting_share"] <= row["snapshots/longest_waiting_share"] < 1
    travels = {kind for kind, sent in total.items() if sent}
    hands_over = {"hidden_state", "weights", "shared_memory"}
    assert travels == ({"features", "weights"} if name == "vertex_partition" else hands_over)
    assert ranks[0][name]["latest"] == ranks[1][name]["latest"]


@pytest.mark.parametrize("name", ["blad", "snapshot_partition"])
def test_loads_are_those_of_all_calls(ranks, folder, name):
    for row, window in zip(logged(folder, name), windows(ranks[0][name]["steps"]), strict=True):
        calls = [call for answer in ranks for step in window for call in answer[name]["steps"][step]["calls"]]
        operators = {operator for operator, *_ in calls}
        assert {"forward", "backward", "graph 1", "nn 2"} <= operators
        for operator in operators:
            own = [(seconds, foretold) for told, seconds, _, foretold in calls if told == operator]
            short, known = operator.replace(" ", "_"), [pair for pair in own if pair[1] is not None]
            if operator in ("forward", "backward"):
                measured = sum(seconds for seconds, _ in own) / len(own)
                assert row[f"snapshots/{short}_milliseconds"] == pytest.approx(1e3 * measured)
            if not known:
                assert f"snapshots/error_{short}" not in row
                continue
            error = sum(abs(foretold - seconds) / seconds for seconds, foretold in known) / len(known)
            assert row[f"snapshots/error_{short}"] == pytest.approx(error)
            if operator in ("forward", "backward"):
                predicted = sum(foretold for _, foretold in known) / len(known)
                assert row[f"snapshots/predicted_{short}_milliseconds"] == pytest.approx(1e3 * predicted)
    assert ("snapshots/error_forward" in ranks[0][name]["latest"]) == (name == "blad")


def test_a_load_is_predicted_before_it_is_measured(ranks, folder):
    """The first epoch is what the model is fitted to; its last turn is left out of the fit."""
    found = list(windows(ranks[0]["blad"]["steps"]))
    has_error = ["snapshots/error_forward" in row for row in logged(folder, "blad")]
    epochs = [ranks[0]["blad"]["steps"][window[0]]["epoch"] for window in found]
    assert has_error == [epoch > 0 for epoch in epochs]


def both_at_once(one, other):
    """Return for how long a graph operator of one and another operator of the other run at once, pair by pair."""
    spans = [
        {
            kind: [
                span
                for operator, _, spans_of_call, _ in calls
                for span in spans_of_call
                if operator not in ("forward", "backward") and (operator.split()[0] == "graph") == (kind == "graph")
            ]
            for kind in ("graph", "nn")
        }
        for calls in (one, other)
    ]
    pairs = [*product(spans[0]["graph"], spans[1]["nn"]), *product(spans[0]["nn"], spans[1]["graph"])]
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in pairs)


def test_overlap_is_that_of_the_operators_of_both(ranks, folder):
    for row, window in zip(logged(folder, "blad"), windows(ranks[0]["blad"]["steps"]), strict=True):
        one, other = ([c for step in window for c in answer["blad"]["steps"][step]["calls"]] for answer in ranks)
        both, share = both_at_once(one, other), row["snapshots/overlap_share"]
        assert (both > 0) == (share > 0)
        assert 0 <= share < 1
    assert "snapshots/overlap_share" not in ranks[0]["vertex_partition"]["latest"]


def test_pictures_are_in_tensorboard_and_timelines_beside_the_logs(ranks, folder):
    for name in STRATEGIES:
        run = folder / f"{name}-pictures" / "version_0"
        images = read_run(run).by_kind("images")
        loads = {"snapshots/loads"} if name != "vertex_partition" else set()
        assert set(images) == {"before", "after"} | loads
        if loads:
            assert len(images["snapshots/loads"].values) == EPOCHS
        before, after = ranks[0][name]["timelines"]
        for rank in range(RANKS):
            own = before.of(ranks=[rank])
            assert {"graph 1", "nn 1", "rnn 1", "backward", "step"} <= {own.stages[stage] for stage in own.stage}
        assert set(before.turn) == {0, 1}
        assert set(after.turn) == {5, 6}
        for answer in ranks[1:]:
            assert [chrome_trace(told) for told in answer[name]["timelines"]] == [*map(chrome_trace, (before, after))]
        # The first of the loggers is where files go.
        written = Path(folder / name / "version_0")
        assert json.loads((written / "before.json").read_text()) == chrome_trace(before)
        assert json.loads((written / "after.json").read_text()) == chrome_trace(after)


def test_every_stage_has_its_time(ranks):
    shared = {"sample", "graph", "nn", "rnn", "score", "backward", "step", "other", "validation"}
    for answer in ranks:
        for name in STRATEGIES:
            assert shared <= answer[name]["stages"] <= shared | {"wait", "hand-over"}
        assert {"wait", "hand-over"} <= answer["blad"]["stages"]


def test_training_is_the_same(ranks):
    # Of a rank: those of the groups that end on it, which go by loads that each run measures for itself.
    losses, plain = (sum(answer[name]["losses"] for answer in ranks) for name in ("blad", "plain"))
    torch.testing.assert_close(losses, plain, rtol=1e-4, atol=1e-6)
    for answer in ranks:
        for name, weight in answer["plain"]["weights"].items():
            torch.testing.assert_close(answer["blad"]["weights"][name], weight, rtol=1e-3, atol=1e-5)
