"""No circle of ranks that wait for each other's messages, as NCCL has them wait.

NCCL connects two ranks when the first of them sends to the other, and returns once that one receives; all ranks of a
group when they first meet in it. Later messages return at once, but each begins when the one before in its group has
arrived, sent or received. Gloo does none of this, so here first messages and meetings wait for the other side before
they go to gloo, and a thread for each group moves one message after the other. Groups that are asked for on the hosts
are of gloo anyway.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import signature
from unittest import mock

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from lightning_tgnn import (
    AutoStateStrategy,
    BLADStrategy,
    CDFGNNStrategy,
    DepCacheStrategy,
    DepCommStrategy,
    DistTGLStrategy,
    PipeTGLStrategy,
    SnapshotPartitionStrategy,
    SvenStrategy,
    VertexPartitionStrategy,
)
from lightning_tgnn.comm import groups
from tests.multiprocess import snapshots, test_cdfgnn, training
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import as_torchrun

PATIENCE = 60.0
MEETINGS = ("all_reduce", "all_to_all_single", "broadcast", "barrier")
EVENTS = {
    "sven": lambda: SvenStrategy(partition="interval"),
    "sven, int8": lambda: SvenStrategy(partition="range", micro_batches=2, gradient_compression="int8"),
    "depcache": lambda: DepCacheStrategy(gradient_compression="powersgd"),
    "depcomm": lambda: DepCommStrategy(partition="interval"),
    "auto-state": AutoStateStrategy,
    "pipetgl": PipeTGLStrategy,
    "pipetgl, no staleness": lambda: PipeTGLStrategy(staleness=0),
    "pipetgl, weights": lambda: PipeTGLStrategy(sends="weights_and_moments"),
    "pipetgl, passed on": lambda: PipeTGLStrategy(pass_on=True),
    "disttgl": lambda: DistTGLStrategy(minibatch="auto"),
    "disttgl, epochs": lambda: DistTGLStrategy(epoch=dist.get_world_size()),
    "disttgl, copies": lambda: DistTGLStrategy(memory=dist.get_world_size()),
    "disttgl, sharded": lambda: DistTGLStrategy(epoch=dist.get_world_size(), store="sharded"),
}
SNAPSHOTS = {
    "blad": lambda: BLADStrategy(processes_per_device=1),
    "snapshot_partition": SnapshotPartitionStrategy,
    "vertex_partition": VertexPartitionStrategy,
}
GRAPHS = {"cdfgnn": CDFGNNStrategy}


class Moving:
    """In place of what torch returns for a message."""

    def __init__(self, done):
        self._done = done

    def wait(self, *_):
        self._done.result(PATIENCE)


class WaitsOfNCCL:
    """Has messages and first meetings wait for those who take part in them.

    Args:
        rank: This rank.

    Attributes:
        met: What has waited, once for each pair or group.
    """

    def __init__(self, rank):
        self._rank, self._store, self._on_hosts = rank, _get_default_store(), set()
        self.met, self._counts, self._queues = [], {}, {}
        self._new_group = dist.new_group
        self._plain = {name: getattr(dist, name) for name in ("isend", "irecv", *MEETINGS)}

    def patches(self):
        """Return what stands in place of torch's functions."""
        meetings = {name: self._meeting(name) for name in MEETINGS}
        ways = {"isend": self.isend, "irecv": self.irecv, "new_group": self.new_group}
        return mock.patch.multiple(dist, **ways, **meetings)

    def new_group(self, *arguments, backend=None, **options):
        group = self._new_group(*arguments, backend=backend, **options)
        if backend == "gloo" and isinstance(group, dist.ProcessGroup):  # and not what those get who are no members
            self._on_hosts.add(group.group_name)
        return group

    def isend(self, values, dst, group=None):
        return self._message(group, self._rank, dst, ("sends", "receives"), "isend", values)

    def irecv(self, values, src, group=None):
        return self._message(group, src, self._rank, ("receives", "sends"), "irecv", values)

    def _message(self, group, src, dst, sides, name, values):
        plain, peer = self._plain[name], {"dst": dst} if name == "isend" else {"src": src}
        if group.group_name in self._on_hosts:
            return plain(values, group=group, **peer)
        own, other = sides
        pair = f"{src} to {dst}"
        self._wait(group, pair, own, [other])
        number = self._counts[group, pair] = self._counts.get((group, pair), 0) + 1

        def move():
            self._meet(f"{group.group_name}/{pair}/{number}", own, [other])
            plain(values, group=group, **peer).wait()

        if group not in self._queues:
            self._queues[group] = ThreadPoolExecutor(1)
        return Moving(self._queues[group].submit(move))

    def _meeting(self, name):
        plain = self._plain[name]

        def meet(*arguments, **options):
            group = signature(plain).bind(*arguments, **options).arguments.get("group")
            self._wait(group, "all", self._rank, dist.get_process_group_ranks(group or dist.group.WORLD))
            return plain(*arguments, **options)

        return meet

    def _wait(self, group, what, own, others):
        """Say that this side is there, and wait until the others are."""
        name = (group or dist.group.WORLD).group_name
        if name in self._on_hosts or (name, what) in self.met:
            return
        self.met.append((name, what))
        self._meet(f"{name}/{what}", own, others)

    def _meet(self, what, own, others):
        self._store.set(f"{what}/{own}", "1")
        keys, deadline = [f"{what}/{other}" for other in others], time.monotonic() + PATIENCE
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {self._rank} waits in group {what}: {others}")
            time.sleep(0.002)


def fit_all(rank, ranks):
    as_torchrun(rank, ranks)
    fits = {name: (partial(training.fit, *training.build("tgn", 12)), strategy) for name, strategy in EVENTS.items()}
    for name, strategy in SNAPSHOTS.items():
        fits[name] = partial(training.fit, *snapshots.build("tgcn", 2)), strategy
    fits |= {name: (test_cdfgnn.fit, strategy) for name, strategy in GRAPHS.items()}
    counts, waits = {}, WaitsOfNCCL(rank)
    with waits.patches():
        for name, (fit, strategy) in fits.items():
            groups._made.clear()  # those of an earlier fit are connected
            waits.met = []
            fit(strategy(), ranks, epochs=1)
            counts[name] = sum(group != dist.group.WORLD.group_name for group, _ in waits.met)
    return counts


@pytest.mark.timeout(280)
@pytest.mark.parametrize("ranks", [2, 3])
def test_no_ranks_wait_for_each_other_in_a_circle(ranks):
    for counts in run_ranks(fit_all, ranks, timeout=240):
        assert min(counts.values()) > 0, counts  # every strategy has groups that NCCL would connect
