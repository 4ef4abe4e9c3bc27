"""Which rank works on which events when: the turns of every schedule."""

from lightning_tgnn.algorithms.schedules.data_parallel import DataParallel
from lightning_tgnn.algorithms.schedules.epochs_and_copies import EpochsAndCopies
from lightning_tgnn.algorithms.schedules.random_order import RandomChunks, ShuffledBatches
from lightning_tgnn.algorithms.schedules.round_robin import RoundRobin
from lightning_tgnn.algorithms.schedules.snapshot_groups import SharedGroups, SnapshotGroups
from lightning_tgnn.algorithms.schedules.whole_graph import WholeGraph

__all__ = [
    "DataParallel",
    "EpochsAndCopies",
    "RandomChunks",
    "RoundRobin",
    "SharedGroups",
    "ShuffledBatches",
    "SnapshotGroups",
    "WholeGraph",
]
