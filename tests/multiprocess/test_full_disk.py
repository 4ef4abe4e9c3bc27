"""A checkpoint that does not fit on the first rank's disk ends all ranks with its words."""

import resource
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tgnn import CDFGNNStrategy, FullGraphDataModule, NodeClassification, SvenStrategy
from lightning_tgnn.checks import InvalidArgumentError
from tests.data.disks import files_below
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

RANKS = 2
PATIENCE = timedelta(seconds=30)


class OnSmallDisk(ModelCheckpoint):
    """Only the first rank's disk is small, and only for checkpoints: compiled loops are kept in files, too."""

    def on_train_epoch_end(self, trainer, module):
        with files_below(3_000 if trainer.global_rank == 0 else resource.RLIM_INFINITY):
            super().on_train_epoch_end(trainer, module)


def of_events(keep):
    return fit(*build("tgn", 8), SvenStrategy(timeout=PATIENCE), RANKS, callbacks=[keep], enable_checkpointing=True)


def of_a_graph(keep):
    runner = pl.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=CDFGNNStrategy(timeout=PATIENCE),
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[keep],
    )
    runner.fit(NodeClassification(hidden_dim=8), datamodule=FullGraphDataModule(synthetic={"num_nodes": 60}))


def refused(run, folder):
    """Return what a rank says."""
    keep = OnSmallDisk(folder, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
    with pytest.raises(InvalidArgumentError) as stopped:
        run(keep)
    return str(stopped.value)


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    folder = Path(folder)
    said = [refused(run, folder) for run in (of_events, of_a_graph)]
    kept = (folder / "last.ckpt").read_bytes(), sorted(path.name for path in folder.iterdir())
    whole = fit(*build("tgn", 8), SvenStrategy(timeout=PATIENCE), RANKS)["trainer"]
    whole.save_checkpoint(folder / "new.ckpt")
    return said, kept, torch.load(folder / "new.ckpt", weights_only=True)["global_step"]


def test_all_ranks_end_and_what_was_there_stays(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"of yesterday")
    answers = run_ranks(on_rank, RANKS, str(tmp_path), timeout=100)
    for said, kept, steps in answers:
        for words in said:
            assert words.startswith(f"{tmp_path / 'last.ckpt'} must be where it fits, got '[Errno 27] File too large")
            assert "; free space or choose another place" in words
        assert kept == (b"of yesterday", ["last.ckpt"])
        assert steps == 18
