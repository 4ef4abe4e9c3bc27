"""What happens to a pipeline when one of its ranks dies: the others end and name it, nothing stays, and it resumes."""

import lightning.pytorch as pl
import pytest
import torch

from lightning_tgnn import PipeTGLStrategy, SvenStrategy
from lightning_tgnn.checks import InvalidArgumentError
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.shared_files import shared_files, stays_behind
from tests.multiprocess.test_faults import break_one, finish, start
from tests.multiprocess.training import as_torchrun, build, fit

STAGES = {
    "pipetgl": [
        ("receive word of written rows", "kill"),
        ("send word of written rows", "kill"),
        ("send rows passed on", "kill"),
        ("send gradients", "kill"),
        ("receive gradients", "raise"),
        ("loss", "nan"),
    ],
}


@pytest.mark.timeout(280)
@pytest.mark.parametrize("run", STAGES)
def test_the_others_end_and_name_the_rank_and_the_last_checkpoint_resumes(run, tmp_path):
    before = shared_files()
    for where, how in STAGES[run]:
        folder = tmp_path / where.replace(" ", "-") / how
        break_one(run, where, how, folder)
        assert not stays_behind(before)
    codes, outputs = finish(start(run, "nowhere", "", folder), timeout=60)
    assert codes == (0, 0, 0), outputs
    assert all("finished 12" in output for output in outputs), outputs  # 17 batches of an epoch in 6 turns


@pytest.mark.timeout(200)
def test_the_same_where_every_rank_has_a_copy_of_node_state(tmp_path):
    for where in ("mean of the copies' gradients", "gather"):
        folder = tmp_path / where.replace(" ", "-")
        break_one("copies", where, "kill", folder)
    codes, outputs = finish(start("copies", "nowhere", "", folder), timeout=60)
    assert codes == (0, 0, 0), outputs
    assert all("finished 34" in output for output in outputs), outputs  # 17 batches of an epoch on each copy


def alone(rank, ranks):
    """Train on all ranks, then test on each alone: its store would wait for the others."""
    as_torchrun(rank, ranks)
    for strategy in (PipeTGLStrategy(), SvenStrategy()):
        data, task = build("tgn", 8)
        fit(data, task, strategy, ranks, epochs=1)
        as_torchrun(0, 1)
        trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False)
        with pytest.raises(
            InvalidArgumentError, match=rf"devices=.* must be the {ranks} of the node state, got '1 rank"
        ):
            trainer.test(task, data, verbose=False)
        as_torchrun(rank, ranks)
    return True


def cut_short(rank, ranks):
    """Train, and train again after a run that ends in the middle of an epoch, by the same process groups."""
    as_torchrun(rank, ranks)
    for options in ({}, {"pass_on": True}):
        once = fit(*build("tgn", 8), PipeTGLStrategy(**options), ranks, epochs=1)
        data, task = build("tgn", 8)
        settings = {"accelerator": "cpu", "devices": ranks, "logger": False, "enable_checkpointing": False}
        settings |= {"limit_train_batches": 2, "max_epochs": 1, "num_sanity_val_steps": 0, "limit_val_batches": 0}
        pl.Trainer(strategy=PipeTGLStrategy(**options), **settings, enable_progress_bar=False).fit(task, data)
        again = fit(*build("tgn", 8), PipeTGLStrategy(**options), ranks, epochs=1)
        assert torch.equal(again["losses"], once["losses"]), options
    return True


def test_nothing_of_a_run_that_ends_early_reaches_the_next():
    assert run_ranks(cut_short, 2) == [True, True]


def test_state_that_ranks_share_is_not_tested_by_one_of_them():
    assert run_ranks(alone, 2) == [True, True]


def test_several_machines_are_refused_before_a_rank_waits_for_them():
    requirement = r"groups must be so many that the ranks of each are on one machine.*got 'ranks of a group on 2 mach"
    settings = {"accelerator": "cpu", "num_nodes": 2, "logger": False}
    with pytest.raises(InvalidArgumentError, match=requirement):
        pl.Trainer(strategy="pipetgl", devices=1, **settings)
    with pytest.raises(InvalidArgumentError, match="groups must be a divisor of the 2 ranks, got 4; let groups divide"):
        pl.Trainer(strategy=PipeTGLStrategy(groups=4), devices=1, **settings)
    pl.Trainer(strategy=PipeTGLStrategy(groups=2), devices=1, **settings)
