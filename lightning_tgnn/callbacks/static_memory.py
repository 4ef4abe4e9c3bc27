"""Static node memory: rows that are pretrained without node memory, and later runs that take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lightning_tgnn.algorithms.schedules import DataParallel, ShuffledBatches
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, check_bool, check_path
from lightning_tgnn.files.static_memory import (
    CURE,
    FORMAT,
    StaticRows,
    digest,
    load_static_memory,
    save_static_memory,
)
from lightning_tgnn.files.tensors import says_format
from lightning_tgnn.files.whole import check_place
from lightning_tgnn.models import MemoryModel
from lightning_tgnn.models.memory.without_memory import WithoutMemory, static_table
from lightning_tgnn.types import ScheduledLoader, StreamData, StreamInfo, datamodule_of, known_data

_CURE = "give that, or run fit without a checkpoint to train anew"


class StaticMemory(pl.Callback):
    """Gives a task the static node memory of a file (DistTGL, section 3.1), before it is trained.

    The task has to have a static node memory of the same width: ``static_dim``. A resumed run takes the rows from its
    checkpoint and no longer needs the file. A task that has been trained or loaded keeps its rows.

    Args:
        path: What `StaticPretraining` or ``lightning-tgnn pretrain-static`` has written.
        trained: Train the rows further with the task; otherwise they are frozen, also in a later fit of the same task
            without this callback.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    def __init__(self, path: str | Path, trained: bool = False) -> None:
        if not isinstance(trained, bool):
            raise InvalidArgumentError("trained", "True or False", trained, "False keeps the rows as they are")
        self.path, self.trained = check_path("path", path), trained
        self._digest = ""
        self._saved: dict[str, Any] | None = None  # of the checkpoint that is restored

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":  # before an optimizer is made of what is trained
            _table(pl_module).requires_grad_(self.trained)
            self._saved = None

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.ckpt_path is not None:
            self._resume()
            return
        table, held = _table(pl_module), load_static_memory(self.path)
        _check_fits(held, table.weight, trainer)
        self._digest = digest(held.rows)
        _check_same_file(self.path, self._digest, trainer)
        if getattr(pl_module, "has_trained_weights", False):
            self._check_kept(table.weight)
            return
        with torch.no_grad():
            table.weight.copy_(held.rows)
        nodes, width = held.rows.shape
        rank_zero_info(
            f"static node memory of {self.path}: {nodes:,} rows of {width}, "
            f"{'trained on' if self.trained else 'frozen'}; "
            f"zeros for {nodes - held.trained:,} nodes without an event in training"
        )

    def _check_kept(self, rows: Tensor) -> None:
        """Say that a task keeps its rows, and refuse to freeze rows other than the rows of the file.

        Raises:
            InvalidArgumentError: The task would freeze other rows than the file's.
        """
        if self.trained:
            rank_zero_info(
                f"static node memory: the task has been trained and keeps its rows, not the rows of {self.path}"
            )
        elif digest(rows) != self._digest:
            requirement = "of the rows that a task which has been trained has"
            cure = "make a new task, or set trained=True to continue with its own"
            raise InvalidArgumentError("StaticMemory(path=...)", requirement, str(self.path), cure)

    def _resume(self) -> None:
        """Hold what was given against a checkpoint, whose rows are there already.

        Raises:
            CheckpointError: The file has other rows than the checkpoint's run, or ``trained`` differs from its.
        """
        if self._saved is None:
            raise CheckpointError("StaticMemory", "left out, as in the run of the checkpoint", str(self.path), _CURE)
        if self._saved["trained"] != self.trained:
            requirement = f"{self._saved['trained']}, as in the checkpoint"
            raise CheckpointError("StaticMemory(trained=...)", requirement, self.trained, _CURE)
        if self.path.is_file() and digest(load_static_memory(self.path).rows) != self._saved["rows"]:
            requirement = "of the rows that the run of the checkpoint began with"
            raise CheckpointError("StaticMemory(path=...)", requirement, str(self.path), _CURE)
        self._digest = self._saved["rows"]

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._digest, "trained": self.trained}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict


