"""Runs on snapshots of a small stream whose load varies: some are empty, some large, and vertices are new in each."""

import torch

from lightning_tgnn import EventStore, SnapshotDataModule
from lightning_tgnn.tasks import SnapshotLinkPrediction
from tests.multiprocess.training import Plain

SIZES = (3, 9, 0, 20, 5, 14, 2, 1, 16, 8, 0, 12)  # events of each unit of time
NODES = 24


class PlainSnapshots(Plain, SnapshotLinkPrediction):
    pass


class AdamSnapshots(SnapshotLinkPrediction):
    """With Adam, which keeps moments that have to be resumed."""


def stream():
    """Return events whose vertices are new ones as time goes on."""
    rng = torch.Generator().manual_seed(11)
    times = torch.cat([step + torch.rand(size, generator=rng).sort().values for step, size in enumerate(SIZES)])
    known = 6 + 1.5 * times
    src, dst = ((torch.rand(len(times), generator=rng) * known).long().clamp(max=NODES - 1) for _ in range(2))
    return EventStore.from_arrays(src, dst, times.double(), num_nodes=NODES)


def build(model, batch_size, task_class=PlainSnapshots, *, group_size=4, vertices="seen", data=None, **options):
    """Return data and a task, whose weights are always the same."""
    reading = {"window": 1.0, "group_size": group_size, "vertices": vertices, "num_workers": 0, "seed": 3}
    snapshots = SnapshotDataModule(stream(), batch_size=batch_size, **reading | (data or {}))
    torch.manual_seed(7)
    return snapshots, task_class(model, **{"hidden_dim": 5, "lr": 0.02} | options)
