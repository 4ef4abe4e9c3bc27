"""A script whose ranks write down where they listen."""

import json
import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import psutil
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import LinkPrediction, SvenStrategy, TemporalDataModule


class Listening(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_epoch_end(self, trainer, module):
        found = [one.laddr.ip for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN]
        Path(self.folder, f"{trainer.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    folder, method = sys.argv[1:]
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    data = TemporalDataModule("synthetic", synthetic={"num_events": 500}, batch_size=50, num_workers=0)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    task = LinkPrediction("tgn", memory_dim=8, embedding_dim=8, time_dim=8)
    trainer = pl.Trainer(
        strategy=SvenStrategy(start_method=method),
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        callbacks=[Listening(folder)],
        **quiet,
    )
    trainer.fit(task, datamodule=data)
