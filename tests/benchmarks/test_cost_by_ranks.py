"""What a rank does for the sake of all ranks, by their number: processor time without processes or messages."""

import time
from types import SimpleNamespace

import pytest
import torch

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.algorithms.partitions.reflexbicut import reflexbicut
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.algorithms.schedules.data_parallel import DESTINATION, TIME
from lightning_tgnn.state.nodes.update_exchange import UpdateRouter
from lightning_tgnn.types import Pass, RankLayout, StateSpec

RANKS = (1, 2, 4, 8, 16, 32, 64)
BATCH = 600
STREAM = {"num_events": 400_000, "num_sources": 20_000, "num_destinations": 5_000, "seed": 0}


def milliseconds(work, repeats=5):
    """Return the least processor time of some calls, on one thread."""
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return 1000 * min(found)


@pytest.fixture(scope="module")
def data():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = TemporalDataModule("synthetic", batch_size=BATCH, synthetic=STREAM, val_ratio=0.05, test_ratio=0.05)
    made.num_workers = made.prefetch_batches = 0
    made.setup()
    yield made
    torch.set_num_threads(threads)


def loader(data, ranks, roots, *, split=TIME, routed=True):
    """Return the loader of a rank in the middle, of sharded node state of width 100."""
    data.sampled_roots = roots
    nodes, rank = data.store.num_nodes, ranks // 2
    spec = StateSpec(nodes, 100, 200, 1, roots != "events")
    sharing = SimpleNamespace(rank=rank, ranks=ranks)
    codec = SimpleNamespace(spec=spec, edge_features=None)
    router = UpdateRouter(torch.arange(nodes) % ranks, sharing, codec, makes_mails=True)
    own = data.train_dataloader()
    return own.follow(DataParallel(split), RankLayout.of(ranks), rank, router if routed and ranks > 1 else None)


def schedule(data, ranks):
    layout, over = RankLayout.of(ranks), Pass(len(data.split.train), BATCH, 0)
    turns = DataParallel().turns(layout, ranks // 2, over)
    return milliseconds(lambda: turns[3])


def batch(data, ranks, roots, sampler="most_recent", **options):
    data.neighbor_sampler = sampler
    own = loader(data, ranks, roots, **options)
    turns = own.turns(0)
    own.batch(turns[3])
    return milliseconds(lambda: own.batch(turns[3]))


def presampled(data, ranks):
    data.presample, data.neighbor_sampler = "epoch", "most_recent"
    try:
        own = loader(data, ranks, "all", routed=False)
        first = milliseconds(lambda: next(iter(own)), 1) - milliseconds(lambda: own.batch(own.turns(0)[0]))
    finally:
        data.presample = "off"
    return first / len(own)


def demand(data, ranks, roots):
    data.sampled_roots, data.neighbor_sampler = roots, "most_recent"
    return milliseconds(lambda: data.demand(ranks), 1)


def partition(data, ranks):
    data.sampled_roots = "all"
    fitted, _ = data.demand(ranks)
    return milliseconds(lambda: reflexbicut(fitted.demand, reliability=fitted.reliability), 1)


STEPS = {
    "a turn of the schedule": schedule,
    "a batch of TGN": lambda data, ranks: batch(data, ranks, "all", routed=False),
    "with where rows go": lambda data, ranks: batch(data, ranks, "all"),
    "split by destination": lambda data, ranks: batch(data, ranks, "all", split=DESTINATION),
    "a batch of APAN, plan included": lambda data, ranks: batch(data, ranks, "events"),
    "the same, uniform": lambda data, ranks: batch(data, ranks, "events", "uniform"),
    "an epoch ahead, per step": presampled,
    "demand, once, on rank 0": lambda data, ranks: demand(data, ranks, "all"),
    "demand of APAN": lambda data, ranks: demand(data, ranks, "events"),
    "the partition, once, on rank 0": partition,
}


@pytest.mark.parametrize("step", STEPS)
def test_cost_of_a_rank(data, step):
    found = [STEPS[step](data, ranks) for ranks in RANKS]
    print(f"\n| {step} | " + " | ".join(f"{cost:.3g}" for cost in found) + " |")
    assert min(found) > 0
