"""SLURM's signal before it ends a job: a checkpoint between two steps, from which the requeued job goes on exactly."""

import os
import signal
import warnings
from datetime import timedelta
from unittest import mock

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import LinkPrediction, PipeTGLStrategy, SvenStrategy
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import build, fit

EPOCHS = 2
TIMEOUT = timedelta(seconds=20)
STRATEGIES = {"sven": lambda: SvenStrategy(partition="range", timeout=TIMEOUT), "pipetgl": PipeTGLStrategy}


def slurm_environment(folder, rank=0, ranks=1, **more):
    """Return what a task of a job has, with an ``scontrol`` that writes down what it is asked for."""
    control = folder / "bin" / "scontrol"
    control.parent.mkdir(exist_ok=True)
    control.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n')
    control.chmod(0o755)
    job = {"JOB_ID": 4711, "JOB_NAME": "train", "NTASKS": ranks, "NTASKS_PER_NODE": ranks, "PROCID": rank}
    job |= {"LOCALID": rank, "NODEID": 0, "NNODES": 1, "NODELIST": "localhost"}
    named = {f"SLURM_{name}": str(value) for name, value in (job | more).items()}
    return named | {"PATH": f"{control.parent}{os.pathsep}{os.environ['PATH']}"}


class Signal(Callback):
    """Sends the signal to its process, in the middle of a step or of a validation."""

    def __init__(self, place, at):
        self.at = at
        setattr(self, place, self._send)

    def _send(self, trainer, *_):
        if trainer.fit_loop.total_batch_idx == self.at:
            self.at = None
            os.kill(os.getpid(), signal.SIGUSR1)


def train(folder, strategy="auto", ranks=1, callbacks=()):
    """Return how a run ends, which goes on with what it finds in the folder."""
    data, task = build("tgn", 8, task_class=LinkPrediction, dropout=0.3, events=120)
    pl.seed_everything(3, verbose=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the checkpoint was saved within")
        return fit(data, task, strategy, ranks, callbacks=callbacks, epochs=EPOCHS, default_root_dir=str(folder))


def check_goes_on(whole, ended, resumed):
    losses = whole["losses"]
    assert torch.equal(ended["losses"], losses)
    assert torch.equal(resumed["losses"], losses[len(losses) - len(resumed["losses"]) :])
    for run in (ended, resumed):
        assert all(torch.equal(run["weights"][name], value) for name, value in whole["weights"].items())
        assert run["val"] == whole["val"]


@pytest.fixture
def whole(tmp_path):
    with mock.patch.dict(os.environ, slurm_environment(tmp_path)):
        yield train(tmp_path / "whole")


def test_a_job_of_one_process_is_requeued_between_two_steps(tmp_path, whole):
    steps = len(whole["losses"])
    last = steps // EPOCHS - 1  # of the first epoch
    late = [("on_before_backward", steps - 1), ("on_validation_batch_start", steps - 1)]  # there is no next batch
    places = [("on_before_backward", 0), ("on_before_zero_grad", 4), ("on_validation_batch_start", last), *late]
    for place, at in places:
        folder = tmp_path / f"{place}{at}"
        ended = train(folder, callbacks=[Signal(place, at)])
        assert [path.name for path in folder.glob("hpc*")] == ["hpc_ckpt_1.ckpt"]
        if (place, at) not in late:  # which leave nothing to train
            resumed = train(folder)
            assert len(resumed["losses"]) == steps - at - 1
            check_goes_on(whole, ended, resumed)
    assert (tmp_path / "asked").read_text() == "requeue 4711\n" * len(places)


def on_rank(rank, ranks, folder):
    os.environ.update(slurm_environment(folder, rank, ranks, ARRAY_JOB_ID=4712, ARRAY_TASK_ID=5))
    for name, strategy in STRATEGIES.items():
        whole = train(folder / "whole", strategy(), ranks)
        told = [Signal("on_before_backward", 2 + 2 * rank)]  # the first rank first, the other when all have saved
        ended = train(folder / name, strategy(), ranks, told)
        assert [path.name for path in (folder / name).glob("hpc*")] == ["hpc_ckpt_1.ckpt"]
        resumed = train(folder / name, strategy(), ranks)
        assert 0 < len(resumed["losses"]) < len(whole["losses"])
        check_goes_on(whole, ended, resumed)
        last = len(whole["losses"]) - 1
        train(folder / f"{name}, late", strategy(), ranks, [Signal("on_before_backward", last)] * rank)
        assert [path.name for path in (folder / f"{name}, late").glob("hpc*")] == ["hpc_ckpt_1.ckpt"]


@pytest.mark.timeout(180)
def test_all_ranks_of_a_job_save_at_one_step(tmp_path):
    run_ranks(on_rank, 2, tmp_path, timeout=150)
    assert (tmp_path / "asked").read_text() == "requeue 4712_5\n" * 2 * len(STRATEGIES)
