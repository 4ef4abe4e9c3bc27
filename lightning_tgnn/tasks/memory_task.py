"""Tasks on memory-based temporal GNNs: the stages of a step, node state, the protocol of a run, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT, OptimizerLRScheduler
from torch import Tensor, nn

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.compat.modules import trainer_of
from lightning_tgnn.files.checkpoint_folder import read_tables
from lightning_tgnn.files.checkpoints import save_whole_checkpoints
from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.models import Mails, MemoryModel, ModelConfig, PairModel, StreamModel, build_model
from lightning_tgnn.models.memory.without_memory import WithoutMemory
from lightning_tgnn.models.stream_model import check_result
from lightning_tgnn.state import LocalStateStore
from lightning_tgnn.tasks.fit_guard import checked_states, random_states
from lightning_tgnn.tasks.orders import in_order
from lightning_tgnn.tasks.requirements import check_default_dtype, check_same_stream, check_trainer, info_of
from lightning_tgnn.tasks.run_protocol import Evaluation, EventRate
from lightning_tgnn.tasks.task import Task
from lightning_tgnn.tasks.training_options import TrainingOptions
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
    UpdatedRows,
    known_data,
    on_this_rank,
    ranks_per_batch,
    shares_node_state,
    state_to_save,
)

_CHECKPOINT_KEY = "lightning_tgnn"


class Measures(Protocol):
    """What the steps of an evaluation add to."""

    def reset(self) -> object:
        """Forget what was measured."""
        ...


_Metrics = TypeVar("_Metrics", bound=Measures)


class MemoryTask(Task, Generic[_Metrics]):
    """Trains a memory-based temporal GNN by the protocol below. Subclasses define head, steps and values.

    A step is made of stages. Each (`fetch`, `apply_mail`, `embed`, `make_mails`, `commit`) is a method; override a
    stage rather than the step. A strategy that reads rows in pieces reads them from its store, without `fetch`.

    Node state is empty at the start of each training epoch. Validation continues from the end of training on a snapshot
    of the state, which is put back afterwards. The sanity check leaves no trace. Test takes in the validation split
    first. Checkpoints hold the node state and the random states, so that a resumed run continues exactly.

    Args:
        model: One of `lightning_tgnn.models.MODEL_NAMES`, or what builds a `StreamModel` for a stream.
        config: Widths and rates of a built-in model.
        training: How its weights are trained.
        message: Makes the messages of a built-in model, see `Mails`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    draws_negatives = True
    """Whether the batches have to carry negatives."""

    figure = ""
    """The name of what the progress bar shows of `metric_values`."""

    val_metrics: _Metrics
    """What the validation steps add to, with ``reset``, for `metric_values`; left out where steps log."""

    test_metrics: _Metrics
    """The same of the test steps."""

    takes_pair_models = False
    """Whether the task scores pairs of nodes, so that a `PairModel` will do."""

    model: StreamModel | None

    def __init__(
        self,
        model: Callable[[StreamInfo], nn.Module] | str,
        config: ModelConfig,
        training: TrainingOptions | None = None,
        *,
        message: Callable[[int, int], nn.Module] | None = None,
    ) -> None:
        super().__init__(TrainingOptions() if training is None else training)
        self._built_by = model
        self._message = message
        self.config = config
        self.info: StreamInfo | None = None
        self.model = None
        self._state_store: StateStore | None = None
        self._saved_state: dict[str, Any] | None = None
        # In the batch under way; not reported by the store, whose position ranks have to meet for.
        self.has_committed = False
        # How the stages of a step follow each other; a strategy may put another order here.
        self.stage_order: StageOrder = in_order
        self._latest_batch: ref[EventBatch] | None = None
        self._evaluation, self._rate = Evaluation(), EventRate()

    def build_head(self) -> None:
        """Create the modules that turn embeddings into answers."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # Node state that ranks share is of their processes; a copy without it takes in the stream from its start.
        state, store = super().__getstate__() | {"_latest_batch": None}, self._state_store
        if store is not None and store.ranks is not None:
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
    def num_neighbors(self) -> int | None:
        """How many neighbours of a root the batches have to carry; None for any number."""
        return self._model.num_neighbors

    @property
    def _model(self) -> StreamModel:
        if self.model is None:  # every stage of every step asks; a model that is there has been checked by the Trainer
            self.configure_model()
        return self._checked_model()

    def _checked_model(self) -> StreamModel:
        if self.model is None:
            received = "no model after configure_model and build"
            cure = "call super() in yours, or task.build(data.info) before the task is used without a Trainer"
            raise InvalidArgumentError(type(self).__name__, "built for a stream", received, cure)
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
                self.info = info  # its checkpoints name this stream from here on
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
        return info_of(self.trainer, StreamInfo, "TemporalDataModule", is_built=self.model is not None)

    def build(self, info: StreamInfo) -> None:
        """Build the model for a stream.

        Raises:
            InvalidArgumentError: What was given builds no model that the task takes, or torch makes weights of another
                precision.
        """
        check_default_dtype()
        self.info = info
        mails = Mails(self._message, raw=self.sends_raw_mails)
        model = self.make_model(info, mails)
        is_pair_model = isinstance(model, PairModel)
        if not isinstance(model, StreamModel) or (is_pair_model and not self.takes_pair_models):
            kind = "MemoryModel, StreamModel or PairModel" if self.takes_pair_models else "MemoryModel or StreamModel"
            cure = "subclass one in lightning_tgnn.models, and return it from what you gave as `model`"
            raise InvalidArgumentError("model", f"built as a {kind}", f"a {type(model).__name__}", cure)
        self.stages.scores_pairs = is_pair_model
        if isinstance(model, MemoryModel) and not mails.raw:
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
        return own.make_mails is MemoryTask.make_mails and own.commit is MemoryTask.commit

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
        """Return the embeddings: [C, d_emb] of a batch's candidates, [R, d_emb] of a query; logits of a `PairModel`."""
        model = self._model
        if isinstance(model, PairModel) and isinstance(batch, EventBatch):
            return model.score(updated, batch).float()
        embeddings = model.embed(updated, batch)
        check_result(f"{type(self.model).__name__}.embed", embeddings, (len(batch.root_index), self.embedding_dim))
        if embeddings.dtype == torch.float64:  # as all is that is computed with times
            embeddings = embeddings.float()
        return batch.candidate_values(embeddings) if isinstance(batch, EventBatch) else embeddings

    def make_mails(self, updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the batch writes."""
        return self._model.make_mails(updated, batch)

    def commit(self, update: StateUpdate) -> CommitHandle:
        """Start to write memory and to deliver mails."""
        self.has_committed = True
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
            cure = "take what the first call returns; see 'Your own metrics' in the documentation for what you measure"
            raise InvalidArgumentError("the stages", requirement, "a batch that has been run", cure)
        if batch.sampled_roots not in (None, self.sampled_roots):
            requirement = f"made for a model that reads neighbours of {self.sampled_roots!r} roots"
            cure = (
                "give the Trainer the DataModule, or set data.sampled_roots = task.sampled_roots ahead of its loaders"
            )
            raise InvalidArgumentError("the loader", requirement, f"one for {batch.sampled_roots!r}", cure)
        needed, found = self.num_neighbors, batch.neighbor_mask.shape[1]
        if needed not in (None, found):
            cure = f"set num_neighbors={needed} of the DataModule, or leave it out beside a Trainer"
            raise InvalidArgumentError("num_neighbors", f"{needed}, as {type(self.model).__name__} needs", found, cure)
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
            store.load_state_dict(saved if store.reads_tables else read_tables(saved))
            self._saved_state = None

    def setup(self, stage: str) -> None:
        """Refuse other data, ranks that would each keep a node state of their own, and what float64 times rule out."""
        self._stream_info()  # before a strategy for event streams is suggested
        check_trainer(self.trainer, self._state_store)
        save_whole_checkpoints(self.trainer.strategy)
        if isinstance(self.model, WithoutMemory) and not self.model.in_pretraining:
            cure = "make a new task, with StaticMemory"
            raise InvalidArgumentError("model", "a task with node memory", "one that was pretrained", cure)

    def on_train_start(self) -> None:
        """Continue the random states of the checkpoint, as late as possible before the first step."""
        super().on_train_start()
        self._rate.restart()
        self._evaluation.end(self)
        self.guard.continue_random_states(self.trainer)

    def on_train_batch_start(self, batch: EventBatch, batch_idx: int) -> None:
        """Empty the node state before the first event of an epoch, and where an epoch that was cut short has left it.

        The batch says so, not a hook of the epoch: Lightning skips those when it resumes.
        """
        self.stages.turn = batch_idx
        stands = batch.shared.continues
        if batch.shared.resets or (stands is not None and self.state_store.position != stands):
            self.state_store.reset()
        self.has_committed = False
        self.forget_batch()

    def on_before_backward(self, loss: Tensor) -> None:
        """Refuse an optimizer that computes a batch twice, because the second time node memory already holds the batch.

        Raises:
            InvalidArgumentError: The optimizer computes a batch twice, as LBFGS does.
        """
        if self.automatic_optimization and self.guard.runs_again(self.trainer):
            received = type(self.trainer.optimizers[0]).__name__
            cure = "take torch.optim.Adam, or manual optimization that leaves node memory as it is"
            raise InvalidArgumentError("optimizer", "one that computes a batch once", received, cure)
        super().on_before_backward(loss)

    def is_batch_untouched(self) -> bool:
        """Whether neither weights nor node state have taken in the batch under way."""
        return super().is_batch_untouched() and not self.has_committed

    def on_train_epoch_start(self) -> None:
        """Measure the training epoch by itself."""
        super().on_train_epoch_start()
        self._rate.restart()

    def on_train_batch_end(self, outputs: STEP_OUTPUT, batch: EventBatch, batch_idx: int) -> None:
        """Count the events of all ranks, by this rank's share of its global batch: at an epoch's end nearly all."""
        self.has_trained_weights = True
        self.has_committed = False
        if len(batch):
            self._rate.add(round(len(batch) * self.trainer.world_size / batch.shared.share))
        every = getattr(self.trainer, "log_every_n_steps", 1)
        if every and self.trainer.global_step % every == 0:
            rate, shown = self._rate.per_second(), self.has_progress_bar
            self.log("train/events_per_second", rate, prog_bar=shown, batch_size=len(batch))

    @property
    def logged_names(self) -> Collection[str]:
        """The names of the metrics that a fit logs."""
        return [*super().logged_names, "train/events_per_second"]

    def metric_values(self, metrics: _Metrics) -> dict[str, Tensor]:
        """Return what was measured on a split, by name."""
        raise NotImplementedError

    def forget_batch(self) -> None:
        """Let the stages run on whatever batch comes next."""
        self._latest_batch = None

    def take_in(self, batch: EventBatch) -> None:
        """Change the node state by a batch without scoring it."""
        self.refresh_weights()
        self.commit(self.make_mails(self.apply_mail(self.fetch(batch.nodes).wait()), batch)).wait()

    def on_validation_epoch_start(self) -> None:
        """Continue from the end of training, on a snapshot, with nothing measured."""
        self._forget("val")
        quick = self.trainer.sanity_checking or bool(getattr(self.trainer, "fast_dev_run", False))
        self._evaluation.begin(self, self.trainer.val_dataloaders, catch_up=not quick)

    def on_validation_epoch_end(self) -> None:
        """Log what was measured and put the snapshot back."""
        super().on_validation_epoch_end()
        self._log_metrics("val")
        self._evaluation.end(self)
        self._rate.restart()

    def on_test_epoch_start(self) -> None:
        """Take in the validation split, on a snapshot, with nothing measured."""
        self._forget("test")
        quick = bool(getattr(self.trainer, "fast_dev_run", False))
        self._evaluation.begin(self, self.trainer.test_dataloaders, catch_up=not quick)

    def on_test_epoch_end(self) -> None:
        """Log what was measured and put the snapshot back."""
        self.guard.check_unread()
        self._log_metrics("test")
        self._evaluation.end(self)

    def measured(self, split: str) -> _Metrics | None:
        """Return what the steps on ``"val"`` or ``"test"`` add to; None where they add to nothing."""
        return getattr(self, f"{split}_metrics", None)

    def _forget(self, split: str) -> None:
        if (metrics := self.measured(split)) is not None:
            metrics.reset()

    def _log_metrics(self, split: str) -> None:
        if (metrics := self.measured(split)) is None:
            return
        values = self.metric_values(metrics)
        metrics.reset()
        # They are equal on all ranks already; Lightning asks for it.
        shared = shares_node_state(self.trainer.strategy)
        for name, value in values.items():
            self.log(f"{split}/{name}", value, prog_bar=name == self.figure, sync_dist=shared)

    def on_predict_epoch_start(self) -> None:
        """Take in what came before, on a snapshot."""
        self._evaluation.begin(self, self.trainer.predict_dataloaders, catch_up=True)

    def on_predict_epoch_end(self) -> None:
        """Put the snapshot back."""
        self._evaluation.end(self)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add node state, random states and what the stream looks like."""
        super().on_save_checkpoint(checkpoint)
        assert self.info is not None
        # A checkpoint made in the middle of an evaluation holds what that evaluation will put back.
        state = state_to_save(self.trainer.strategy, self.state_store, self._evaluation.snapshot)
        self.check_saved("node state", on_this_rank(state))
        data = known_data(self.trainer)
        checkpoint[_CHECKPOINT_KEY] = {
            "stream": asdict(self.info),
            "state": state,
            "random": random_states(self.trainer),
            **self.resumption(),
            # What answers from the checkpoint alone need, beside the task's name: how to come by its stream again.
            "data": None if data.recipe is None else dict(data.recipe),
            "global_batch_size": data.batch_size * ranks_per_batch(self.trainer.strategy),
        }

    @content_of(*SAVED)
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the model if need be, and keep node state and random states until they can be used.

        Raises:
            CheckpointError: The checkpoint is of another task or graph or was trained with other settings, or holds no
                node state.
        """
        if _CHECKPOINT_KEY not in checkpoint:
            cure = "give a checkpoint of a lightning_tgnn task"
            raise CheckpointError("checkpoint", "with node state", sorted(checkpoint), cure)
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint[_CHECKPOINT_KEY]
        self.resume_with(checkpoint, saved)
        info = StreamInfo(**saved["stream"])
        if self.model is None:
            self.build(info)
        else:
            if trainer_of(self) is None and self.info is not None:  # from the processes of a fit, which have checked it
                self.info = replace(self.info, features=info.features)
            check_same_stream(info, self.info, resumes=trainer_of(self) is not None and self.trainer.state.fn == "fit")
        self._saved_state, self.guard.random_states = saved["state"], checked_states(saved["random"])
        self._load_saved_state()
