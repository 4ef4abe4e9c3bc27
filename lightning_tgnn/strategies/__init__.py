"""Strategies: which rank gets which events, where node state lives, and when weights are updated."""

from lightning_tgnn.compat import registry
from lightning_tgnn.strategies.auto_state import AutoStateStrategy
from lightning_tgnn.strategies.blad import BLADStrategy
from lightning_tgnn.strategies.cdfgnn import CDFGNNStrategy
from lightning_tgnn.strategies.depcache import DepCacheStrategy
from lightning_tgnn.strategies.depcomm import DepCommStrategy
from lightning_tgnn.strategies.disttgl import DistTGLStrategy
from lightning_tgnn.strategies.pipetgl import PipeTGLStrategy
from lightning_tgnn.strategies.planned import PlannedStrategy
from lightning_tgnn.strategies.snapshot_partition import SnapshotPartitionStrategy
from lightning_tgnn.strategies.sven import SvenStrategy
from lightning_tgnn.strategies.vertex_partition import VertexPartitionStrategy

registry.register(globals().__getitem__)

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
