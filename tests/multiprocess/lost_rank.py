"""Two ranks, started by the first one, of which the second is lost: python lost_rank.py killed|stopped FILE."""

import os
import signal
import sys
from pathlib import Path

import lightning.pytorch as pl

from lightning_tgnn import LinkPrediction, SvenStrategy, TemporalDataModule


class Loses(pl.Callback):
    def on_train_batch_start(self, trainer, task, batch, step):
        if step != 3:
            return
        if trainer.global_rank == 1:
            Path(sys.argv[2]).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL if sys.argv[1] == "killed" else signal.SIGSTOP)
        elif sys.argv[1] == "stopped":
            raise ValueError("what went wrong")


if __name__ == "__main__":
    data = TemporalDataModule("synthetic", synthetic={"num_events": 2000}, batch_size=100, num_workers=0)
    task = LinkPrediction("jodie", memory_dim=8, embedding_dim=8, time_dim=4)
    pl.Trainer(
        strategy=SvenStrategy(), devices=2, accelerator="cpu", max_epochs=5, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, callbacks=[Loses()],
    ).fit(task, datamodule=data)  # fmt: skip
