"""The stages of a step on a memory-based temporal GNN, and the node state that they read and write."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_not_negative, check_positive, refusal
from lightning_tgnn.models import MemoryTGNN, ModelConfig, UpdatedRows, build_model
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.tasks.requirements import check_same_graph
from lightning_tgnn.tasks.trained_task import TrainedTask
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


class StagedTask(TrainedTask):
    """A memory-based temporal GNN whose step is made of stages.

    They (`fetch`, `apply_mail`, `embed`, `make_mails`, `commit`) are methods of their own; override a stage rather than
    the step. A strategy that reads rows in parts goes to its store in place of `fetch`.

    Args:
        model: ``"tgn"``, ``"jodie"`` or ``"apan"``.
        config: Widths and rates of the model.
        lr: Learning rate of Adam.
        weight_decay: Of Adam.
        detect_nan: End the run at the first loss or gradient that is not finite.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    model: MemoryTGNN | None

    def __init__(
        self, model: str, config: ModelConfig, *, lr: float, weight_decay: float, detect_nan: bool = True
    ) -> None:
        super().__init__(detect_nan=detect_nan)
        self.model_name = model
        self.config = config
        check_positive("lr", lr, cure="1e-3 is usual")
        check_not_negative("weight_decay", weight_decay, cure="0 is usual")
        self.lr = lr
        self.weight_decay = weight_decay
        self.info: StreamInfo | None = None
        self.model = None
        self._state_store: StateStore | None = None
        self._saved_state: dict[str, Any] | None = None
        # How the stages of a step follow each other; a strategy may put another order here.
        self.stage_order: StageOrder = in_order

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


def in_order(task: Any, batch: EventBatch) -> Any:
    """Run the stages of a step one after the other; mails are delivered after the batch has been scored."""
    updated = task.apply_mail(task.fetch(batch.nodes).wait())
    answer = task.score(task.embed(updated, batch), batch)
    task.commit(task.make_mails(updated, batch)).wait()
    return answer
