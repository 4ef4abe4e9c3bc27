"""What is kept of a run: logs and settings that make its page, settings that a generated graph was made with."""

import json
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from lightning_tgnn.commands.report.command import read_settings
from lightning_tgnn.commands.report.run_log import read_latest
from lightning_tgnn.commands.report.run_page import page_of
from lightning_tgnn.data.graphs.sources.synthetic import generate_graph
from tests.fuzz.array_targets import files_of
from tests.fuzz.loop import Target
from tests.fuzz.mutate_records import records_of
from tests.fuzz.right import check_graph

_SETTINGS = b"""data:
  class_path: lightning_tgnn.TemporalDataModule
  init_args: {source: wikipedia.txt, ratios: [0.7, 0.15], when: 2020-01-31}
model: &model
  model: tgn
  layers: [{width: 3}, {width: 4}]
again: *model
"""


_LOG = "events.out.tfevents.1.x"


class Logs(Target):
    name = "logs of a run"
    may_warn = True

    def seeds(self):
        with tempfile.TemporaryDirectory() as folder:
            return [{_LOG: _log(Path(folder) / part, part), "config.yaml": _SETTINGS} for part in _PARTS]

    def read(self, folder):
        return read_latest(folder), *read_settings(folder)

    def check(self, files, result, warned):
        from tensorboard.compat.proto import event_pb2

        log, settings, notice = result[:3]
        assert settings or notice
        events = []
        for record in records_of(files[_LOG]):
            try:
                events.append(event_pb2.Event.FromString(record))
            except Exception:  # the first that is damaged ends the file
                break
        tags = {value.tag for event in events for value in event.summary.value}
        given = {tag: series for tag, series in log.series.items() if not tag.startswith("__run")}  # graphs, made tags
        assert set(given) <= tags
        count = sum(len(event.summary.value) for event in events)
        kept = sum(len(series.values) for series in given.values())
        assert kept == count or (kept < count and log.notices), "what is left out is said"
        for series in log.series.values():
            assert len(series.steps) == len(series.values)
            assert series.steps == sorted(series.steps)


class Page(Logs):
    name = "page of a run"

    def read(self, folder):
        log, settings, notice = super().read(folder)
        return log, settings, notice, page_of(log, settings, log.notices)

    def check(self, files, result, warned):
        super().check(files, result, warned)
        page = result[3]
        assert page.startswith("<!doctype html>")
        assert page.rstrip().endswith("</html>")
        assert "<script" not in page


_PARTS = ("curves", "times", "histograms", "scores", "pictures")


def _log(folder, part):
    with SummaryWriter(folder) as writer:
        for step in (10, 20):
            if part == "curves":
                writer.add_scalar("train/loss", 1 / step, step)
                writer.add_scalar("val/ap", 0.5, step)
            elif part == "times":
                writer.add_scalar("system/milliseconds_per_step", 20, step)
                writer.add_scalar("time/embed", 0.25, step)
            elif part == "histograms":
                writer.add_histogram("memory/norm", np.linspace(0, 1, 20), step)
                writer.add_histogram("scores/val_positive", np.linspace(0, 1, 20), step)
            elif part == "scores":
                writer.add_pr_curve(
                    "scores/val_curve", np.array([0, 1, 1]), np.array([0.1, 0.6, 0.9]), step, num_thresholds=9
                )
            else:
                writer.add_image("exchange/residual", np.zeros((1, 4, 4)), step)
                writer.add_scalar("test/ap", 0.875, step)
    (path,) = folder.iterdir()
    return path.read_bytes()


class GeneratedGraph(Target):
    name = "folder of a generated graph"
    small: ClassVar = {"num_nodes": 20, "num_edges": 60, "num_classes": 2, "feature_dim": 3, "seed": 0}

    def seeds(self):
        with tempfile.TemporaryDirectory() as folder:
            generate_graph(folder=Path(folder) / "graph", **self.small)
            return [files_of(Path(folder) / "graph")]

    def read(self, folder):
        return generate_graph(folder=folder, **self.small)

    def check(self, files, result, warned):
        check_graph(result)
        (settings,) = [name for name in files if name.endswith(".json")]
        assert self.small.items() <= json.loads(files[settings]).items()
