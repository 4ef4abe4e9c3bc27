"""A script whose Trainer starts processes of its own, and what its process then holds."""

import csv
import json
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import lightning.pytorch as pl
import torch
import torch.multiprocessing as mp
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torchmetrics import Metric

from lightning_tgnn import (
    CDFGNNStrategy,
    DepCacheStrategy,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    SvenStrategy,
)
from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from tests.multiprocess.training import build

QUIET = {"accelerator": "cpu", "devices": 2, "enable_progress_bar": False, "enable_model_summary": False}
STRATEGIES = {
    "sven": partial(SvenStrategy, state_dict_type="sharded"),
    "depcache": DepCacheStrategy,
    "cdfgnn": CDFGNNStrategy,
}


class FirstWeights(Callback):
    """Writes down the weights that a fit begins with."""

    def __init__(self, path):
        self.path = str(path)

    def on_train_start(self, trainer, module):
        if trainer.is_global_zero:
            torch.save(module.state_dict(), self.path)


class Freezes(Callback):
    """Freezes the first weights of a task, as `StaticMemory` does with its rows."""

    def setup(self, trainer, module, stage):
        module.configure_model()
        if stage == "fit":
            next(module.parameters()).requires_grad_(False)


class Occurred(Metric):
    """Counts in place, as many metrics do."""

    def __init__(self):
        super().__init__()
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, count):
        self.count += count

    def compute(self):
        return self.count


class Counting(LinkPrediction):
    """Counts the events that it is validated on."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.occurred, self.kept = Occurred(), SimpleNamespace(batches=torch.zeros(1))
        self.seen = {"occurred": Occurred()}

    def on_validation_batch_end(self, outputs, batch, *rest):
        super().on_validation_batch_end(outputs, batch, *rest)
        for occurred in (self.occurred, self.seen["occurred"]):
            occurred.update(len(batch))
        self.kept.batches += 1
        self.log("val/events", self.occurred)


def task_and_data(name, noise=1.0):
    if name == "cdfgnn":
        sizes = {"num_nodes": 60, "num_edges": 240, "feature_dim": 4, "num_classes": 3, "noise": noise}
        return NodeClassification("gcn", dropout=0.0), FullGraphDataModule("synthetic", synthetic=sizes)
    data, task = build("jodie", 12, task_class=Counting)
    data.source = replace(data.source, edge_features=noise * data.source.edge_features)
    return task, data


def table_of(logger):
    """Return the steps and some metrics of the rows that a logger has written."""
    with (Path(logger.log_dir) / "metrics.csv").open(newline="") as file:
        return [
            (row["step"], row.get("train/loss"), row.get("train/events_per_second")) for row in csv.DictReader(file)
        ]


def run(strategy, name, folder):
    """Fit and validate in new processes, and return what this process then holds."""
    task, data = task_and_data(name)
    monitor = "val/accuracy" if name == "cdfgnn" else "val/ap"
    saved = ModelCheckpoint(folder, monitor=monitor, mode="max")
    loggers = [TensorBoardLogger(folder), CSVLogger(folder, "csv")]
    trainer = pl.Trainer(
        **QUIET, strategy=strategy, max_epochs=2, callbacks=[saved, Freezes()], logger=loggers, log_every_n_steps=5
    )
    trainer.fit(task, datamodule=data)
    rows_of_fit = table_of(loggers[1])
    fitted = {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("val/")}
    weights = {key: value.clone() for key, value in task.state_dict().items()}
    checkpoint = WholeCheckpointIO().load_checkpoint(saved.best_model_path)
    found = {
        "fitted": fitted,
        "validated": trainer.validate(task, datamodule=data, verbose=False)[0],
        "best": float(saved.best_model_score),
        "steps": [trainer.global_step, trainer.current_epoch],
        "folders": sorted(path.name for path in Path(folder).glob("lightning_logs/*")),
        "tables": [path.parent.name for path in Path(folder).glob("csv/*/metrics.csv")],
        "keeps rows": table_of(loggers[1])[: len(rows_of_fit)] == rows_of_fit,
        "rows": [len(rows_of_fit), len(table_of(loggers[1]))],
        "frozen": [not parameter.requires_grad for parameter in task.parameters()],
        "finite": all(bool(value.isfinite().all()) for value in weights.values()),
    }
    if name != "cdfgnn":
        found["events"] = [fitted["val/events"], len(data.split.val)]
        found["left"] = float(task.occurred.count + task.seen["occurred"].count + task.kept.batches)
        found["best_of"] = float(checkpoint["callbacks"][saved.state_key]["current_score"])
        found["position"] = [task.state_store.position, len(data.split.train)]
        found["memory"] = bool(task.state_store.state_dict()["memory"].any())
        found["positions"] = checkpoint["lightning_tgnn"]["state"]["position"]
    return found, task, data, weights


def begins_with(strategy, task, data, path):
    """Fit once more, by another Trainer, and return the weights that it began with."""
    pl.Trainer(**QUIET, strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
               callbacks=[FirstWeights(path)]).fit(task, datamodule=data)  # fmt: skip
    return torch.load(path, weights_only=True)


def main(folder, *names):
    for name in names:
        strategy = STRATEGIES[name](start_method="spawn")
        found, task, data, weights = run(strategy, name, f"{folder}/{name}")
        last = {key: value.clone() for key, value in task.state_dict().items()}
        data = task_and_data(name, noise=2.0)[1]  # other features, and the checks of what comes back
        first = begins_with(STRATEGIES[name](start_method="spawn"), task, data, f"{folder}/{name}/first.pt")
        found["begins_with"] = all(torch.equal(first[key], last[key]) for key in weights)
        data.setup("fit")
        found["knows data"] = task.info.features == data.info.features
        print("FOUND", json.dumps(found), flush=True)


class EndsStarter(Callback):
    """Sends SIGTERM to the process that has started the ranks."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero and batch_idx == 2:
            os.kill(os.getppid(), signal.SIGTERM)


def starting_under_sigterm(start, *arguments, **options):
    """Start processes, with SIGTERM to this one just before."""
    os.kill(os.getpid(), signal.SIGTERM)
    return start(*arguments, **options)


def ended(folder, moment):
    """Fit in spawned processes until SIGTERM ends this process."""
    task, data = task_and_data("sven")
    saved = [ModelCheckpoint(folder, filename="ended", save_on_exception=True), OnExceptionCheckpoint(folder)]
    callbacks, strategy = [EndsStarter(), *saved], SvenStrategy(start_method="spawn")
    trainer = pl.Trainer(**QUIET, strategy=strategy, max_epochs=50, callbacks=callbacks, logger=False)
    starts = partial(starting_under_sigterm, mp.start_processes)
    with mock.patch.object(mp, "start_processes", starts) if moment == "while they start" else nullcontext():
        trainer.fit(task, datamodule=data)
    print("UNREACHED", flush=True)
