"""Training steps of TPNet, ours against a plain writing of the public rule, in turns on one machine.

The public code keeps a table of all rows and multiplies every one of them in every batch. Ours has a time for each row
and decays the rows that a batch reads. `make bench` prints both rates and their ratio round by round, for the nodes of
CollegeMsg and for the same stream among many more nodes.
"""

import os
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest
import torch

from lightning_tgnn import EventStore, LinkPrediction, TemporalDataModule
from lightning_tgnn.algorithms.streams.decayed_sums import factors
from lightning_tgnn.models import TPNet
from lightning_tgnn.types import StateSpec
from tests.benchmarks.rounds import ROOT

SOURCE = Path(os.environ.get("LIGHTNING_TGNN_DATA", ROOT / "../shared/data")) / "CollegeMsg.txt.gz"
STEPS, ROUNDS, WIDTH, DECAY = 6, 5, 100, 1e-7


class PlainTPNet(TPNet):
    """TPNet with a table of all rows, [N, k + 1, d], which all decay to the latest time of each batch."""

    def __init__(self, info, **options):
        super().__init__(info, **options)
        self.register_buffer(
            "table", torch.zeros(info.num_nodes, self.walk_length + 1, self.walk_dim), persistent=False
        )
        self.table[:, 0] = self.first_rows(torch.arange(info.num_nodes))
        self.spec = StateSpec.without_mails(info.num_nodes)
        self.empty()

    def empty(self):
        self.table[:, 1:] = 0
        self.now = torch.zeros((), dtype=torch.float64)

    def rows_at(self, nodes, updated, time):
        grown = factors((time - self.now).clamp(min=0).view(1), self.decays)
        return self.table[nodes] * grown.view(1, -1, 1)

    @torch.no_grad()
    def make_mails(self, updated, batch):
        latest = batch.time.max()
        self.table *= factors((latest - self.now).view(1), self.decays).view(1, -1, 1)
        self.now = latest
        ends, others = torch.cat([batch.src, batch.dst]), torch.cat([batch.dst, batch.src])
        sent = self.table[others, :-1] * torch.exp(-DECAY * (latest - batch.time)).repeat(2).float().view(-1, 1, 1)
        self.table[:, 1:].index_add_(0, ends, sent)
        return super(TPNet, self).make_mails(updated, batch)


def player(kind, store):
    data = TemporalDataModule(store, batch_size=200, num_neighbors=20, num_workers=0)
    task = LinkPrediction(lambda info: kind(info, decay=DECAY, walk_dim=WIDTH, dropout=0.0), lr=1e-4)
    data.setup()
    torch.manual_seed(0)
    task.build(data.info)
    data.sampled_roots = "all"
    batches = list(zip(range(STEPS), data.train_dataloader(), strict=False))
    optimizer = torch.optim.Adam(task.parameters(), lr=1e-4)

    def play():
        task.state_store.reset()
        if kind is PlainTPNet:
            task.model.empty()
        start = perf_counter()
        for _, batch in batches:
            task.forget_batch()
            positive, negatives = task.run_stages(batch)
            optimizer.zero_grad()
            loss = task.loss(positive, negatives)
            loss.backward()
            optimizer.step()
        return STEPS * 200 / (perf_counter() - start), float(loss.detach())

    return play


@pytest.mark.skipif(not SOURCE.exists(), reason=f"needs {SOURCE}")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("num_nodes", [None, 300_000])
def test_rows_that_decay_when_they_are_read(benchmark, num_nodes):
    store = TemporalDataModule(SOURCE).store
    if num_nodes is not None:
        store = EventStore.from_arrays(store.src, store.dst, store.time, num_nodes=num_nodes)
    players = {"ours": player(TPNet, store), "all rows": player(PlainTPNet, store)}
    losses = [play()[1] for play in players.values()]  # a round to warm up
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)  # they compute the same
    rates = []
    benchmark.pedantic(
        lambda: rates.append({name: play()[0] for name, play in players.items()}), rounds=ROUNDS, iterations=1
    )
    ratios = [one["ours"] / one["all rows"] for one in rates]
    print(f"\nTPNet, CollegeMsg, {store.num_nodes:,} nodes, batch 200")
    for name in players:
        print(f"  {name:8} {median(one[name] for one in rates):8,.0f} events/s")
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"  ours is {median(ratios):.2f} times as fast (rounds {shown})")
    assert all(rate > 0 for one in rates for rate in one.values())
