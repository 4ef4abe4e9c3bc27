"""A runner of plans whose number of micro-batches may be found during training."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from typing_extensions import override

from lightning_tgnn.strategies.adaptive_micro_batch import AdaptiveMicroBatch
from lightning_tgnn.strategies.parts.pipelined_order import ADAPTIVE, Pipelined
from lightning_tgnn.strategies.runner import PlanRunner
from lightning_tgnn.types import OrderPart


class TunedRunner(PlanRunner):
    """Runs a plan, and brings an `AdaptiveMicroBatch` where the plan leaves n to be found."""

    @property
    def order_part(self) -> OrderPart:
        """The order of the plan."""
        raise NotImplementedError

    @override
    def connect(self, model: pl.LightningModule) -> None:
        super().connect(model)
        order = self.order_part
        if not (isinstance(order, Pipelined) and order.micro_batches == ADAPTIVE):
            return
        callbacks = model.trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(given, AdaptiveMicroBatch) for given in callbacks):
            # Before those that save, which Lightning has last: they save what it has found, and a checkpoint that is
            # about to be read gives it back.
            saving = sum(isinstance(given, Checkpoint) for given in callbacks)
            callbacks.insert(len(callbacks) - saving, AdaptiveMicroBatch())
