"""SIGTERM at any moment, to one rank or to all: they end at the same step, with the checkpoint that was asked for."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_tgnn import CDFGNNStrategy, FullGraphDataModule, LinkPrediction, NodeClassification, SvenStrategy
from lightning_tgnn.compat import signals
from lightning_tgnn.data import generate_graph
from tests.multiprocess.ranks import free_port, run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

RANKS = 2
TRIALS = 4
TOLD = ([0], [1], [0, 1])
EPOCHS = 2
TIMEOUT = timedelta(seconds=20)


class Signal(Callback):
    """Sends the signal to its process: from outside of what that is doing in training, or in a validation."""

    def __init__(self, seconds=None):
        self.seconds, self.timer, self.place = seconds, None, None

    def on_train_start(self, trainer, module):
        if self.seconds is not None:
            self.timer = threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGTERM))
            self.timer.start()

    def on_exception(self, trainer, module, exception):
        if self.timer is not None:
            self.timer.cancel()  # another rank was first, and nobody takes the signal any more
        self.place = (trainer.global_step, trainer.validating)


class InValidation(Signal):
    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        if batch_idx == 1 and trainer.current_epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def prepare():
    pl.seed_everything(3, verbose=False)
    return build("tgn", 2, task_class=LinkPrediction, dropout=0.3, events=120)


def sven():
    return SvenStrategy(partition="range", micro_batches=2, timeout=TIMEOUT)


def trial(rank, folder, number):
    """Let some ranks be told to end; returns where they have, and the checkpoint of it."""
    generator = random.Random(f"sigterm {number}")  # the same on all ranks
    delays = [generator.uniform(0, 0.3) for _ in range(RANKS)]
    told = TOLD[number % len(TOLD)]
    in_validation = number >= TRIALS // 2
    told_so = InValidation() if in_validation else Signal(delays[rank])
    seen = told_so if rank in told else Signal()
    keep = ModelCheckpoint(folder, filename="ended", every_n_train_steps=10**6, save_on_exception=True)
    with pytest.raises(SIGTERMException):
        fit(*prepare(), sven(), RANKS, callbacks=[seen, keep], epochs=1000, enable_checkpointing=True)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert seen.place[1] or not in_validation
    return (*seen.place, keep._last_checkpoint_saved)


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    signals._EVALUATION_BATCHES = 2  # a validation here has few
    once = fit(*prepare(), sven(), ranks, epochs=EPOCHS)
    places = []
    for number in range(TRIALS):
        step, validating, path = trial(rank, f"{folder}/{number}", number)
        places.append((step, validating))
        if step < len(once["losses"]):
            dist.barrier()
            resumed = fit(*prepare(), sven(), ranks, epochs=EPOCHS, ckpt_path=path)
            assert torch.equal(resumed["losses"], once["losses"][step:]), (number, step, validating)
            assert all(torch.equal(resumed["weights"][name], value) for name, value in once["weights"].items())

    data = FullGraphDataModule(generate_graph(60, 300, 3, 7, seed=2))
    options = {"accelerator": "cpu", "devices": ranks, "logger": False, "enable_checkpointing": False}
    options |= {"enable_progress_bar": False, "enable_model_summary": False, "max_epochs": -1}
    told = Signal(0.2 if rank else None)
    trainer = pl.Trainer(strategy=CDFGNNStrategy(timeout=TIMEOUT), callbacks=[told], **options)
    with pytest.raises(SIGTERMException):
        trainer.fit(NodeClassification(hidden_dim=8), datamodule=data)
    return [*places, told.place]


@pytest.mark.timeout(180)
def test_all_ranks_end_at_the_same_step(tmp_path):
    first, *others = run_ranks(on_rank, RANKS, str(tmp_path), timeout=150)
    assert all(places == first for places in others)


def test_a_rank_that_would_join_a_first_one_that_has_gone_ends(tmp_path):
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NODE_RANK": "0", "LOCAL_RANK": "1"}
    with subprocess.Popen(  # as the first one starts it
        [sys.executable, "-m", "lightning_tgnn", "bench", "--source=synthetic", "--strategies=sven", "--devices=2"],
        cwd=tmp_path,
        env=os.environ | shared | {"WORLD_SIZE": "2"},
        stderr=subprocess.PIPE,
        text=True,
    ) as second:
        try:
            assert any("GLOBAL_RANK: 1" in line for line in second.stderr)
            time.sleep(1)  # it looks for the first one
            second.send_signal(signal.SIGTERM)
            said = second.communicate(timeout=20)[1]
        finally:
            second.kill()
    assert (second.returncode, said.strip()) == (-signal.SIGTERM, "")
