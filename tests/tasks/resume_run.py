"""A training run that kills itself, for `test_resume`: resume_run.py FOLDER MODEL KILL_AT(0 = never) RESULT."""

import os
import signal
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_tgnn import LinkPrediction, TemporalDataModule


class Kill(Callback):
    """Ends the process at a step as a power cut would."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder, model, kill_at, result):
    pl.seed_everything(1, verbose=False)
    last = Path(folder) / "last.ckpt"
    resume = last if last.exists() else None
    if resume is not None:
        torch.rand(7)  # the random states have to come from the checkpoint
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(folder, every_n_train_steps=4, save_last=True),
            *([Kill(kill_at)] if kill_at else []),
        ],
    )
    data = TemporalDataModule(
        synthetic={"num_events": 1000, "num_sources": 40, "num_destinations": 50, "edge_feature_dim": 3},
        batch_size=50,
        num_neighbors=5,
        num_eval_negatives=3,
    )
    task = LinkPrediction(model, memory_dim=16, embedding_dim=16, time_dim=8, mailbox_size=3, dropout=0.2)
    trainer.fit(task, datamodule=data, ckpt_path=resume)
    state = {"weights": task.state_dict(), "state": task.state_store.state_dict(), "step": trainer.global_step}
    optimizer = trainer.optimizers[0].state_dict()["state"]
    torch.save({**state, "optimizer": optimizer, "loss": trainer.callback_metrics["train/loss"]}, result)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
