"""A run of two spawned ranks that Ctrl-C ends."""

import os
import signal

import lightning.pytorch as pl

from lightning_tgnn import LinkPrediction, SvenStrategy, TemporalDataModule


class Interrupts(pl.Callback):
    def on_train_batch_start(self, trainer, task, batch, step):
        if step == 3 and trainer.global_rank == 0:
            os.killpg(0, signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    data = TemporalDataModule("synthetic", synthetic={"num_events": 2000}, batch_size=100, num_workers=0)
    task = LinkPrediction("jodie", memory_dim=8, embedding_dim=8, time_dim=4)
    pl.Trainer(
        strategy=SvenStrategy(start_method="spawn"), devices=2, accelerator="cpu", max_epochs=5, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, callbacks=[Interrupts()],
    ).fit(task, datamodule=data)  # fmt: skip
