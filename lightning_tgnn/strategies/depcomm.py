"""DepComm, a baseline of Sven: owners update their nodes and send the result."""

from __future__ import annotations

import lightning.pytorch as pl
from typing_extensions import override

from lightning_tgnn.state import ShardedStateStore
from lightning_tgnn.strategies.orders import UpdatedByOwners
from lightning_tgnn.strategies.sharded_state import ShardedStateStrategy
from lightning_tgnn.types import NodeStateTask, StageOrder


class DepCommStrategy(ShardedStateStrategy):
    """DepComm: owners apply the mails of their nodes and send the result for every entry of the sampled graph.

    A baseline: Sven, section 2.3. Every option of `SvenStrategy` but the partition is off.

    Args:
        partition: As in `SvenStrategy`.
        prefetch_batches: Batches made ahead; None leaves that to the DataModule.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.
    """

    @override
    def build_store(self, task: NodeStateTask, trainer: pl.Trainer) -> ShardedStateStore:
        owner = self.owner_of_nodes(task, trainer)
        return ShardedStateStore(
            task.state_spec, owner, self.exchange, self.root_device, row_cache_mb=0, omit_own_half=False
        )

    @override
    def build_order(self, store: ShardedStateStore) -> StageOrder:
        return UpdatedByOwners(store)
