"""The base of tasks on snapshots: the protocol of a step, the model, metrics and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.compat.modules import trainer_of
from lightning_tgnn.files.checkpoints import save_whole_checkpoints
from lightning_tgnn.files.whole import SAVED, content_of
from lightning_tgnn.models import RECURRENT_MODELS, RecurrentConfig, SnapshotOperators, build_recurrent
from lightning_tgnn.models.recurrent.filters import FILTERS
from lightning_tgnn.tasks.fit_guard import checked_states, random_states
from lightning_tgnn.tasks.orders import embed_group, one_after_another
from lightning_tgnn.tasks.requirements import (
    at_path,
    check_default_dtype,
    check_left_out,
    check_model,
    check_snapshot_model,
    check_snapshot_trainer,
    info_of,
)
from lightning_tgnn.tasks.task import Task
from lightning_tgnn.tasks.training_options import (
    NOT_SAVED,
    LRSchedulerCallable,
    OptimizerCallable,
    ParamGroups,
    TrainingOptions,
)
from lightning_tgnn.tasks.value_checks import check_returned, check_step
from lightning_tgnn.types import (
    Carried,
    GroupOrder,
    Operators,
    Snapshot,
    SnapshotBatch,
    SnapshotGroup,
    SnapshotInfo,
    SnapshotModel,
)


class SplitMetrics(Protocol):
    """The metrics of a split, a module."""

    @property
    def update(self) -> Callable[..., object]:
        """Adds a batch."""
        ...

    def compute(self) -> dict[str, Tensor]:
        """Return the metrics by name."""
        ...

    def reset(self) -> object:
        """Forget all batches."""
        ...


_CHECKPOINT_KEY = "lightning_tgnn"


class SnapshotModule(Task):
    """Trains a model on groups of snapshots. Subclasses define what is predicted from the embeddings after a group.

    A group is a snapshot and the ones before it. The model steps from its first snapshot to its last, and the loss is a
    mean over the group's targets. The loss of an update is the mean over its groups, logged as ``train/loss``. For the
    training of the weights, ``lr`` to ``capture``, see `TrainingOptions`.

    Args:
        model: ``"wd_gcn"``, ``"tgcn"``, ``"evolvegcn_o"``, ``"evolvegcn_h"``, or what builds a `SnapshotModel` for a
            `SnapshotInfo`, for example its class, or the import path of the class. It is a module with an attribute
            ``embedding_dim``. The six arguments ``hidden_dim`` to ``skip_unread`` configure the built-in models. Leave
            them out with a model of your own.
        hidden_dim: Width of every layer.
        num_layers: At least 1; `SnapshotDataModule` takes it from here.
        convolution: ``"gcn"``, ``"chebyshev"``, ``"rgcn"``, or what builds a module of two widths, for example the
            class of a layer of `torch_geometric.nn` or `dgl.nn`, see `OwnConvolution`.
        chebyshev_order: The degree of the last Chebyshev polynomial.
        cell: For WD-GCN, in place of `torch.nn.LSTMCell`: builds a recurrent cell of two widths, see `RecurrentCell`.
        skip_unread: For EvolveGCN: leave out convolutions whose result nothing reads.
        reuse: Keep the first layer's product of a snapshot with its features, see `SnapshotOperators`. It helps where
            all vertices are trained at once.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    figure: ClassVar[str]
    """The name of what the progress bar shows of `metric_values`."""

    file_may_name: ClassVar[Mapping[str, Collection[str]]] = {
        "model": RECURRENT_MODELS,
        "convolution": FILTERS,
        "cell": (),
    }
    _rows: int | None = None  # of the group under way
    val_metrics: SplitMetrics
    test_metrics: SplitMetrics

    def __init__(
        self,
        model: str | Callable[[SnapshotInfo], nn.Module] = "wd_gcn",
        hidden_dim: int = 64,
        num_layers: int = 2,
        convolution: str | Callable[[int, int], nn.Module] = "gcn",
        lr: float = 0.01,
        weight_decay: float = 0.0,
        *,
        chebyshev_order: int = 2,
        cell: str | Callable[[int, int], nn.Module] | None = None,
        skip_unread: bool = True,
        reuse: bool = True,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_config: Mapping[str, Any] | None = None,
        lr_scaling: str = "none",
        param_groups: ParamGroups | None = None,
        detect_nan: bool = True,
        capture: str = "off",
    ) -> None:
        training = TrainingOptions.among(locals())
        super().__init__(training)
        self._built_by = at_path("model", model)
        self.num_layers = num_layers if isinstance(self._built_by, str) else None  # which the DataModule asks for
        check_model(self._built_by, RECURRENT_MODELS, "a SnapshotModel")
        self.config = RecurrentConfig(
            hidden_dim=hidden_dim,
            num_layers=num_layers,
            convolution=at_path("convolution", convolution),
            chebyshev_order=chebyshev_order,
            cell=at_path("cell", cell),  # type: ignore[arg-type]
            skip_unread=skip_unread,
        )
        left_out = () if isinstance(self._built_by, str) else check_left_out(SnapshotModule, **vars(self.config))
        self.save_hyperparameters(ignore=(*NOT_SAVED, *left_out))
        # A strategy may put others in their places.
        self.group_order: GroupOrder = one_after_another
        self.operators: Operators = SnapshotOperators(self.stages, reuse=reuse)
        self.info: SnapshotInfo | None = None
        self.model: nn.Module | None = None

    def build_head(self, info: SnapshotInfo, embedding_dim: int) -> None:
        """Create what turns embeddings into answers, and the metrics ``val_metrics`` and ``test_metrics``.

        Raises:
            InvalidArgumentError: The snapshots lack what the task needs.
        """
        raise NotImplementedError

    def loss(self, embeddings: Tensor, group: SnapshotGroup) -> Tensor:
        """Return the mean loss over a group's targets; 0, with a gradient of 0, if there are none."""
        raise NotImplementedError

    def measure(self, metrics: SplitMetrics, embeddings: Tensor, group: SnapshotGroup) -> None:
        """Score a group's targets and add them to metrics."""
        raise NotImplementedError

    def metric_values(self, metrics: SplitMetrics) -> dict[str, Tensor]:
        """Return what was measured on a split, by name."""
        return metrics.compute()

    @property
    def default_group_order(self) -> GroupOrder:
        """All groups of a batch in one process, one after the other."""
        return one_after_another

    def start(self, group: SnapshotGroup) -> Carried:
        """Return what is carried into a group's first snapshot; the steps that follow are of this group."""
        self._rows = len(group.nodes)
        self.refresh_weights()
        return cast(SnapshotModel, self.model).start(self._rows)

    def step(self, snapshot: Snapshot, carried: Carried, *, last: bool) -> tuple[Carried, Tensor | None]:
        """Return what is carried on, and the embeddings if it is the last snapshot of its group.

        Raises:
            InvalidArgumentError: The snapshot has another number of layers than the built-in model, or a model returns
                something else than it has to.
        """
        if isinstance(self._built_by, str) and len(snapshot.layers) != (own := self.config.num_layers):
            cure = "set it so, or leave it out of SnapshotDataModule, which takes the value of the task"
            raise InvalidArgumentError("num_layers", f"{len(snapshot.layers)}, as of the snapshots", own, cure)
        model = cast(SnapshotModel, self.model)
        carried, embeddings = check_step(model.step(snapshot, carried, self.operators, last=last))
        if last and self._rows is not None:
            cure = "let its `step` return embedding_dim numbers for each of the rows that `start` was called with"
            check_returned(embeddings, (self._rows, model.embedding_dim), cure)
        return carried, embeddings

    def embed_group(self, group: SnapshotGroup) -> Tensor:
        """Return the embeddings [m, d] after the last snapshot of a whole group; all vertices are captured."""
        embed = partial(embed_group, self, group)
        if self.info is None or len(group.nodes) < self.info.num_nodes:  # sampled for this batch
            return embed()
        return self.stage_capture.whole("group", tuple(map(id, group.snapshots)), self, embed, holds=lambda: group)

    def setup(self, stage: str) -> None:
        """Refuse a precision that turns all of a batch into another one, and ranks that would train the same."""
        check_snapshot_trainer(self.trainer, self.hparams.get("model"))
        save_whole_checkpoints(self.trainer.strategy)

    def configure_model(self) -> None:
        """Build the model for the snapshots of the DataModule, once.

        Raises:
            InvalidArgumentError: The Trainer has no DataModule of snapshots.
            CheckpointError: The model has been built for other snapshots.
        """
        if trainer_of(self) is None:
            return  # `load_from_checkpoint` asks before it hands out the checkpoint, which describes the snapshots
        info = info_of(self.trainer, SnapshotInfo, "SnapshotDataModule", is_built=self.model is not None)
        if info is not None:
            self._build_for(info, "model or checkpoint")

    def _build_for(self, info: SnapshotInfo, what: str) -> None:
        if self.model is None:
            with torch.device("cpu"):  # a seed draws the same weights for every device
                self.build(info)
            self.copy_for_averages()
        elif info != self.info:
            cure = "give the snapshots that the model was trained on, or train a new model"
            raise CheckpointError(what, f"of these snapshots ({info})", self.info, cure)

    def build(self, info: SnapshotInfo) -> None:
        """Build model, head and metrics for a sequence of snapshots.

        Raises:
            InvalidArgumentError: The task or the model cannot be trained on them.
        """
        check_default_dtype()
        made = self._built_by
        model = build_recurrent(made, self.config, info) if isinstance(made, str) else made(info)
        check_snapshot_model(model)
        self.build_head(info, int(model.embedding_dim))  # type: ignore[arg-type]
        self.info, self.model = info, model

    def on_train_start(self) -> None:
        """Continue the random states of the checkpoint."""
        super().on_train_start()
        self.guard.continue_random_states(self.trainer)

    def on_train_batch_start(self, batch: SnapshotBatch, batch_idx: int) -> None:
        """Number the turn."""
        self.stages.turn = batch_idx

    def training_step(self, batch: SnapshotBatch, batch_idx: int) -> Tensor:
        """Return the loss of the rank's groups in the order that a strategy may have given."""
        loss = self.group_order(self, batch)
        # Of all ranks: where two share a group, only the one that ends it knows its loss.
        update_loss = self.trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")
        self.log("train/loss", update_loss, prog_bar=self.has_progress_bar, batch_size=max(len(batch), 1))
        self.has_trained_weights = True
        return loss

    def validation_step(self, batch: SnapshotBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score groups of the validation split."""
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: SnapshotBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score groups of the test split."""
        self._evaluate(batch, self.test_metrics)

    def _evaluate(self, batch: SnapshotBatch, metrics: SplitMetrics) -> None:
        for group in batch.groups:
            self.measure(metrics, self.stages.embedded(group, self.embed_group(group)), group)

    def measured(self, split: str) -> SplitMetrics:
        """Return what the steps on ``"val"`` or ``"test"`` add to."""
        return getattr(self, f"{split}_metrics")

    def on_validation_epoch_end(self) -> None:
        """Log the metrics over all ranks."""
        super().on_validation_epoch_end()
        self._report("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics over all ranks."""
        self.guard.check_unread()
        self._report("test")

    def _report(self, split: str) -> None:
        metrics = self.measured(split)
        for name, value in self.metric_values(metrics).items():
            self.log(f"{split}/{name}", value, prog_bar=name == self.figure, sync_dist=True)
        metrics.reset()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add random states and what the snapshots look like."""
        super().on_save_checkpoint(checkpoint)
        assert self.info is not None
        saved = {"snapshots": asdict(self.info), "random": random_states(self.trainer)}
        checkpoint[_CHECKPOINT_KEY] = {**saved, **self.resumption()}

    @content_of(*SAVED)
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the model if need be, and keep the random states until they can be used.

        Raises:
            CheckpointError: The checkpoint is of another task or other snapshots, or was trained with other settings.
        """
        saved = checkpoint.get(_CHECKPOINT_KEY, {})
        if "snapshots" not in saved:
            cure = f"give a checkpoint of {type(self).__name__}"
            raise CheckpointError("checkpoint", "of snapshots", sorted(checkpoint), cure)
        super().on_load_checkpoint(checkpoint)
        self.resume_with(checkpoint, saved)
        self._build_for(SnapshotInfo(**saved["snapshots"]), "checkpoint")
        self.guard.random_states = checked_states(saved["random"])
