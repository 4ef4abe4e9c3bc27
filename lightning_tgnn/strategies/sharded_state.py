"""What the strategies have in common whose nodes each belong to one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from lightning_tgnn.strategies.node_partition import choose_partition
from lightning_tgnn.strategies.shared_state import SharedStateStrategy
from lightning_tgnn.types import NodeStateTask


class ShardedStateStrategy(SharedStateStrategy):
    """Node state cut over the ranks by a partition of the nodes.

    Args:
        partition: ``"reflexbicut"``, ``"range"``, ``"interval"``, ``"metis"``, a file that ``lightning-tgnn partition``
            wrote, or int64 [N], the rank of every node.
        **options: Of `SharedStateStrategy`.
    """

    def __init__(self, *, partition: str | Path | Tensor = "reflexbicut", **options: Any) -> None:
        super().__init__(**options)
        self.partition = partition

    def owner_of_nodes(self, task: NodeStateTask, trainer: pl.Trainer) -> Tensor:
        """Return the rank of every node, int64 [N], the same on all ranks."""
        num_nodes = task.state_spec.num_nodes
        return choose_partition(self.partition, num_nodes, self.world_size, trainer, self.broadcast)
