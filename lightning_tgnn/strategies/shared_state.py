"""What the strategies have in common that share node state over ranks: data-parallel steps on parts of a batch."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.strategies.exchanging import ExchangingStrategy
from lightning_tgnn.types import NodeStateTask, StageOrder, StateStore

_STAGES = ("state_spec", "state_store", "stage_order", "fetch", "apply_mail", "embed", "score", "make_mails", "commit")


class SharedStateStrategy(ExchangingStrategy):
    """Trains on parts of a global batch with one node state; subclasses say where it lives and how stages follow.

    A rank's part are consecutive events of the global batch, whose gradient is the mean over all its events. Node
    state is exchanged over a process group of its own.

    Args:
        prefetch_batches: Batches made ahead, in place of the DataModule's; None leaves that as it is.
        **options: Of `lightning.pytorch.strategies.DDPStrategy`.
    """

    shares_node_state = True

    def __init__(self, *, prefetch_batches: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.prefetch_batches = prefetch_batches
        self._store: StateStore | None = None

    def build_store(self, task: NodeStateTask, trainer: pl.Trainer) -> StateStore:
        """Return the store of this rank."""
        raise NotImplementedError

    def build_order(self, store: Any) -> StageOrder | None:
        """Return the order of the stages; None leaves the task's own."""
        return None

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        task = self.lightning_module
        missing = [name for name in _STAGES if not hasattr(type(task), name) and not hasattr(task, name)]
        if missing:
            requirement = f"a task with the stages of a memory-based temporal GNN; {', '.join(missing)} missing"
            cure = "subclass lightning_tgnn.tasks.MemoryTask, or take strategy='cdfgnn' for a static graph"
            raise InvalidArgumentError(refusal("model", requirement, type(task).__name__, cure))
        if self.staleness and trainer.state.fn == "fit" and str(trainer.precision) == "16-mixed":
            cure = "set precision='bf16-mixed', or staleness=0: gradients a step late have the scale of the step before"
            requirement = "without a loss scale where gradients come late"
            raise InvalidArgumentError(refusal("Trainer(precision=...)", requirement, trainer.precision, cure))
        self._give_state(task, trainer)
        super().setup(trainer)

    def _give_state(self, task: Any, trainer: pl.Trainer) -> None:
        """Put our store behind the task, with the state that it has from an earlier run."""
        held = task.state_store if task.has_state_store else None
        if self._store is None or held is not self._store:
            self._store = self.build_store(task, trainer)
            if held is not None:
                self._store.load_state_dict(self.broadcast(held.state_dict()))
            task.state_store = self._store
        # Always set: an earlier strategy may have left an order that goes to its own store.
        task.stage_order = self.build_order(self._store) or task.default_stage_order

    @override
    def process_dataloader(self, dataloader: object) -> object:
        if self.world_size > 1:
            if not hasattr(dataloader, "shard"):
                cure = "take the loaders of TemporalDataModule"
                received = type(dataloader).__name__
                raise InvalidArgumentError(refusal("dataloader", "one that can be cut over ranks", received, cure))
            dataloader = dataloader.shard(self.global_rank, self.world_size)
        if self.prefetch_batches is not None:
            dataloader.prefetch_batches = self.prefetch_batches  # type: ignore[attr-defined]
        return dataloader
