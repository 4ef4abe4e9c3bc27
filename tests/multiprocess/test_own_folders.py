"""Checkpoints in a folder that each host has to itself: said with the first one, and where one is to be read."""

import os
import warnings
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tgnn import SvenStrategy
from lightning_tgnn.checks import CheckpointError
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

SEEN = "is in a folder that rank 1 on"


def trained(ranks, place):
    """Return the trainer of a fit that saves after both epochs, and how often it says that a folder is not shared."""
    data, task = build("tgn", 6, events=80)
    keep = ModelCheckpoint(save_top_k=-1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"callbacks": [keep], "enable_checkpointing": True, "default_root_dir": place}
        trainer = fit(data, task, SvenStrategy(), ranks, epochs=2, **options)["trainer"]
    said = [str(one.message) for one in caught if SEEN in str(one.message)]
    return trainer, data, task, said


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    shared = trained(ranks, f"{folder}/shared")
    shared[0].test(shared[2], shared[1], ckpt_path="best", verbose=False)
    own = Path(folder, f"host-{rank}")
    own.mkdir()
    os.chdir(own)
    trainer, data, task, said = trained(ranks, ".")
    with pytest.raises(CheckpointError) as error:
        trainer.test(task, data, ckpt_path="best", verbose=False)
    return shared[3], said, str(error.value)


def test_a_folder_that_hosts_do_not_share_is_said_at_the_first_checkpoint(tmp_path):
    (shared, said, error), *others = run_ranks(on_rank, 2, str(tmp_path))
    assert shared == []
    assert len(said) == 1
    assert "does not see: a test after the fit" in said[0]
    assert "give ModelCheckpoint(dirpath=...) or default_root_dir on a disk that all share" in said[0]
    assert "must be a checkpoint that all ranks find, got 'none on rank 1 on " in error
    assert "keep checkpoints and runs in a folder that all machines see" in error
    assert others == [([], [], error)]
