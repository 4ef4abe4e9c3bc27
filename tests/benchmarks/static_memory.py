"""What static node memory is worth: AP, and epochs to converge, without it, learned along, pretrained, trained on.

    python tests/benchmarks/static_memory.py --source ../shared/data/CollegeMsg.txt.gz --seeds 0,1
    python tests/benchmarks/static_memory.py --source synthetic --seeds 0,1

One process trains a TGN for each kind and seed, and prints a line of JSON for each run.
"""

import json
import warnings
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_tgnn import LinkPrediction, StaticMemory, StaticPretraining, TemporalDataModule

# Who a source meets is its community's matter, for good, and no pair is likely to meet again: its latest events say
# little, who it is says all.
IDENTITY = {
    "num_events": 20000,
    "num_sources": 300,
    "num_destinations": 300,
    "num_communities": 20,
    "repeat": 0.0,
    "drift": 0.0,
    "noise": 0.05,
}
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
KINDS = ("off", "learned along", "frozen", "trained on")
NEAR = 0.99


class Curve(Callback):
    """Keeps the validation AP of every epoch."""

    def __init__(self):
        self.ap = []

    def on_validation_end(self, trainer, task):
        self.ap.append(round(float(trainer.callback_metrics["val/ap"]), 4))


def data(source, seed, negatives, synthetic):
    settings = {"synthetic": synthetic | {"seed": seed}} if source == "synthetic" else {}
    return TemporalDataModule(
        source, batch_size=200, num_eval_negatives=negatives, seed=seed, num_workers=0, **settings
    )


def task(kind, width):
    return LinkPrediction("tgn", static_dim=0 if kind == "off" else width, lr=1e-3)


def pretrain(source, seed, options, path):
    pl.seed_everything(seed)
    begin = perf_counter()
    callbacks = [StaticPretraining(path)]
    trainer = pl.Trainer(
        max_epochs=options.pretraining, limit_val_batches=0, enable_checkpointing=False, callbacks=callbacks, **QUIET
    )
    trainer.fit(task("frozen", options.width), datamodule=data(source, seed, 1, options.synthetic))
    return perf_counter() - begin


def measured(source, seed, kind, options, path, folder):
    pl.seed_everything(seed)
    curve, best = Curve(), ModelCheckpoint(Path(folder) / f"{kind} {seed}", monitor="val/ap", mode="max")
    callbacks = [curve, best]
    if kind in KINDS[2:]:
        callbacks.append(StaticMemory(path, trained=kind == "trained on"))
    trainer = pl.Trainer(max_epochs=options.epochs, num_sanity_val_steps=0, callbacks=callbacks, **QUIET)
    begin, module = perf_counter(), task(kind, options.width)
    trainer.fit(module, datamodule=data(source, seed, 1, options.synthetic))
    seconds = perf_counter() - begin
    judged = data(source, seed, 49, options.synthetic)
    (metrics,) = trainer.test(module, datamodule=judged, ckpt_path=best.best_model_path, verbose=False)
    near = next(epoch for epoch, ap in enumerate(curve.ap, 1) if ap >= NEAR * max(curve.ap))
    return {
        "source": Path(source).name,
        "kind": kind,
        "seed": seed,
        "val/ap": curve.ap,
        "best": max(curve.ap),
        "epochs to 99 % of its best": near,
        "test/ap": round(metrics["test/ap"], 4),
        "test/mrr": round(metrics["test/mrr"], 4),
        "seconds": round(seconds),
    }


def main():
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", required=True)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--pretraining", type=int, default=10, help="epochs")
    parser.add_argument("--synthetic", type=json.loads, default=IDENTITY, help="settings of the stream, as JSON")
    parser.add_argument("--width", type=int, default=100)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    with TemporaryDirectory() as folder:
        for seed in map(int, options.seeds.split(",")):
            path = Path(folder) / f"{seed}.pt"
            seconds = pretrain(options.source, seed, options, path)
            print(json.dumps({"pretraining": options.source, "seed": seed, "seconds": round(seconds)}), flush=True)
            for kind in KINDS:
                print(json.dumps(measured(options.source, seed, kind, options, path, folder)), flush=True)


if __name__ == "__main__":
    main()
