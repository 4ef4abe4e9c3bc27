"""The part that every task on a memory-based temporal GNN shares: node state and the protocol of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from lightning_tgnn.checkpoint_io import save_whole_checkpoints
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, refusal
from lightning_tgnn.models import MemoryTGNN, ModelConfig, UpdatedRows, build_model
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.tasks.event_rate import EventRate
from lightning_tgnn.tasks.random_states import random_states, restore_random_states
from lightning_tgnn.tasks.requirements import check_same_graph, check_trainer
from lightning_tgnn.types import (
    CommitHandle,
    EventBatch,
    FetchHandle,
    RootBatch,
    SampledRoots,
    StageOrder,
    StateRows,
    StateSpec,
    StateStore,
    StateUpdate,
    StreamInfo,
)

_CHECKPOINT_KEY = "lightning_tgnn"


class MemoryTask(pl.LightningModule):
    """Trains a memory-based temporal GNN by the protocol below; subclasses define `build_head` and the steps.

    Node state is empty at the start of each training epoch. Validation continues from the end of training on a
    snapshot and puts it back; the sanity check leaves no trace; test takes in the validation part first. Checkpoints
    hold the node state and the random states, so that resuming continues as if nothing had happened.

    The stages of a step (`fetch`, `apply_mail`, `embed`, `make_mails`, `commit`) are methods of their own; override a
    stage rather than the step. A strategy that reads rows in parts goes to its store in place of `fetch`.

    Args:
        model: ``"tgn"``, ``"jodie"`` or ``"apan"``.
        config: Widths and rates of the model.
        lr: Learning rate of Adam.
        weight_decay: Of Adam.
    """

    draws_negatives = True
    """Whether the batches have to carry negatives."""

    model: MemoryTGNN | None

    def __init__(self, model: str, config: ModelConfig, *, lr: float, weight_decay: float) -> None:
        super().__init__()
        self.model_name = model
        self.config = config
        self.lr = lr
        self.weight_decay = weight_decay
        self.info: StreamInfo | None = None
        self.model = None
        self._state_store: StateStore | None = None
        # How the stages of a step follow each other; a strategy may put another order here.
        self.stage_order: StageOrder = in_order
        self._snapshot: Any = None
        self._saved_state: dict[str, Any] | None = None
        self._saved_random: dict[str, Any] | None = None
        self._rate = EventRate()

    def build_head(self) -> None:
        """Create the modules that turn embeddings into answers."""
        raise NotImplementedError

    @property
    def sampled_roots(self) -> SampledRoots:
        """Whose neighbours the batches have to carry."""
        return self._model.sampled_roots

    @property
    def _model(self) -> MemoryTGNN:
        self.configure_model()
        assert self.model is not None
        return self.model

    def configure_model(self) -> None:
        """Build the model for the stream of the DataModule, once.

        Raises:
            InvalidArgumentError: There is no DataModule to ask, or it is not of an event stream.
            CheckpointError: The model has been built for another graph.
        """
        if self._trainer is None:
            return  # `load_from_checkpoint` asks before it hands out the checkpoint, which describes the stream.
        datamodule = getattr(self.trainer, "datamodule", None)
        info = getattr(datamodule, "info", None)
        if not isinstance(info, StreamInfo | None) or (info is None and self.model is None):
            cure = "pass trainer.fit(model, datamodule=TemporalDataModule(...)); static graphs take NodeClassification"
            received = datamodule and type(datamodule).__name__
            raise InvalidArgumentError(refusal("datamodule", "a TemporalDataModule", received, cure))
        if self.model is not None:
            check_same_graph(self.info, info)
            return
        assert info is not None
        self.build(info)

    def build(self, info: StreamInfo) -> None:
        """Build the model for a stream."""
        self.info = info
        self.model = build_model(self.model_name, self.config, info)
        self.build_head()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam, fused unless Lightning has to clip between its parts."""
        clips = self._trainer is not None and bool(self.trainer.gradient_clip_val)
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay, fused=not clips)

    def fetch(self, nodes: Tensor) -> FetchHandle:
        """Start to read the rows of distinct nodes."""
        return self.state_store.fetch(nodes)

    def apply_mail(self, rows: StateRows) -> UpdatedRows:
        """Take in the pending mails of the rows."""
        return self._model.apply_mail(rows)

    def embed(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the embeddings [R, d_emb] of the roots."""
        return self._model.embed(updated, batch)

    def make_mails(self, updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the batch writes."""
        return self._model.make_mails(updated, batch)

    def commit(self, update: StateUpdate) -> CommitHandle:
        """Start to write memory and to deliver mails."""
        return self.state_store.commit(update)

    @property
    def default_stage_order(self) -> StageOrder:
        """The order of the stages where no strategy has another: one after the other."""
        return in_order

    @property
    def state_spec(self) -> StateSpec:
        """Widths of a row of node state."""
        return self._model.spec

    @property
    def has_state_store(self) -> bool:
        """Whether there is node state from an earlier run."""
        return self._state_store is not None

    @property
    def state_store(self) -> StateStore:
        """Where node state lives: what a strategy has set, else the memory of this process."""
        if self._state_store is None:
            self._state_store = LocalStateStore(self._model.spec, self.device)
        self._load_saved_state()
        return self._state_store

    @state_store.setter
    def state_store(self, store: StateStore) -> None:
        self._state_store = store
        self._load_saved_state()  # at once: a strategy that holds the store does not come back through here

    def _load_saved_state(self) -> None:
        if self._saved_state is not None and self._state_store is not None:
            self._state_store.load_state_dict(self._saved_state)
            self._saved_state = None

    def setup(self, stage: str) -> None:
        """Refuse several ranks, each of which would keep a node state of its own, and what float64 times rule out."""
        check_trainer(self.trainer, self._state_store)
        save_whole_checkpoints(self.trainer.strategy)

    def on_train_start(self) -> None:
        """Continue the random states of the checkpoint, as late as possible before the first step."""
        self._rate.restart()
        self._abandon_evaluation()
        saved, self._saved_random = self._saved_random, None
        if saved is not None and self.trainer.ckpt_path is not None:
            restore_random_states(saved, self.trainer)

    def on_train_batch_start(self, batch: EventBatch, batch_idx: int) -> None:
        """Empty the node state before the first event of an epoch.

        The batch says so, not a hook of the epoch: Lightning skips those when it resumes.
        """
        if batch.starts_stream:
            self.state_store.reset()

    def on_train_epoch_start(self) -> None:
        """Measure the training epoch by itself."""
        self._rate.restart()

    def on_train_batch_end(self, outputs: Any, batch: EventBatch, batch_idx: int) -> None:
        """Count the batch's events, and as many for each other rank: they share a step as evenly as can be."""
        self._rate.add(len(batch) * self.trainer.world_size)
        every = getattr(self.trainer, "log_every_n_steps", 1)
        if every and self.trainer.global_step % every == 0:
            self.log("train/events_per_second", self._rate.per_second(), prog_bar=True, batch_size=len(batch))

    def _abandon_evaluation(self) -> None:
        """Put back what an evaluation that broke off has left."""
        if self._snapshot is not None:
            self._end_evaluation()

    def _begin_evaluation(self, loader: Any, *, catch_up: bool) -> None:
        self._abandon_evaluation()
        self._snapshot = self.state_store.snapshot()
        if catch_up:
            self._catch_up(loader)

    def _catch_up(self, loader: Any) -> None:
        """Take in the events between the node state and the first event of ``loader``."""
        position = self.state_store.position
        if position > loader.start:
            cure = "evaluate a checkpoint with the val_ratio and test_ratio it was trained with"
            raise CheckpointError(
                refusal("node state", f"from before event {loader.start}", f"state after event {position}", cure)
            )
        for batch in loader.catch_up(position):
            self.take_in(self.trainer.strategy.batch_to_device(batch, self.device))

    def take_in(self, batch: EventBatch) -> None:
        """Change the node state by a batch without scoring it."""
        self.commit(self.make_mails(self.apply_mail(self.fetch(batch.nodes).wait()), batch)).wait()

    def _end_evaluation(self) -> None:
        self.state_store.restore(self._snapshot)
        self._snapshot = None

    def on_validation_epoch_start(self) -> None:
        """Continue from the end of training, on a snapshot."""
        quick = self.trainer.sanity_checking or bool(getattr(self.trainer, "fast_dev_run", False))
        self._begin_evaluation(self.trainer.val_dataloaders, catch_up=not quick)

    def on_validation_epoch_end(self) -> None:
        """Put the snapshot back."""
        self._end_evaluation()
        self._rate.restart()

    def on_test_epoch_start(self) -> None:
        """Take in the validation part, on a snapshot."""
        quick = bool(getattr(self.trainer, "fast_dev_run", False))
        self._begin_evaluation(self.trainer.test_dataloaders, catch_up=not quick)

    def on_test_epoch_end(self) -> None:
        """Put the snapshot back."""
        self._end_evaluation()

    def on_predict_epoch_start(self) -> None:
        """Take in what came before, on a snapshot."""
        self._begin_evaluation(self.trainer.predict_dataloaders, catch_up=True)

    def on_predict_epoch_end(self) -> None:
        """Put the snapshot back."""
        self._end_evaluation()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add node state, random states and what the stream looks like."""
        assert self.info is not None
        # A checkpoint made in the middle of an evaluation holds what that evaluation will put back.
        state = self.state_store.state_dict(self._snapshot)
        data = getattr(self.trainer, "datamodule", None)
        checkpoint[_CHECKPOINT_KEY] = {
            "stream": asdict(self.info),
            "state": state,
            "random": random_states(self.trainer),
            # What answers from the checkpoint alone need: the task's name and how to come by its stream again.
            "task": type(self).__name__,
            "data": getattr(data, "recipe", None),
            "global_batch_size": getattr(data, "batch_size", 0) * self.trainer.world_size,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the model if need be, and keep node state and random states until they can be used.

        Raises:
            CheckpointError: The checkpoint is of another graph, or holds no node state.
        """
        if _CHECKPOINT_KEY not in checkpoint:
            cure = "give a checkpoint of a lightning_tgnn task"
            raise CheckpointError(refusal("checkpoint", "with node state", sorted(checkpoint), cure))
        saved = checkpoint[_CHECKPOINT_KEY]
        info = StreamInfo(**saved["stream"])
        if self.model is None:
            self.build(info)
        else:
            check_same_graph(info, self.info)
        self._saved_state, self._saved_random = saved["state"], saved["random"]
        self._load_saved_state()


def in_order(task: Any, batch: EventBatch) -> Any:
    """Run the stages of a step one after the other; mails are delivered after the batch has been scored."""
    updated = task.apply_mail(task.fetch(batch.nodes).wait())
    answer = task.score(task.embed(updated, batch), batch)
    task.commit(task.make_mails(updated, batch)).wait()
    return answer
