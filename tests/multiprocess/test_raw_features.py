"""Features that are standardized as their rows are read, on two ranks of every strategy that keeps node state."""

import pytest
import torch

from lightning_tgnn import (
    DepCacheStrategy,
    DistTGLStrategy,
    EventStore,
    PipeTGLStrategy,
    SvenStrategy,
    TemporalDataModule,
)
from lightning_tgnn.strategies import DepCommStrategy
from lightning_tgnn.types import StandardizedRows
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

RANKS = 2
STRATEGIES = {
    "depcache": DepCacheStrategy,
    "depcomm": DepCommStrategy,
    "sven": SvenStrategy,
    "pipetgl": PipeTGLStrategy,
    "disttgl": lambda: DistTGLStrategy(memory=2),
    "disttgl, sharded": lambda: DistTGLStrategy(minibatch=2, store="sharded"),
}


def on_rank(rank, ranks, folder):
    as_torchrun(rank, ranks)
    plain, _ = build("tgn", 12)
    raw = plain.store.edge_features * 1000 + 300
    given = EventStore.from_arrays(plain.store.src, plain.store.dst, plain.store.time, raw)
    found = {}
    for name, strategy in STRATEGIES.items():
        for source in (given, folder):
            _, task = build("tgn", 12)
            reading = {"num_neighbors": 3, "num_eval_negatives": 3, "num_workers": 0}
            data = TemporalDataModule(source, batch_size=12, **reading)
            losses = fit(data, task, strategy(), ranks, epochs=1, limit_val_batches=0)["losses"]
            found[name, source is folder] = losses, isinstance(data.store.edge_features, StandardizedRows)
    return found


@pytest.mark.timeout(180)
def test_a_saved_stream_trains_like_one_in_memory(tmp_path):
    data, _ = build("tgn", 12)
    raw = data.store.edge_features * 1000 + 300
    EventStore.from_arrays(data.store.src, data.store.dst, data.store.time, raw).save(tmp_path / "store")
    for found in run_ranks(on_rank, RANKS, tmp_path / "store", timeout=170):
        for name in STRATEGIES:
            (held, in_memory), (read, mapped) = found[name, False], found[name, True]
            assert not in_memory, name
            assert mapped, name
            assert torch.equal(held, read), name
