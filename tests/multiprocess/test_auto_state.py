"""Where `strategy="auto-state"` puts node state, on two ranks of one host and of two."""

import logging

import pytest
import torch

from lightning_tgnn import AutoStateStrategy, DepCacheStrategy, SvenStrategy
from lightning_tgnn.algorithms.traffic.state_traffic import StateTraffic
from lightning_tgnn.state import ReplicatedStateStore, ShardedStateStore
from lightning_tgnn.strategies import auto_state
from lightning_tgnn.strategies.parts import Replicated, Sharded
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun, build, fit

RANKS = 2


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def trained(strategy, hosts=1):
    data, task = build("tgn", 24 // RANKS)
    options = {"devices": RANKS // hosts, "num_nodes": hosts}
    outcome = fit(data, task, strategy, RANKS, epochs=1, limit_val_batches=0, **options)
    return outcome["losses"], type(outcome["plan"].store), type(task.state_store)


def on_rank(rank, ranks):
    heard, logger = Heard(), logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(heard)
    found, count, free = {}, auto_state.state_traffic, auto_state.available_memory
    as_torchrun(rank, ranks)
    for staleness in (0, 1):
        found["depcache", staleness] = trained(DepCacheStrategy(staleness=staleness))
        found["sven", staleness] = trained(SvenStrategy(staleness=staleness))
        found["one host", staleness] = trained(AutoStateStrategy(staleness=staleness))
    auto_state.available_memory = lambda: 16
    found["no room"] = trained(AutoStateStrategy())
    auto_state.available_memory = free
    as_torchrun(rank, ranks, hosts=2)
    found["two hosts"] = trained(AutoStateStrategy(), hosts=2)
    auto_state.state_traffic = lambda *arguments: StateTraffic(sharded=1000.0, replicated=2000.0)
    found["two hosts, much to write"] = trained(AutoStateStrategy(), hosts=2)
    auto_state.state_traffic = count
    return found, [message for message in heard.messages if message.startswith("auto-state")]


@pytest.mark.timeout(120)
def test_the_choice_goes_by_memory_hosts_and_bytes():
    ranks = run_ranks(on_rank, RANKS, timeout=110)
    for found, _ in ranks:
        for staleness in (0, 1):
            losses, *kinds = found["one host", staleness]
            assert kinds == [Replicated, ReplicatedStateStore]
            assert torch.equal(losses, found["depcache", staleness][0])
            torch.testing.assert_close(losses, found["sven", staleness][0])
        for case in ("no room", "two hosts, much to write"):
            assert found[case][1:] == (Sharded, ShardedStateStore)
            torch.testing.assert_close(found[case][0], found["sven", 1][0])
        assert found["two hosts"][1] is Replicated
    said = ranks[0][1]
    assert len(said) == 5
    assert "as in depcache: 3.6 kB on every rank fits, and all ranks are on one host" in said[0]
    assert "as in sven: 3.6 kB on every rank would not fit into half of the 8 bytes that are free" in said[2]
    assert "kB a rank and step with all rows on each of 2 ranks" in said[3]
    assert "as in sven: 2 kB a rank and step with all rows on each of 2 ranks, 1 kB with rows cut over them" in said[4]
