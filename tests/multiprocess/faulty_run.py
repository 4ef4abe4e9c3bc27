"""A run in which one rank dies, or fails, in the middle: faulty_run.py WHERE HOW FOLDER (started once per rank)."""

import os
import signal
import sys
from datetime import timedelta

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tgnn import LinkPrediction, SvenStrategy
from lightning_tgnn.comm import Exchange
from lightning_tgnn.strategies.gradient_sync import GradientSync
from tests.multiprocess.training import build

VICTIM = 1
CALLS_BEFORE = 12


def fail(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
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
            return call(*arguments, **options)

        return wrapper

    if where == "all_reduce":
        GradientSync._answer = counted(GradientSync._answer)
    else:
        Exchange.start = counted(Exchange.start, lambda *arguments: arguments[-1] == where)


def main(where, how, folder):
    torch.set_num_threads(1)
    if int(os.environ["RANK"]) == VICTIM and where != "nowhere":
        break_at(where, how)
    data, task = build("tgn", 8, task_class=LinkPrediction)
    resume = f"{folder}/last.ckpt"
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=3,
        strategy=SvenStrategy(partition="interval", micro_batches=2, timeout=timedelta(seconds=20)),
        max_epochs=4,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=2, save_last=True, save_top_k=1)],
    )
    trainer.fit(task, datamodule=data, ckpt_path=resume if os.path.exists(resume) else None)
    print("finished", trainer.global_step)


if __name__ == "__main__":
    main(*sys.argv[1:])
