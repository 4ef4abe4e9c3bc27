"""Ranks whose run is refused leave the checkpoint with which they would have gone on."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from lightning_tgnn import SvenStrategy
from lightning_tgnn.checks import CheckpointError
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

STEPS = 3


def refuse(rank, ranks, folder):
    as_torchrun(rank, ranks)
    options = {"epochs": 1, "enable_checkpointing": True, "limit_val_batches": 0}
    every = ModelCheckpoint(folder, filename="kept", every_n_train_steps=STEPS)
    fit(*build("tgn", 8), SvenStrategy(partition="interval"), ranks, callbacks=[every], max_steps=STEPS, **options)
    path = f"{folder}/kept.ckpt"
    saving = [
        OnExceptionCheckpoint(folder, filename="kept"),
        ModelCheckpoint(folder, filename="kept", save_on_exception=True, enable_version_counter=False),
    ]
    strategy = SvenStrategy(partition="interval")
    with pytest.raises(CheckpointError, match="batch_size times the 2 ranks must be 16 to resume"):
        fit(*build("tgn", 4), strategy, ranks, callbacks=saving, ckpt_path=path, **options)
    return [{"on_exception", "teardown", "_monitor_candidates"} & vars(callback).keys() for callback in saving]


def test_a_resume_that_all_ranks_refuse_does_not_write_over_the_checkpoint(tmp_path):
    assert run_ranks(refuse, 2, str(tmp_path)) == [[set(), set()]] * 2
    assert torch.load(tmp_path / "kept.ckpt", weights_only=True)["global_step"] == STEPS
    assert [path.name for path in tmp_path.iterdir()] == ["kept.ckpt"]