class StaticPretraining(pl.Callback):
    """Trains a task with static node memory in place of node memory, and writes the static node memory to a file.

    Model, loss, neighbours and negatives are the task's own (DistTGL, section 3.1). Only the file is of further use,
    which appears at the end of the fit; the trained task is not. Nodes without an event in the training split have
    zeros in the file. Events of validation and test are not looked at.

    Args:
        path: Where the file is written; a file of an earlier pretraining is replaced.
        shuffle: Train batches in random order, another one in each epoch, as the paper does: without node memory they
            may come in any order. False trains them in the order of time. None is True, but for models whose embeddings
            read the times of the nodes' latest events, such as JODIE.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work. At the start of the fit: no file can be written
            there, or something else would be replaced, the Trainer validates, the task has no static node memory, or
            ``shuffle`` is True with a model or a strategy that needs the order of time.
    """

    def __init__(self, path: str | Path, *, shuffle: bool | None = None) -> None:
        self.path = check_path("path", path)
        check_bool("shuffle", shuffle, usual=None)
        self.shuffle = shuffle

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            requirement = "left out beside validation and test"
            raise InvalidArgumentError("StaticPretraining", requirement, stage, "make a new task, with StaticMemory")
        if trainer.limit_val_batches != 0:
            cure = "set it to 0: what is pretrained must not see these events"
            raise InvalidArgumentError(
                "Trainer(limit_val_batches=...)", "0 in pretraining", trainer.limit_val_batches, cure
            )
        if any(isinstance(callback, StaticMemory) for callback in trainer.callbacks):  # type: ignore[attr-defined]
            cure = "leave StaticMemory out: rows that it has frozen would not be trained"
            raise InvalidArgumentError("StaticPretraining", "without StaticMemory beside it", "both", cure)
        _table(pl_module)
        _training(trainer)
        check_place("path", self.path)
        if self.path.exists() and not says_format(self.path, FORMAT):
            requirement, cure = "a new file, or one of static node memory to replace", "choose another name"
            raise InvalidArgumentError("path", requirement, str(self.path), cure)
        if not isinstance(pl_module.model, WithoutMemory):
            assert isinstance(pl_module.model, MemoryModel)
            pl_module.model = WithoutMemory(pl_module.model, _info(trainer))
        pl_module.model.in_pretraining = True

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loader: object = trainer.train_dataloader
        if self.shuffle is False or not isinstance(loader, ScheduledLoader):
            return
        assert isinstance(pl_module.model, WithoutMemory)
        if pl_module.model.keeps_order or type(loader.schedule) is not DataParallel:
            if self.shuffle:
                requirement = "False with a model that reads when nodes had events, and with batches in turn"
                raise InvalidArgumentError("StaticPretraining(shuffle=...)", requirement, True, "leave it out")
            return
        loader.schedule = ShuffledBatches(loader.schedule.split_batch)

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        loader: object = trainer.train_dataloader
        if isinstance(loader, ScheduledLoader) and isinstance(loader.schedule, ShuffledBatches):
            loader.schedule = DataParallel(loader.schedule.split_batch)
        if isinstance(pl_module.model, WithoutMemory):
            pl_module.model.in_pretraining = False

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # which Lightning then leaves out

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.global_step:
            requirement, cure = "at least one step long, for its rows to be kept", "raise max_epochs or max_steps"
            raise InvalidArgumentError("the pretraining", requirement, "0 steps", cure)
        if trainer.is_global_zero:
            save_static_memory(self.path, self._held(trainer, pl_module))

    def _held(self, trainer: pl.Trainer, task: pl.LightningModule) -> StaticRows:
        info, (train, occurs) = _info(trainer), _training(trainer)
        rows = _table(task).weight.detach().cpu().clone()
        rows[~occurs] = 0
        return StaticRows(rows, int(occurs.sum()), info.fingerprint, digest(train), type(task).__name__)


def _table(task: pl.LightningModule) -> torch.nn.Embedding:
    """Return the static node memory of a task; builds its model if need be.

    Raises:
        InvalidArgumentError: The model has no static node memory.
    """
    task.configure_model()
    model = getattr(task, "model", None)
    return model.table if isinstance(model, WithoutMemory) else static_table(model)


def _info(trainer: pl.Trainer) -> StreamInfo:
    info = known_data(trainer).info
    assert isinstance(info, StreamInfo)  # or the task would have refused
    return info


def _training(trainer: pl.Trainer) -> tuple[Tensor, Tensor]:
    """Return the events of the training split, int64 [E], and which nodes occur in them, bool [N]."""
    data = datamodule_of(trainer)
    if not isinstance(data, StreamData):
        requirement, cure = "one that says what its splits are", "take TemporalDataModule"
        raise InvalidArgumentError("datamodule", requirement, type(data).__name__, cure)
    occurs = torch.zeros(data.store.num_nodes, dtype=torch.bool)
    for ends in (data.store.src, data.store.dst):
        occurs[ends[data.split.train]] = True
    return data.split.train, occurs


def _check_fits(held: StaticRows, table: Tensor, trainer: pl.Trainer) -> None:
    """Refuse rows of another stream, split or width.

    Raises:
        InvalidArgumentError: The rows are of another stream, training split or width.
    """
    for place, what in ((0, "nodes"), (1, "static_dim")):
        ours, theirs = table.shape[place], held.rows.shape[place]
        if ours != theirs:
            cure = CURE if what == "nodes" else f"set static_dim={theirs}, or {CURE}"
            raise InvalidArgumentError(f"{what} of the file in StaticMemory", f"{ours}", theirs, cure)
    if held.fingerprint != _info(trainer).fingerprint:
        raise InvalidArgumentError("path", "static node memory of this stream", "of another stream", CURE)
    if held.training != digest(_training(trainer)[0]):
        cure = f"give the val_ratio, test_ratio and held_out_nodes it was pretrained with, or {CURE}"
        requirement = "static node memory of this training split: others have seen events of validation or test"
        raise InvalidArgumentError("path", requirement, "of another", cure)


def _check_same_file(path: Path, found: str, trainer: pl.Trainer) -> None:
    """Refuse ranks that have read different files.

    Raises:
        InvalidArgumentError: A rank has read another file than the first rank.
    """
    is_same = trainer.strategy.broadcast(found) == found
    if not trainer.strategy.reduce_boolean_decision(is_same):  # all ranks end with the same message
        cure = "copy the file of the first machine to all, or keep it in a folder that they share"
        raise InvalidArgumentError("path", "the same file on all ranks", str(path), cure)
