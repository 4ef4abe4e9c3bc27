"""The stages of a step on a memory-based temporal GNN, and the node state that they read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import ref

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.compat.modules import trainer_of
from lightning_tgnn.files.checkpoint_folder import read_tables
from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.models import Mails, MemoryModel, ModelConfig, build_model
from lightning_tgnn.models.memory.memory_model import check_result
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.tasks.optimization import LRSchedulerCallable, OptimizerCallable, ParamGroups
from lightning_tgnn.tasks.optimized_task import OptimizedTask
from lightning_tgnn.tasks.requirements import check_default_dtype
from lightning_tgnn.tasks.same_graph import check_same_stream
from lightning_tgnn.types import (
    CommitHandle,
    EventBatch,
    ExchangingStore,
    FetchHandle,
    KnownData,
    NodeStateTask,
    RootBatch,
    SampledRoots,
    ShardingStore,
    StageOrder,
    Stages,
    StateRows,
    StateSpec,
    StateStore,
    StateUpdate,
    StreamInfo,
    UpdatedRows,
    datamodule_of,
)

_Answer = TypeVar("_Answer")


class StagedTask(OptimizedTask):
    """A memory-based temporal GNN whose step is made of stages.

    Each stage (`fetch`, `apply_mail`, `embed`, `make_mails`, `commit`) is a method; override a stage rather than the
    step. A strategy that reads rows in pieces reads them from its store instead of calling `fetch`. For the training of
    the weights, ``lr`` to ``detect_nan``, see `OptimizedTask`.

    Args:
        model: ``"tgn"``, ``"jodie"``, ``"apan"``, or what builds a `MemoryModel` for a stream.
        config: Widths and rates of a built-in model.
        message: Makes the messages of a built-in model, see `Mails`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    model: MemoryModel | None

    def __init__(
        self,
        model: Callable[[StreamInfo], nn.Module] | str,
        config: ModelConfig,
        *,
        lr: float,
        weight_decay: float,
        message: Callable[[int, int], nn.Module] | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_config: Mapping[str, Any] | None = None,
        lr_scaling: str = "none",
        param_groups: ParamGroups | None = None,
        detect_nan: bool = True,
    ) -> None:
        super().__init__(
            lr=lr,
            weight_decay=weight_decay,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            lr_scheduler_config=lr_scheduler_config,
            lr_scaling=lr_scaling,
            param_groups=param_groups,
            detect_nan=detect_nan,
        )
        self._built_by = model
        self._message = message
        self.config = config
        self.info: StreamInfo | None = None
        self.model = None
        self._state_store: StateStore | None = None
        self._saved_state: dict[str, Any] | None = None
        # In the batch under way; not told by the store, whose position ranks have to meet for.
        self._has_committed = False
        # How the stages of a step follow each other; a strategy may put another order here.
        self.stage_order: StageOrder = in_order
        self.stages = Stages()
        self._latest_batch: ref[EventBatch] | None = None

    def build_head(self) -> None:
        """Create the modules that turn embeddings into answers."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # Node state that ranks share is of their processes; a copy without it takes in the stream from its start.
        state, store = super().__getstate__() | {"_latest_batch": None}, self._state_store
        if isinstance(store, ExchangingStore):
            alone = LocalStateStore(store.spec, self.device) if store.ranks == 1 else None
            if alone is not None:
                alone.load_state_dict(store.state_dict())
            state |= {"_state_store": alone, "stage_order": self.default_stage_order}
        return state

    @property
    def sampled_roots(self) -> SampledRoots:
        """Whose neighbours the batches have to carry."""
        return self._model.sampled_roots

    @property
    def _model(self) -> MemoryModel:
        if self.model is None:  # every stage of every step asks; a model that is there has been checked by the Trainer
            self.configure_model()
        return self._checked_model()

    def _checked_model(self) -> MemoryModel:
        if self.model is None:
            received = "no model after configure_model and build"
            cure = "call super() in yours, or task.build(data.info) before the task is used without a Trainer"
            raise InvalidArgumentError(refusal(type(self).__name__, "built for a stream", received, cure))
        return self.model

    def configure_model(self) -> None:
        """Build the model for the stream of the DataModule, once.

        Raises:
            InvalidArgumentError: The Trainer has no DataModule of an event stream.
            CheckpointError: The model has been built for another graph.
        """
        if trainer_of(self) is None:
            return  # `load_from_checkpoint` asks before it hands out the checkpoint, which describes the stream.
        info = self._stream_info()
        if self.model is not None:
            check_same_stream(self.info, info)
            if info is not None and self.trainer.state.fn == "fit":
                self.info = info  # what its checkpoints are of from here on
            return
        assert info is not None
        with torch.device("cpu"):  # a seed draws the same weights for every device
            self.build(info)
        self._checked_model()
        self.copy_for_averages()

    def _stream_info(self) -> StreamInfo | None:
        """Return what the DataModule says of its stream; None where the model is there and it does not say.

        Raises:
            InvalidArgumentError: The Trainer has no DataModule of an event stream.
        """
        datamodule = datamodule_of(self.trainer)
        info = datamodule.info if isinstance(datamodule, KnownData) else None
        if not isinstance(info, StreamInfo | None) or (info is None and self.model is None):
            takes = "static graphs take NodeClassification, snapshots SnapshotLinkPrediction"
            cure = f"pass trainer.fit(model, datamodule=TemporalDataModule(...)); {takes}"
            received = datamodule and type(datamodule).__name__
            raise InvalidArgumentError(refusal("datamodule", "a TemporalDataModule", received, cure))
        return info

    def build(self, info: StreamInfo) -> None:
        """Build the model for a stream.

        Raises:
            InvalidArgumentError: What was given builds no `MemoryModel`, or torch makes weights of another precision.
        """
        check_default_dtype()
        self.info = info
        mails = Mails(self._message, raw=self.sends_raw_mails)
        model = self.make_model(info, mails)
        if not isinstance(model, MemoryModel):
            received = f"a {type(model).__name__}"
            cure = "subclass lightning_tgnn.models.MemoryModel, and return one from what you gave as `model`"
            raise InvalidArgumentError(refusal("model", "built as a MemoryModel", received, cure))
        if not mails.raw:
            model.spec = replace(model.spec, own_half=False, event_features=False)
        self.model = model
        self.build_head()

    def make_model(self, info: StreamInfo, mails: Mails) -> nn.Module:
        """Return the model for a stream."""
        if isinstance(self._built_by, str):
            return build_model(self._built_by, self.config, info, mails)
        return self._built_by(info)

    @property
    def sends_raw_mails(self) -> bool:
        """Whether `make_mails` and `commit` leave mails as the model makes them, of which a strategy need not send all.

        An override that only looks at them may say so.
        """
        own = type(self)
        return own.make_mails is StagedTask.make_mails and own.commit is StagedTask.commit

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return what the arguments say; Adam, fused unless Lightning has to clip between its parts, by default."""
        clips = trainer_of(self) is not None and bool(self.trainer.gradient_clip_val)
        adam = partial(torch.optim.Adam, fused=not clips)
        return self.optimization.configure(self, adam, self.lr, self.weight_decay)

    def fetch(self, nodes: Tensor) -> FetchHandle:
        """Start to read the rows of distinct nodes."""
        return self.state_store.fetch(nodes)

    def apply_mail(self, rows: StateRows) -> UpdatedRows:
        """Take in the pending mails of the rows."""
        updated = self._model.apply_mail(rows)
        check_result("apply_mail, memory,", updated.memory, rows.memory.shape)
        check_result("apply_mail, memory_time,", updated.memory_time, rows.memory_time.shape)
        return updated

    def embed(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the embeddings: [C, d_emb] of a batch's candidates, [R, d_emb] of the roots of a query."""
        embeddings = self._model.embed(updated, batch)
        check_result(f"{type(self.model).__name__}.embed", embeddings, (len(batch.root_index), self.embedding_dim))
        if embeddings.dtype == torch.float64:  # as all is that is computed with times
            embeddings = embeddings.float()
        return batch.of_candidates(embeddings) if isinstance(batch, EventBatch) else embeddings

    def make_mails(self, updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the batch writes."""
        return self._model.make_mails(updated, batch)

    def commit(self, update: StateUpdate) -> CommitHandle:
        """Start to write memory and to deliver mails."""
        self._has_committed = True
        return self.state_store.commit(update)

    def check_runs_once(self, batch: EventBatch) -> None:
        """Note that the stages of a batch run, and refuse a second time; to be called before they run.

        Raises:
            InvalidArgumentError: The batch has been run already: its mails would be delivered a second time.
        """
        again = self._latest_batch is not None and self._latest_batch() is batch
        # An optimizer that computes a batch twice is refused by its name, as it goes backward again.
        if again and not (self.training and trainer_of(self) is not None and not super().is_batch_untouched()):
            requirement = "run once for a batch, because node memory already has it the second time"
            cure = "take what the first call returns; see 'Your own figures' in the documentation for what you measure"
            raise InvalidArgumentError(refusal("the stages", requirement, "a batch that has been run", cure))
        if batch.sampled_roots not in (None, self.sampled_roots):
            requirement = f"made for a model that reads neighbours of {self.sampled_roots!r} roots"
            cure = (
                "give the Trainer the DataModule, or set data.sampled_roots = task.sampled_roots ahead of its loaders"
            )
            received = f"one for {batch.sampled_roots!r}"
            raise InvalidArgumentError(refusal("the loader", requirement, received, cure))
        self._latest_batch = ref(batch)
        self.refresh_weights()

    @property
    def default_stage_order(self) -> StageOrder:
        """The order of the stages where no strategy has another: one after the other."""
        return in_order

    @property
    def embedding_dim(self) -> int:
        """Width of the embeddings."""
        return self._model.embedding_dim

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

    @content_of(*SAVED)
    def _load_saved_state(self) -> None:
        if self._saved_state is not None and self._state_store is not None:
            store, saved = self._state_store, self._saved_state
            if type(saved["position"]) is not int or saved["position"] < 0:
                raise ValueError(f"node state after {saved['position']!r} events")
            # Ours ask for the rows of tables that they need; another store gets them whole.
            store.load_state_dict(saved if isinstance(store, ShardingStore) else read_tables(saved))
            self._saved_state = None


def in_order(task: NodeStateTask[_Answer], batch: EventBatch) -> _Answer:
    """Run the stages of a step one after the other; mails are delivered after the batch has been scored."""
    stages = task.stages
    with stages("fetch"):
        rows = task.fetch(batch.nodes).wait()
    with stages("update"):
        updated = task.apply_mail(rows)
    with stages("embed"):
        embeddings = stages.embedded(batch, task.embed(updated, batch))
    with stages("score"):
        answer = task.score(embeddings, batch)
    with stages("write"):
        task.commit(task.make_mails(updated, batch)).wait()
    return answer
