"""Sven: node state sharded by node, exchanged without redundancy, balanced, and pipelined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, check_int, check_not_negative, refusal
from lightning_tgnn.state import ShardedStateStore
from lightning_tgnn.strategies.orders import Pipelined
from lightning_tgnn.strategies.sharded_state import ShardedStateStrategy
from lightning_tgnn.types import NodeStateTask, StageOrder

ADAPTIVE = "adaptive"


class SvenStrategy(ShardedStateStrategy):
    """Sven: redundancy-free exchange of sharded node state, balanced partition, two pipelines.

    Args:
        partition: See the methods of ``lightning-tgnn partition``: ``"reflexbicut"``, ``"range"``, ``"interval"``,
            ``"metis"``; or a file that it wrote, or int64 [N], the rank of every node.
        micro_batches: n of the pipeline, or ``"adaptive"``: 1 until an `AdaptiveMicroBatch` callback has measured
            better. (Sven, section 5.6, takes 2 to 4; with rows fetched ahead little is left for more pieces to hide.)
        staleness: 1 applies gradients one step late and hides their all-reduce; 0 waits for them.
        row_cache_mb: Megabytes of fetched rows that a rank keeps; 0 for none.
        omit_own_half: Do not send of a mail what lies in its row.
        features_by_event: Do not send a mail's edge features but the number of its event.
        fetch_ahead: Fetch the rows of the next batch that this one leaves alone behind this one's computation.
        prefetch_batches: Batches made ahead; None leaves that to the DataModule.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        *,
        partition: str | Path | Tensor = "reflexbicut",
        micro_batches: str | int = ADAPTIVE,
        staleness: int = 1,
        row_cache_mb: float = 256,
        omit_own_half: bool = True,
        features_by_event: bool = True,
        fetch_ahead: bool = True,
        prefetch_batches: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(partition=partition, prefetch_batches=prefetch_batches, **options)
        if micro_batches != ADAPTIVE:
            if isinstance(micro_batches, str):
                cure = "give a number, for example 2, or 'adaptive'"
                raise InvalidArgumentError(refusal("micro_batches", "a number or 'adaptive'", micro_batches, cure))
            check_int("micro_batches", micro_batches, minimum=1, cure="give a number, for example 2, or 'adaptive'")
        check_int("staleness", staleness, minimum=0, cure="0 waits for gradients, 1 applies them a step late")
        if staleness > 1:
            cure = "0 waits for gradients, 1 applies them a step late"
            raise InvalidArgumentError(refusal("staleness", "0 or 1", staleness, cure))
        check_not_negative("row_cache_mb", row_cache_mb, cure="256 is usual, 0 keeps no rows")
        self.micro_batches = micro_batches
        self.staleness = staleness
        self.row_cache_mb = row_cache_mb
        self.omit_own_half = omit_own_half
        self.features_by_event = features_by_event
        self.fetch_ahead = fetch_ahead
        self.order: Pipelined | None = None

    @override
    def build_store(self, task: NodeStateTask, trainer: pl.Trainer) -> ShardedStateStore:
        stream = getattr(getattr(trainer, "datamodule", None), "store", None)
        return ShardedStateStore(
            task.state_spec,
            self.owner_of_nodes(task, trainer),
            self.exchange,
            self.root_device,
            row_cache_mb=self.row_cache_mb,
            omit_own_half=self.omit_own_half,
            edge_features=getattr(stream, "edge_features", None) if self.features_by_event else None,
        )

    @override
    def build_order(self, store: ShardedStateStore) -> StageOrder:
        count = self.micro_batches if isinstance(self.micro_batches, int) else 1
        self.order = Pipelined(store, count, fetch_ahead=self.fetch_ahead, on_arrival=self.send_gradients)
        return self.order
