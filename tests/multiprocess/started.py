"""A script whose Trainer starts processes of its own, and what its process then holds."""

import json
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
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
        self.occurred, self.seen = Occurred(), {"batches": torch.zeros(1)}

    def on_validation_batch_end(self, outputs, batch, *rest):
        super().on_validation_batch_end(outputs, batch, *rest)
        self.occurred.update(len(batch))
        self.seen["batches"] += 1
        self.log("val/events", self.occurred)


def task_and_data(name):
    if name == "cdfgnn":
        sizes = {"num_nodes": 60, "num_edges": 240, "feature_dim": 4, "num_classes": 3}
        return NodeClassification("gcn", dropout=0.0), FullGraphDataModule("synthetic", synthetic=sizes)
    data, task = build("jodie", 12, task_class=Counting)
    return task, data


def run(strategy, name, folder):
    """Fit and validate in new processes, and return what this process then holds."""
    task, data = task_and_data(name)
    monitor = "val/accuracy" if name == "cdfgnn" else "val/ap"
    saved = ModelCheckpoint(folder, monitor=monitor, mode="max")
    trainer = pl.Trainer(**QUIET, strategy=strategy, max_epochs=2, callbacks=[saved], default_root_dir=folder)
    trainer.fit(task, datamodule=data)
    fitted = {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("val/")}
    weights = {key: value.clone() for key, value in task.state_dict().items()}
    checkpoint = WholeCheckpointIO().load_checkpoint(saved.best_model_path)
    found = {
        "fitted": fitted,
        "validated": trainer.validate(task, datamodule=data, verbose=False)[0],
        "best": float(saved.best_model_score),
        "steps": [trainer.global_step, trainer.current_epoch],
        "folders": sorted(path.name for path in Path(folder).glob("lightning_logs/*")),
        "finite": all(bool(value.isfinite().all()) for value in weights.values()),
    }
    if name != "cdfgnn":
        found["events"] = [fitted["val/events"], len(data.split.val)]
        found["left"] = float(task.occurred.count + task.seen["batches"])
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


def main(start_method, folder, *names):
    for name in names:
        strategy = STRATEGIES[name](start_method=start_method)
        found, task, data, weights = run(strategy, name, f"{folder}/{name}")
        if start_method == "fork":  # a spawned process imports for seconds
            last = {key: value.clone() for key, value in task.state_dict().items()}
            first = begins_with(STRATEGIES[name](start_method="fork"), task, data, f"{folder}/{name}/first.pt")
            found["begins_with"] = all(torch.equal(first[key], last[key]) for key in weights)
        print("FOUND", json.dumps(found), flush=True)
