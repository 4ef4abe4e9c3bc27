"""A run in which one rank dies, or fails, in the middle; each rank calls `main`."""

import math
import os
import signal
from datetime import timedelta
from functools import partial

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tgnn import (
    CDFGNNStrategy,
    DistTGLStrategy,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    PipeTGLStrategy,
    SvenStrategy,
    cli,
)
from lightning_tgnn.__main__ import main as command
from lightning_tgnn.comm import Exchange, Messages, failure
from lightning_tgnn.data import generate_graph
from lightning_tgnn.state import ServedStateStore
from lightning_tgnn.strategies.parts.gradient_sync import GradientSync
from tests.multiprocess.training import QuietLinks, build

# All ranks are here: who is gone shows sooner than on machines far apart.
failure._ROLL_CALL_SECONDS, failure._ANSWER_SECONDS = 2.0, 0.25
RANKS = 3
VICTIM = 1
CALLS_BEFORE = 12


def fail(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "nan":
        return
    raise ValueError("this rank is unwell")


def break_at(where, how):
    """Let the victim fail when it has entered ``where`` for a while."""
    left = [CALLS_BEFORE]

    def counted(call, applies=lambda *arguments: True):
        def wrapper(*arguments, **options):
            if applies(*arguments):
                left[0] -= 1
                if not left[0]:
                    fail(how)
            outcome = call(*arguments, **options)
            return outcome * math.nan if how == "nan" and not left[0] else outcome

        return wrapper

    if where == "all_reduce":
        GradientSync._answer = counted(GradientSync._answer)
    elif where == "gather":
        Messages.gather = counted(Messages.gather)
    elif where.startswith(("send ", "receive ", "mean ")):
        method, operation = ("mean", where) if where.startswith("mean ") else where.split(" ", 1)
        setattr(Messages, method, counted(getattr(Messages, method), lambda *arguments: arguments[-1] == operation))
    elif where.startswith("served "):
        method = where.removeprefix("served ")
        setattr(ServedStateStore, method, counted(getattr(ServedStateStore, method)))
    elif where == "memory process":
        ServedStateStore.fetch = counted(ServedStateStore.fetch, partial(serving, left))
    elif where == "loss":
        LinkPrediction.loss = counted(LinkPrediction.loss)
    else:
        Exchange.start = counted(Exchange.start, lambda *arguments: arguments[-1] == where)


def serving(left, store, nodes):
    """Kill the memory process, in place of the victim, when the time has come."""
    left[0] -= 1
    if not left[0]:
        os.kill(store._service.pid, signal.SIGKILL)
    return False


def trainer(folder, strategy, callbacks, **options):
    settings = {"accelerator": "cpu", "devices": RANKS, "logger": False, "enable_progress_bar": False}
    settings |= {"enable_model_summary": False, "callbacks": callbacks}
    runner = pl.Trainer(strategy=strategy, **settings, **options)
    resume = f"{folder}/last.ckpt"
    return runner, resume if os.path.exists(resume) else None


def sven(folder):
    data, task = build("tgn", 8, task_class=QuietLinks)
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_last=True, save_top_k=1)
    strategy = SvenStrategy(partition="interval", micro_batches=2, timeout=timedelta(seconds=20))
    runner, resume = trainer(folder, strategy, [keep], max_epochs=4)
    runner.fit(task, datamodule=data, ckpt_path=resume)
    return runner.global_step


def pipetgl(folder, **options):
    data, task = build("tgn", 8, task_class=QuietLinks)
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_last=True, save_top_k=1)
    runner, resume = trainer(folder, PipeTGLStrategy(timeout=timedelta(seconds=20), **options), [keep], max_epochs=4)
    runner.fit(task, datamodule=data, ckpt_path=resume)
    return runner.global_step


def disttgl(folder):
    data, task = build("tgn", 8, task_class=QuietLinks)
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_last=True, save_top_k=1)
    strategy = DistTGLStrategy(epoch=RANKS, timeout=timedelta(seconds=20))
    runner, resume = trainer(folder, strategy, [keep], max_epochs=4)
    runner.fit(task, datamodule=data, ckpt_path=resume)
    return runner.global_step


def shards(folder):
    return pipetgl(folder, store="sharded")


def cdfgnn(folder, callbacks=()):
    torch.manual_seed(1)
    data = FullGraphDataModule(generate_graph(60, 300, 3, 7, seed=2))
    keep = ModelCheckpoint(folder, every_n_epochs=1, save_last=True, save_top_k=1)
    strategy = CDFGNNStrategy(timeout=timedelta(seconds=20))
    runner, resume = trainer(folder, strategy, [keep, *callbacks], max_epochs=14)
    runner.fit(NodeClassification(hidden_dim=8, dropout=0.3), datamodule=data, ckpt_path=resume)
    return runner.global_step


def main(run, where, how, folder):
    if int(os.environ["RANK"]) == VICTIM and where != "nowhere":
        break_at(where, how)
    runs = {
        "sven": sven,
        "pipetgl": pipetgl,
        "copies": partial(pipetgl, groups=RANKS),
        "shards": shards,
        "disttgl": disttgl,
        "cdfgnn": cdfgnn,
    }
    cli.TGNNCommand = lambda words: print("finished", runs[run](folder))
    command(["fit", run])  # which says what is wrong
