"""A run in which one rank dies, or fails, in the middle; each rank calls `main`."""

import math
import os
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tgnn import (
    BLADStrategy,
    CDFGNNStrategy,
    DistTGLStrategy,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    PipeTGLStrategy,
    SnapshotPartitionStrategy,
    SvenStrategy,
    VertexPartitionStrategy,
    cli,
)
from lightning_tgnn.__main__ import main as command
from lightning_tgnn.comm import Exchange, HandOver, Messages, failure
from lightning_tgnn.data import generate_graph
from lightning_tgnn.files.checkpoint_folder import META
from lightning_tgnn.state import ServedStateStore
from lightning_tgnn.strategies.parts.collective_checkpoints import PartWriter
from lightning_tgnn.strategies.parts.gradient_mean import GradientSync
from lightning_tgnn.strategies.parts.group_pipeline import _PipelinedTurn
from lightning_tgnn.tasks import SnapshotLinkPrediction
from tests.multiprocess import snapshots
from tests.multiprocess.training import QuietLinks, build

RANKS = 3
PAIRS = ("blad",)
"""Runs on two ranks, either of which may be the victim."""
CALLS_AFTER_CHECKPOINT = 3


def fail(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "nan":
        return
    raise ValueError("this rank is unwell")


def break_at(where, how, folder):
    """Let the victim fail when it has entered ``where`` a few times after the first checkpoint."""
    left = [CALLS_AFTER_CHECKPOINT]
    checkpoint = f"{folder}/last.ckpt"

    def counted(call, applies=lambda *arguments: True):
        def wrapper(*arguments, **options):
            if os.path.exists(checkpoint) and applies(*arguments):
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
    elif where.startswith("hand-over "):
        method = where.removeprefix("hand-over ")
        setattr(HandOver, method, counted(getattr(HandOver, method)))
    elif where == "part":
        PartWriter.write_data = counted(PartWriter.write_data, leaves_half)
    elif where == "meta.pt":
        Path.replace = counted(Path.replace, lambda path, _: path.name == META)
    elif where in ("go_forward", "_back"):
        setattr(_PipelinedTurn, where, counted(getattr(_PipelinedTurn, where)))
    elif where == "loss":
        LinkPrediction.loss = counted(LinkPrediction.loss)
        SnapshotLinkPrediction.loss = counted(SnapshotLinkPrediction.loss)
    else:
        Exchange.start = counted(Exchange.start, lambda *arguments: arguments[-1] == where)


def leaves_half(writer, plan, planner):
    """Have the beginning of a part on the disk, as whoever is killed while writing it has."""
    (writer.path / f"__{os.environ['RANK']}_0.distcp").write_bytes(b"PK and no more")
    return True


def serving(left, store, nodes):
    """Kill the memory process, in place of the victim, when the time has come."""
    left[0] -= 1
    if not left[0]:
        os.kill(store._service.pid, signal.SIGKILL)
    return False


def trainer(folder, strategy, callbacks, **options):
    settings = {"accelerator": "cpu", "devices": RANKS, "logger": False, "enable_progress_bar": False}
    settings |= {"enable_model_summary": False, "callbacks": callbacks}
    runner = pl.Trainer(strategy=strategy, **settings | options)
    resume = f"{folder}/last.ckpt"
    return runner, resume if os.path.exists(resume) else None


def sven(folder, num_workers=0, **options):
    data, task = build("tgn", 8, task_class=QuietLinks)
    data.num_workers = num_workers
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_last=True, save_top_k=1)
    strategy = SvenStrategy(partition="interval", micro_batches=2, timeout=timedelta(seconds=20), **options)
    runner, resume = trainer(folder, strategy, [keep], max_epochs=2)
    runner.fit(task, datamodule=data, ckpt_path=resume)
    return runner.global_step


def announced(folder):
    return sven(folder, num_workers=1)


def pipetgl(folder, **options):
    data, task = build("tgn", 8, task_class=QuietLinks)
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_last=True, save_top_k=1)
    runner, resume = trainer(folder, PipeTGLStrategy(timeout=timedelta(seconds=20), **options), [keep], max_epochs=2)
    runner.fit(task, datamodule=data, ckpt_path=resume)
    return runner.global_step


def disttgl(folder):
    data, task = build("tgn", 8, task_class=QuietLinks)
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_last=True, save_top_k=1)
    strategy = DistTGLStrategy(epoch=RANKS, timeout=timedelta(seconds=20))
    runner, resume = trainer(folder, strategy, [keep], max_epochs=2)
    runner.fit(task, datamodule=data, ckpt_path=resume)
    return runner.global_step


def cdfgnn(folder, callbacks=()):
    torch.manual_seed(1)
    data = FullGraphDataModule(generate_graph(60, 300, 3, 7, seed=2))
    keep = ModelCheckpoint(folder, every_n_epochs=1, save_last=True, save_top_k=1)
    strategy = CDFGNNStrategy(timeout=timedelta(seconds=20))
    runner, resume = trainer(folder, strategy, [keep, *callbacks], max_epochs=6)
    runner.fit(NodeClassification(hidden_dim=8, dropout=0.3), datamodule=data, ckpt_path=resume)
    return runner.global_step


def blad(folder, strategy):
    data, task = snapshots.build("tgcn", 2, task_class=snapshots.AdamSnapshots)
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_last=True, save_top_k=1)
    settings = {"max_epochs": 5, "devices": int(os.environ["WORLD_SIZE"])}
    runner, resume = trainer(folder, strategy(timeout=timedelta(seconds=20)), [keep], **settings)
    runner.fit(task, datamodule=data, ckpt_path=resume)
    return runner.global_step


RUNS = {
    "sven": sven,
    "announced": announced,
    "parts": partial(sven, state_dict_type="sharded"),
    "pipetgl": partial(pipetgl, pass_on=True),
    "copies": partial(pipetgl, groups=RANKS),
    "disttgl": disttgl,
    "cdfgnn": cdfgnn,
    # Loads that are measured may leave each process whole groups, and nothing to hand over.
    "blad": partial(blad, strategy=partial(BLADStrategy, processes_per_device=2, balance="even")),
    "snapshots": partial(blad, strategy=SnapshotPartitionStrategy),
    "vertices": partial(blad, strategy=VertexPartitionStrategy),
}


def main(run, where, how, folder):
    # All ranks are here: who is gone shows sooner than on machines far apart.
    failure._ROLL_CALL_SECONDS, failure._ANSWER_SECONDS = 2.0, 0.25
    if os.environ["RANK"] == os.environ["VICTIM"] and where != "nowhere":
        break_at(where, how, folder)
    cli.TGNNCommand = lambda words: print("finished", RUNS[run](folder))
    command(["fit", run])  # which says what is wrong
