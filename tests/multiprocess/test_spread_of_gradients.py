"""The spread of the ranks' gradients where a Trainer accumulates gradients: of each batch alone."""

import pytest
import torch

from lightning_tgnn import DepCommStrategy, LinkPrediction, ParallelismMonitor, SvenStrategy
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

STRATEGIES = {
    "depcomm": lambda: DepCommStrategy(partition="interval"),
    "sven": lambda: SvenStrategy(partition="interval"),
}


class Fixed(LinkPrediction):
    """A task whose weights stay as they are."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Kept(ParallelismMonitor):
    """Keeps the spread of every step."""

    def __init__(self):
        super().__init__(every_n_steps=1)
        self.spreads = []

    def log_latest(self, trainer):
        self.spreads.append(self.latest.get("parallelism/gradient_variance"))


def spreads(rank, ranks):
    """Return the spreads of an epoch in which no weight changes, by strategy and batches that are accumulated."""
    as_torchrun(rank, ranks)
    found = {}
    for name, make in STRATEGIES.items():
        for batches in (1, 3):
            kept = Kept()
            task = build("tgn", 12, Fixed)
            fit(*task, make(), ranks, callbacks=[kept], epochs=1, accumulate_grad_batches=batches, limit_val_batches=0)
            found[name, batches] = kept.spreads
    return found


def test_gradients_of_batches_before_are_not_counted_once_more():
    found = run_ranks(spreads, 2)[0]
    for name in STRATEGIES:
        alone = [spread for spread in found[name, 1] if spread is not None]
        assert len(alone) > 3
        assert max(alone) > 0
        assert [spread for spread in found[name, 3] if spread is not None] == pytest.approx(alone, rel=1e-3)
