"""The base of tasks on memory-based temporal GNNs: the protocol of a run, and its checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor, nn

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, refusal
from lightning_tgnn.compat.modules import trainer_of
from lightning_tgnn.files.checkpoints import save_whole_checkpoints
from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.models import ModelConfig
from lightning_tgnn.models.memory.without_memory import WithoutMemory
from lightning_tgnn.tasks.optimization import LRSchedulerCallable, OptimizerCallable, ParamGroups
from lightning_tgnn.tasks.requirements import check_trainer
from lightning_tgnn.tasks.same_graph import check_same_stream
from lightning_tgnn.tasks.staged_task import StagedTask
from lightning_tgnn.tasks.states_of_ranks import checked_states, random_states
from lightning_tgnn.types import (
    BatchedData,
    CatchUpLoader,
    EventBatch,
    NamedData,
    StateSnapshot,
    StreamInfo,
    datamodule_of,
    on_this_rank,
    only_one,
    ranks_per_batch,
    shares_node_state,
    state_to_save,
)

_STEPS = 50
_CHECKPOINT_KEY = "lightning_tgnn"


class Measures(Protocol):
    """What the steps of an evaluation add to."""

    def reset(self) -> object:
        """Forget what was measured."""
        ...


_Metrics = TypeVar("_Metrics", bound=Measures)


class MemoryTask(StagedTask, Generic[_Metrics]):
    """Trains a memory-based temporal GNN by the protocol below. Subclasses define head, steps and figures.

    Node state is empty at the start of each training epoch. Validation continues from the end of training on a snapshot
    of the state, which is put back afterwards. The sanity check leaves no trace. Test takes in the validation split
    first. Checkpoints hold the node state and the random states, so that a resumed run continues exactly. For the
    training of the weights, ``lr`` to ``detect_nan``, see `OptimizedTask`.

    Args:
        model: ``"tgn"``, ``"jodie"``, ``"apan"``, or what builds a `MemoryModel` for a stream.
        config: Widths and rates of a built-in model.
        message: Makes the messages of a built-in model, see `Mails`.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    draws_negatives = True
    """Whether the batches have to carry negatives."""

    figure = ""
    """The name of what the progress bar shows of `figures`."""

    val_metrics: _Metrics
    """What the validation steps add to, with ``reset``; `figures` makes figures of it; left out where steps do."""

    test_metrics: _Metrics
    """The same of the test steps."""

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
            model,
            config,
            message=message,
            lr=lr,
            weight_decay=weight_decay,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            lr_scheduler_config=lr_scheduler_config,
            lr_scaling=lr_scaling,
            param_groups=param_groups,
            detect_nan=detect_nan,
        )
        self._snapshot: StateSnapshot | None = None
        self._rate = EventRate()

    def setup(self, stage: str) -> None:
        """Refuse other data, ranks that would each keep a node state of their own, and what float64 times rule out."""
        self._stream_info()  # before a strategy for event streams is suggested
        check_trainer(self.trainer, self._state_store)
        save_whole_checkpoints(self.trainer.strategy)
        if isinstance(self.model, WithoutMemory) and not self.model.in_pretraining:
            cure = "make a new task, with StaticMemory"
            raise InvalidArgumentError(refusal("model", "a task with node memory", "one that was pretrained", cure))

    def on_train_start(self) -> None:
        """Continue the random states of the checkpoint, as late as possible before the first step."""
        super().on_train_start()
        self._rate.restart()
        self._abandon_evaluation()
        self._continue_random_states()

    def on_train_batch_start(self, batch: EventBatch, batch_idx: int) -> None:
        """Empty the node state before the first event of an epoch, and where an epoch that was cut short has left it.

        The batch says so, not a hook of the epoch: Lightning skips those when it resumes.
        """
        self.stages.turn = batch_idx
        stands = batch.shared.continues
        if batch.shared.resets or (stands is not None and self.state_store.position != stands):
            self.state_store.reset()
        self._has_committed, self._latest_batch = False, None

    def on_before_backward(self, loss: Tensor) -> None:
        """Refuse an optimizer that computes a batch twice, because the second time node memory already holds the batch.

        Raises:
            InvalidArgumentError: The optimizer computes a batch twice, as LBFGS does.
        """
        if self.automatic_optimization and self._backward_in == self.trainer.fit_loop.total_batch_idx:
            received = type(self.trainer.optimizers[0]).__name__
            cure = "take torch.optim.Adam, or manual optimization that leaves node memory as it is"
            raise InvalidArgumentError(refusal("optimizer", "one that computes a batch once", received, cure))
        super().on_before_backward(loss)

    def is_batch_untouched(self) -> bool:
        """Whether neither weights nor node state have taken in the batch under way."""
        return super().is_batch_untouched() and not self._has_committed

    def on_train_epoch_start(self) -> None:
        """Measure the training epoch by itself."""
        self._rate.restart()

    def on_train_batch_end(self, outputs: STEP_OUTPUT, batch: EventBatch, batch_idx: int) -> None:
        """Count the events of all ranks, by this rank's share of its global batch: at an epoch's end nearly all."""
        self.has_trained_weights = True
        self._has_committed = False
        if len(batch):
            self._rate.add(round(len(batch) * self.trainer.world_size / batch.shared.share))
        every = getattr(self.trainer, "log_every_n_steps", 1)
        if every and self.trainer.global_step % every == 0:
            self.log(
                "train/events_per_second",
                self._rate.per_second(),
                prog_bar=self.has_progress_bar,
                batch_size=len(batch),
            )

    @property
    def logged_names(self) -> Collection[str]:
        """The names of the metrics that a fit logs."""
        return [*super().logged_names, "train/events_per_second"]

    def figures(self, metrics: _Metrics) -> dict[str, Tensor]:
        """Return what was measured on a split, by name."""
        raise NotImplementedError

    def _abandon_evaluation(self) -> None:
        """Put back what an evaluation that broke off has left."""
        if self._snapshot is not None:
            self._end_evaluation()

    def _begin_evaluation(self, loaders: object, *, catch_up: bool) -> None:
        self._abandon_evaluation()
        loader = only_one(loaders)
        if loader is not None and not isinstance(loader, CatchUpLoader):
            cure = "give that of a TemporalDataModule"
            raise InvalidArgumentError(refusal("dataloaders", "a loader of events", type(loader).__name__, cure))
        self._snapshot, self._latest_batch = self.state_store.snapshot(), None
        if catch_up:
            assert loader is not None
            self._catch_up(loader)

    def _catch_up(self, loader: CatchUpLoader) -> None:
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
        self.refresh_weights()
        self.commit(self.make_mails(self.apply_mail(self.fetch(batch.nodes).wait()), batch)).wait()

    def _end_evaluation(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            self.state_store.restore(snapshot)

    def on_validation_epoch_start(self) -> None:
        """Continue from the end of training, on a snapshot, with nothing measured."""
        self._forget("val")
        quick = self.trainer.sanity_checking or bool(getattr(self.trainer, "fast_dev_run", False))
        self._begin_evaluation(self.trainer.val_dataloaders, catch_up=not quick)

    def on_validation_epoch_end(self) -> None:
        """Log what was measured and put the snapshot back."""
        super().on_validation_epoch_end()
        self._log_figures("val")
        self._end_evaluation()
        self._rate.restart()

    def on_test_epoch_start(self) -> None:
        """Take in the validation split, on a snapshot, with nothing measured."""
        self._forget("test")
        quick = bool(getattr(self.trainer, "fast_dev_run", False))
        self._begin_evaluation(self.trainer.test_dataloaders, catch_up=not quick)

    def on_test_epoch_end(self) -> None:
        """Log what was measured and put the snapshot back."""
        self._log_figures("test")
        self._end_evaluation()

    def measured(self, split: str) -> _Metrics | None:
        """Return what the steps on ``"val"`` or ``"test"`` add to; None where they add to nothing."""
        return getattr(self, f"{split}_metrics", None)

    def _forget(self, split: str) -> None:
        if (metrics := self.measured(split)) is not None:
            metrics.reset()

    def _log_figures(self, split: str) -> None:
        if (metrics := self.measured(split)) is None:
            return
        figures = self.figures(metrics)
        metrics.reset()
        # They are equal on all ranks already; Lightning wants to be told so.
        shared = shares_node_state(self.trainer.strategy)
        for name, value in figures.items():
            self.log(f"{split}/{name}", value, prog_bar=name == self.figure, sync_dist=shared)

    def on_predict_epoch_start(self) -> None:
        """Take in what came before, on a snapshot."""
        self._begin_evaluation(self.trainer.predict_dataloaders, catch_up=True)

    def on_predict_epoch_end(self) -> None:
        """Put the snapshot back."""
        self._end_evaluation()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add node state, random states and what the stream looks like."""
        super().on_save_checkpoint(checkpoint)
        assert self.info is not None
        # A checkpoint made in the middle of an evaluation holds what that evaluation will put back.
        state = state_to_save(self.trainer.strategy, self.state_store, self._snapshot)
        self.check_saved("node state", on_this_rank(state))
        data = datamodule_of(self.trainer)
        batch_size = data.batch_size if isinstance(data, BatchedData) else 0
        checkpoint[_CHECKPOINT_KEY] = {
            "stream": asdict(self.info),
            "state": state,
            "random": random_states(self.trainer),
            **self.resumption(),
            # What answers from the checkpoint alone need, beside the task's name: how to come by its stream again.
            "data": dict(data.recipe) if isinstance(data, NamedData) else None,
            "global_batch_size": batch_size * ranks_per_batch(self.trainer.strategy),
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
            raise CheckpointError(refusal("checkpoint", "with node state", sorted(checkpoint), cure))
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
        self._saved_state, self._saved_random = saved["state"], checked_states(saved["random"])
        self._load_saved_state()


class EventRate:
    """Events per second over the latest steps since the clock was restarted."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=_STEPS + 1)
        self.restart()

    def restart(self) -> None:
        """Forget what was counted; what took time until now does not count."""
        self._marks.clear()
        self._marks.append((perf_counter(), 0))

    def add(self, events: int) -> None:
        """Count a step that has just ended."""
        self._marks.append((perf_counter(), self._marks[-1][1] + events))

    def per_second(self) -> float:
        """Return the rate; 0 before the first step."""
        (first_time, first), (last_time, last) = self._marks[0], self._marks[-1]
        return (last - first) / (last_time - first_time) if last > first else 0.0
