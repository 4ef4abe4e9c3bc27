"""DepCache, a baseline of Sven: every rank holds all nodes."""

from __future__ import annotations

import lightning.pytorch as pl
from typing_extensions import override

from lightning_tgnn.state import ReplicatedStateStore
from lightning_tgnn.strategies.shared_state import SharedStateStrategy
from lightning_tgnn.types import NodeStateTask


class DepCacheStrategy(SharedStateStrategy):
    """DepCache: every rank holds the whole node state, and every update goes to all.

    A baseline: Sven, section 2.3.

    Args:
        prefetch_batches: Batches made ahead; None leaves that to the DataModule.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.
    """

    @override
    def build_store(self, task: NodeStateTask, trainer: pl.Trainer) -> ReplicatedStateStore:
        return ReplicatedStateStore(task.state_spec, self.exchange, self.root_device)
