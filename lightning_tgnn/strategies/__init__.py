"""Strategies: which rank gets which events, where node state lives, and when weights are updated."""

from lightning_tgnn.strategies.auto_state import AutoStateStrategy
from lightning_tgnn.strategies.blad import BLADStrategy
from lightning_tgnn.strategies.cdfgnn import CDFGNNStrategy
from lightning_tgnn.strategies.depcache import DepCacheStrategy
from lightning_tgnn.strategies.depcomm import DepCommStrategy
from lightning_tgnn.strategies.disttgl import DistTGLStrategy
from lightning_tgnn.strategies.names import register
from lightning_tgnn.strategies.pipetgl import PipeTGLStrategy
from lightning_tgnn.strategies.planned import PlannedStrategy
from lightning_tgnn.strategies.snapshot_partition import SnapshotPartitionStrategy
from lightning_tgnn.strategies.sven import SvenStrategy
from lightning_tgnn.strategies.vertex_partition import VertexPartitionStrategy

register("sven", SvenStrategy, description="Sharded node state, exchanged without redundancy")
register("depcomm", DepCommStrategy, description="Sharded node state, updated by its owners")
register("depcache", DepCacheStrategy, description="The whole node state on every rank")
register("auto-state", AutoStateStrategy, description="Node state as in sven or depcache, whichever suits")
register("pipetgl", PipeTGLStrategy, description="A pipeline over batches, with exact node memory")
register(
    "disttgl", DistTGLStrategy, description="Mini-batch, epoch and memory parallelism", arguments={"minibatch": "auto"}
)
register("cdfgnn", CDFGNNStrategy, description="Full-batch training on a cached vertex-cut")
register("blad", BLADStrategy, description="Groups of snapshots, scheduled by load")
register("snapshot_partition", SnapshotPartitionStrategy, description="Groups of snapshots, cut over all ranks")
register("vertex_partition", VertexPartitionStrategy, description="Snapshots whose vertices are cut over all ranks")

__all__ = [
    "AutoStateStrategy",
    "BLADStrategy",
    "CDFGNNStrategy",
    "DepCacheStrategy",
    "DepCommStrategy",
    "DistTGLStrategy",
    "PipeTGLStrategy",
    "PlannedStrategy",
    "SnapshotPartitionStrategy",
    "SvenStrategy",
    "VertexPartitionStrategy",
]
