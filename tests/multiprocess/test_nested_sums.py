"""A run that begins within another one, whose compressed sum of gradients is still on its way."""

import threading
import time
from unittest import mock

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from lightning_tgnn import SvenStrategy
from lightning_tgnn.strategies.parts.gradient_pieces import SumOfPieces
from lightning_tgnn.strategies.parts.updates import MeanUpdates
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

RANKS = 2
WAIT = 20


def train(callbacks=()):
    strategy = SvenStrategy(partition="range", micro_batches=1, gradient_compression="int8")
    return fit(*build("tgn", 12), strategy, RANKS, callbacks=callbacks, accumulate_grad_batches=2)


class Nested(Callback):
    """Begins a run between two batches of a step, when the sum of the step before is late on one rank."""

    def __init__(self, rank):
        self.rank, self.found, self.was_late = rank, None, False
        self.begins = threading.Event()

    def on_train_batch_start(self, trainer, module, batch, index):
        if index == 2:  # the first of the second step sends what the first step has
            self.patched = mock.patch.object(SumOfPieces, "_sum", self.late(SumOfPieces._sum))
            self.patched.start()

    def late(self, form):
        def summed(of, values):
            if self.rank == 1 and not self.begins.is_set():
                self.was_late = self.begins.wait(WAIT)
                time.sleep(0.5)  # in which the run within would send its own
            return form(of, values)

        return summed

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if index != 2 or self.found is not None:
            return
        attach = MeanUpdates.attach

        def begins(*arguments):
            self.begins.set()
            attach(*arguments)

        with mock.patch.object(MeanUpdates, "attach", begins), torch.random.fork_rng():
            self.found = train()
        self.patched.stop()


def nested(rank, ranks):
    as_torchrun(rank, ranks)
    once, inside = train(), Nested(rank)
    around = train([inside])
    assert inside.was_late == (rank == 1)
    for found in (inside.found, around):
        assert torch.equal(found["losses"], once["losses"])
        assert all(torch.equal(value, once["weights"][name]) for name, value in found["weights"].items())
    return True


@pytest.mark.timeout(120)
def test_a_run_within_another_waits_for_the_sum_that_is_on_its_way():
    assert all(run_ranks(nested, RANKS, timeout=100))
