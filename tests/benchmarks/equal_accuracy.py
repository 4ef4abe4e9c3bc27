"""How many updates, and seconds, a strategy takes to an accuracy: validations within epochs, at several learning rates.

    torchrun --nproc_per_node 8 tests/benchmarks/equal_accuracy.py --source ../shared/data/CollegeMsg.txt.gz \
        --strategies pipetgl,depcache,disttgl:minibatch=8,disttgl:epoch=8,disttgl:memory=8 --lrs 3e-4,8.5e-4,2.4e-3

Every run trains each event as often, and is validated after as many of them. The first rank prints a line of JSON for
each run: updates, and AP and seconds of training until each validation.
"""

import json
import os
import warnings
from argparse import ArgumentParser
from math import ceil
from pathlib import Path
from time import perf_counter

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import LinkPrediction, ParallelismMonitor, TemporalDataModule
from lightning_tgnn.commands.bench.comparison import contestants_of

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Curve(Callback):
    """Keeps steps, seconds of training and AP of every validation."""

    def __init__(self):
        self.steps, self.seconds, self.ap, self.spent = [], [], [], 0.0

    def on_train_start(self, trainer, task):
        self.since = perf_counter()

    def on_validation_start(self, trainer, task):
        self.spent += perf_counter() - self.since

    def on_validation_end(self, trainer, task):
        self.steps.append(trainer.global_step)
        self.seconds.append(round(self.spent, 2))
        self.ap.append(round(float(trainer.callback_metrics["val/ap"]), 4))
        self.since = perf_counter()


def measured(options, name, lr, seed, ranks):
    pl.seed_everything(seed)
    data = TemporalDataModule(options.source, batch_size=options.batch_size, seed=seed, num_workers=0)
    batches = ceil(len(data.train_dataloader().events) / options.batch_size)
    curve, monitor = Curve(), ParallelismMonitor()
    trainer = pl.Trainer(
        strategy=contestants_of(name, "events")[name].strategy(),
        devices=ranks,
        max_epochs=-1,
        max_steps=ceil(options.epochs * batches / ranks),
        val_check_interval=max(1, batches // (ranks * options.looks)),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        callbacks=[curve, monitor],
        **QUIET,
    )
    trainer.fit(LinkPrediction("tgn", lr=lr), datamodule=data)
    effective = monitor.latest.get("parallelism/effective")
    return {
        "source": Path(options.source).name,
        "strategy": name,
        "ranks": ranks,
        "lr": lr,
        "seed": seed,
        "idle": None if effective is None else round(1 - float(effective) / ranks, 3),
        "updates": curve.steps,
        "seconds": curve.seconds,
        "ap": curve.ap,
    }


def main():
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", required=True)
    parser.add_argument("--strategies", default="depcache", help="as of lightning-tgnn bench, separated by commas")
    parser.add_argument("--lrs", default="1e-3")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--epochs", type=float, default=4, help="how often each event is trained")
    parser.add_argument("--looks", type=int, default=8, help="validations for each time that every event is trained")
    parser.add_argument("--batch_size", type=int, default=200, help="of a rank")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    for name in options.strategies.split(","):
        for lr in map(float, options.lrs.split(",")):
            for seed in map(int, options.seeds.split(",")):
                line = json.dumps(measured(options, name, lr, seed, ranks))
                if os.environ.get("RANK", "0") == "0":
                    print(line, flush=True)


if __name__ == "__main__":
    main()
