"""Epochs that are drawn ahead by one loader for several fits: their files go with the fit that has drawn them."""

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import LinkPrediction, SvenStrategy, TemporalDataModule
from tests.data.example_streams import random_store

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class SameLoaders(TemporalDataModule):
    """Hands out the same loaders each time."""

    def train_dataloader(self):
        self.own = getattr(self, "own", None) or (super().train_dataloader(), super().val_dataloader())
        return self.own[0]

    def val_dataloader(self):
        self.train_dataloader()
        return self.own[1]


class Files(Callback):
    """Counts the files at the end of every epoch, and fails in one if it is told to."""

    def __init__(self, folder, fails_in=None):
        self.folder, self.fails_in, self.seen = folder, fails_in, []

    def on_train_epoch_end(self, trainer, module):
        self.seen.append(len(list(self.folder.glob("*/*.npy"))))
        if trainer.current_epoch == self.fails_in:
            raise ValueError("this callback is unwell")


@pytest.mark.usefixtures("in_own_group")
def test_they_go_with_the_fit_that_has_drawn_them(tmp_path):
    data = SameLoaders(
        random_store(190, 30, seed=5), batch_size=20, num_neighbors=3, presample="epoch", presample_dir=tmp_path
    )
    kept = []
    task = LinkPrediction("tgn", memory_dim=4, embedding_dim=4, time_dim=4)
    for fails_in in (None, 1, None):
        files = Files(tmp_path, fails_in)
        settings = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "callbacks": [files], **QUIET}
        trainer = pl.Trainer(strategy=SvenStrategy(), **settings)
        kept.append(trainer)  # with all that Lightning keeps after a fit
        if fails_in is None:
            trainer.fit(task, datamodule=data)
        else:
            with pytest.raises(ValueError, match="unwell"):
                trainer.fit(task, datamodule=data)
        assert files.seen == [6, 6]  # negatives, neighbours and ends, of training and of validation
        assert not list(tmp_path.glob("*/*.npy"))
    assert len(list(data.own[0])) == len(data.own[0])  # which still draws
