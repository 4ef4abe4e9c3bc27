"""The base of all tasks: it trains its weights, resumes exactly, and comes back from a checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import currentframe
from pathlib import Path
from types import FrameType
from typing import IO, Any, ClassVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim import Optimizer
from typing_extensions import Self, override

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, check_global_batch_size
from lightning_tgnn.compat.modules import MapLocation, Module, restricted_classmethod, trainer_of
from lightning_tgnn.files.checkpoints import WholeCheckpointIO, where_it_was
from lightning_tgnn.files.runs import carry_best
from lightning_tgnn.metrics.classification import metric_names
from lightning_tgnn.tasks.capture import RECORDERS, StageCapture
from lightning_tgnn.tasks.fit_guard import FitGuard, has_loss_scale
from lightning_tgnn.tasks.restoring import (
    ARGUMENTS_BEFORE,
    BEFORE,
    CURE,
    HYPER_PARAMETERS,
    check_same,
    check_same_data,
    differing,
    kinds_below,
    load_weights,
    read_hyperparameters,
    readable,
    task_again,
    task_name,
    with_compiler,
    without_compiler,
)
from lightning_tgnn.tasks.training_options import TrainingOptions
from lightning_tgnn.tasks.value_checks import check_finite
from lightning_tgnn.types import (
    EventBatch,
    SnapshotBatch,
    Stages,
    Subgraph,
    known_data,
    only_one,
    ranks_per_batch,
)


class Task(Module):
    """A task whose fits resume exactly, and end where a loss or a weight is not finite.

    Its checkpoints choose nothing that runs code, see `lightning_tgnn.trust`, and say what they were trained with; what
    contradicts them is refused by name. Settings of `may_change` are taken as they are given now, and so are the
    options of the optimizer. All other arguments of the task, and the arguments of the DataModule that it names in
    ``fixed_settings``, have to be as they were.

    Args:
        training: How its weights are trained: the values of the arguments that follow, which every task has.
        lr: Learning rate of Adam.
        weight_decay: Of Adam.
        optimizer: Makes another optimizer from the parameters, or from their groups, such as ``torch.optim.AdamW`` or a
            `functools.partial` of it, with which ``lr`` and ``weight_decay`` are not used; None takes Adam.
        lr_scheduler: Makes the schedule of the learning rate from the optimizer, or Lightning's dictionary of one. An
            argument ``total_steps`` that is not set yet, `OneCycleLR` has it, gets the number of optimizer steps of
            the whole run. A schedule with such an argument advances with every step.
        lr_scheduler_config: ``interval`` (``"epoch"`` or ``"step"``), ``frequency``, ``monitor``, ``strict`` and
            ``name``, as in Lightning's ``lr_scheduler_config``.
        param_groups: Settings of the optimizer for some of the parameters: by a pattern of their names, such as
            ``{"*.bias": {"weight_decay": 0.0}}``, the first that fits, or by a function of name and parameter.
        lr_scaling: By what all learning rates, including the schedule's, are multiplied where n batches are trained at
            once, by ranks that share a batch or take turns: ``"none"``, ``"sqrt"`` of n, or ``"linear"``, n itself; see
            `batches_at_once`.
        detect_nan: End the run, on all ranks, where a loss, weight or score is not finite, and write no checkpoint any
            more. The loss is looked at in every batch, weights and gradients in every 50th, in a batch whose loss is
            not finite, and before they are saved; weights at the end of an epoch, too. Under ``precision="16-mixed"``
            gradients are left to the loss scale.
        capture: ``"auto"`` replays the stages of a step as CUDA graphs, recorded once for each size of padded batches
            (``TemporalDataModule(pad="auto")``); a stage that no graph can hold runs as it does without, and the log
            says why. ``"off"`` captures none. It has not been run on a GPU yet, and has no effect elsewhere.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.

    Attributes:
        has_trained_weights: Whether the weights have been trained here, or loaded.
        guard: Where its fit stands.
        stages: Tells listeners when its stages begin and end.
        stage_capture: Its captured stages.
    """

    file_may_name: ClassVar[Mapping[str, Collection[str]]] = {}
    """Arguments that stand for classes or go to them: the strings that a file may hold there. Others are refused."""

    may_change: ClassVar[frozenset[str]] = frozenset(
        {"lr", "lr_scaling", "weight_decay", "dropout", "detect_nan", "capture"}
    )
    """Arguments that may differ from those in the checkpoint."""

    def __init__(self, training: TrainingOptions) -> None:
        super().__init__()
        self.register_state_dict_post_hook(without_compiler)
        self.register_load_state_dict_pre_hook(with_compiler)
        self.register_load_state_dict_post_hook(_note_loaded_weights)
        self.optimization, self.detect_nan = training, training.detect_nan
        self.lr, self.weight_decay = training.lr, training.weight_decay
        self.guard = FitGuard()
        self.stage_capture = StageCapture()
        self.stages = Stages()
        self.has_trained_weights = False
        self._trained_with: Mapping[str, Any] | None = None  # settings of the DataModule

    def save_hyperparameters(
        self,
        *args: object,
        ignore: Sequence[str] | str | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Save arguments as Lightning does, and of a class or function its path: checkpoints hold plain values only.

        Numbers, text and containers of other libraries become Python's own.

        Raises:
            InvalidArgumentError: An argument is no plain value, so that no reader of a checkpoint would take it.
        """
        current = currentframe()
        frame = frame or (current and current.f_back)
        super().save_hyperparameters(*args, ignore=ignore, frame=frame, logger=logger)
        for name, value in self.hparams.items():
            self.hparams[name] = readable(f"{type(self).__name__}({name}=...)", value)
        self.keep_hyperparameters()

    @override
    @restricted_classmethod
    def load_from_checkpoint(
        cls,  # noqa: N805
        checkpoint_path: str | Path | IO,
        map_location: MapLocation = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        *,
        trust: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Return the task of a checkpoint, with its weights.

        Neither the reading nor what the file names runs code: it holds tensors and plain values, and its
        hyperparameters may name the layers and models of `lightning_tgnn.trust` and of ``file_may_name`` only.

        Args:
            checkpoint_path: A path, an address, or an open file.
            map_location: As for `torch.load`; None puts weights where they were, if there is such a device.
            hparams_file: Hyperparameters to take in place of the file's, ``.yaml`` or ``.csv``; they may name as much.
            strict: Whether the names of the weights have to equal the task's names; None asks its ``strict_loading``.
            weights_only: False reads objects of other classes too, which runs code of the file's choosing.
            trust: Import and call what the hyperparameters name, as LightningCLI does.
            **kwargs: Arguments of the task in place of the file's, such as ``layer=MyLayer``.

        Raises:
            CheckpointError: The file is damaged, of another task or graph, or names what it may not.
        """
        checkpoint = WholeCheckpointIO().load_checkpoint(checkpoint_path, map_location or where_it_was, weights_only)
        saved = (
            checkpoint.get(HYPER_PARAMETERS, {}) if hparams_file is None else read_hyperparameters(str(hparams_file))
        )
        file = checkpoint_path if hparams_file is None else hparams_file
        task = task_again(cls, saved, given=kwargs, file=file, trust=trust)
        task.configure_model()
        task.on_load_checkpoint(checkpoint)
        weights = load_weights(task, checkpoint, checkpoint_path, strict)
        devices = {weight.device for weight in weights.values() if hasattr(weight, "device")}
        return task.to(devices.pop()) if len(devices) == 1 else task

    @property
    def has_progress_bar(self) -> bool:
        """Whether something shows metrics: Lightning makes numbers of them in every step, and so waits for a GPU."""
        trainer = trainer_of(self)  # None in a loop of one's own
        return trainer is not None and trainer.progress_bar_callback is not None

    @override
    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Return the parameters, as `torch.nn.Module` does; the model's are there once it is built.

        Raises:
            InvalidArgumentError: An optimizer is made of them before the model is built, as `LightningCLI` makes one
                for ``--optimizer``: it would train none of the model's.
        """
        known = super().parameters(recurse)
        return (
            known if getattr(self, "model", self) is not None else _before_there_is_a_model(type(self).__name__, known)
        )

    def single_batch(self, batch: object) -> object:
        """Return the batch of a collection of one, as Lightning makes of a list or dict of loaders.

        Raises:
            InvalidArgumentError: The collection has several.
        """
        single = only_one(batch)
        if isinstance(single, (list, tuple, dict)) and len(single) > 1 and _is_collection(single):
            cure = "give one loader, and fit again with the next; the DataModule has one for each split"
            raise InvalidArgumentError("train_dataloaders", "one loader", f"{len(single)} batches at once", cure)
        return single

    def refresh_weights(self) -> None:
        """Make pruned and normalized weights anew: stages read weights of modules that they do not call."""
        for module in self.modules():
            for hook in module._forward_pre_hooks.values():
                if isinstance(hook, BasePruningMethod | SpectralNorm | WeightNorm):
                    hook(module, ())

    def copy_for_averages(self) -> None:
        """Let `StochasticWeightAveraging` copy the model now that it has been built; its own look came before that."""
        for callback in () if trainer_of(self) is None else self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, StochasticWeightAveraging):
                callback.setup(self.trainer, self, "fit")

    def configure_callbacks(self) -> Sequence[pl.Callback] | pl.Callback:
        """Add none, and let callbacks of the Trainer save a run that breaks off only where it has trained something.

        Lightning calls this before it sets up a run, whose refusals come next.
        """
        self.guard.configure(self.trainer)
        return super().configure_callbacks()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return what the arguments say: Adam without a schedule by default."""
        return self.optimization.configure(self, torch.optim.Adam, self.lr, self.weight_decay)

    @property
    def logged_names(self) -> Collection[str]:
        """The names of the metrics that a fit logs; empty where nobody knows."""
        metrics = getattr(self, "val_metrics", None)
        measured = () if metrics is None else metric_names(metrics, getattr(self, "figure", ""))
        return ["train/loss", *(f"val/{name}" for name in measured)]

    def on_fit_start(self) -> None:
        """Forget how an earlier fit ended."""
        self.guard.begin_fit(self)

    def on_train_start(self) -> None:
        """Go on where the checkpoint says."""
        self.guard.begin_training(self)
        self._trained_with = self._data_settings() or None

    def on_train_end(self) -> None:
        """Save for SLURM what it has asked for in the last batch or validation."""
        self.guard.end_training()

    def on_validation_start(self) -> None:
        """Refuse several loaders, and outside of a fit other splits or neighbours than in training.

        Raises:
            InvalidArgumentError: There are several loaders, or a setting of the DataModule differs from the training's.
        """
        doing = self.trainer.state.fn
        loaders = (self.trainer.val_dataloaders, self.trainer.test_dataloaders, self.trainer.predict_dataloaders)
        for given in map(only_one, loaders):
            count = len(given) if isinstance(given, (list, tuple, dict)) else 1
            if count > 1:
                cure = "evaluate one split after the other; the DataModule has a loader for each"
                raise InvalidArgumentError("dataloaders", "one loader", f"{count} loaders", cure)
        if doing is None or doing == "fit":
            return
        if not self.has_trained_weights:
            rank_zero_warn(
                f"{doing.value} takes untrained weights: this task has not been trained, nor loaded from a checkpoint;"
                " call trainer.fit first, or give ckpt_path"
            )
        data, before = known_data(self.trainer), self._trained_with
        if before is None:
            return
        settings = data.fixed_settings(training=False)
        for name in differing(before, settings):
            argument, cure = f"{type(data).__name__}({name}=...)", "give that, or train a new task"
            raise InvalidArgumentError(argument, f"{before[name]!r}, as in training", settings[name], cure)

    on_test_start = on_predict_start = on_validation_start

    def on_validation_epoch_end(self) -> None:
        """Note that this validation is over."""
        self.guard.check_unread()
        self.stage_capture.look_again()
        self.guard.progress.note_validation(self.trainer)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], object] | None = None,
    ) -> None:
        """Make a step, as Lightning does.

        Raises:
            NotFiniteError: The learning rate is larger than a weight can be.
        """
        try:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            raise self.guard.refuse_rates(self.trainer) from error

    def on_before_backward(self, loss: Tensor) -> None:
        """Keep the loss until its gradients are there."""
        self.guard.before_backward(self.trainer, loss)

    def on_after_backward(self) -> None:
        """Refuse a loss that is not finite; in some batches weights and gradients, too.

        Raises:
            NotFiniteError: The loss, a weight or a gradient is NaN or infinite.
        """
        self.guard.after_backward(self)

    def on_train_epoch_start(self) -> None:
        """Have captured stages look for weights that a callback has replaced."""
        self.stage_capture.look_again()

    def teardown(self, stage: str) -> None:
        """Free the captured stages."""
        self.stage_capture.forget()

    @property
    def captures(self) -> bool:
        """Whether stages are captured, on the device where the weights are."""
        return self.optimization.capture != "off" and self.device.type in RECORDERS

    def on_train_epoch_end(self) -> None:
        """Refuse a weight that is not finite, of the last batches, too.

        Raises:
            NotFiniteError: A weight is NaN or infinite.
        """
        self.guard.check_weights(self)

    def check_scores(self, *scores: Tensor) -> None:
        """Refuse scores of an evaluation that are not finite.

        Raises:
            NotFiniteError: A score is NaN or infinite.
        """
        if self.detect_nan:
            split = "test" if self.trainer.testing else "validation"
            self.guard.check_scores(f"scores of the {split}", *scores)

    def check_saved(self, what: str, values: Mapping[str, object]) -> None:
        """Refuse tensors of a checkpoint that are not finite.

        Raises:
            NotFiniteError: A tensor is NaN or infinite.
        """
        if self.detect_nan:
            self.guard.end_on_fault(check_finite, what, values.items())

    def check_saved_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Refuse gradients of a checkpoint that are not finite; all ranks have to hold the same.

        Raises:
            NotFiniteError: A gradient is NaN or infinite.
        """
        if not has_loss_scale(self.trainer):
            self.check_saved("gradient", gradients)

    def has_work_to_save(self) -> bool:
        """Whether this is a fit that has trained a batch, and nothing in it is known to be not finite."""
        return self.guard.has_work_to_save(self.trainer)

    def is_batch_untouched(self) -> bool:
        """Whether the batch under way, if there is one, has changed nothing yet that a checkpoint holds."""
        return not self.guard.runs_again(self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add where the fit stands, unless there is something in it that is not finite.

        Raises:
            NotFiniteError: A weight or a gradient is NaN or infinite, or a value was when training ended.
        """
        self.guard.save(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over where the fit stood.

        Raises:
            InvalidArgumentError: A callback would search for a rate or size first.
        """
        self.guard.load(self, checkpoint)

    def _data_settings(self) -> dict[str, Any]:
        return dict(known_data(self.trainer).fixed_settings(training=True))

    def resumption(self) -> dict[str, Any]:
        """Return what a checkpoint holds for `resume_with`, plain values all."""
        return {
            "task": task_name(type(self)),
            "settings": self._data_settings(),
            "optimizers": self.guard.optimizers,
        }

    def resume_with(self, checkpoint: dict[str, Any], saved: dict[str, Any]) -> None:
        """Go on with a checkpoint.

        Args:
            checkpoint: About to be restored.
            saved: `resumption` of the task that has saved it; of an earlier version of this package, less.

        Raises:
            CheckpointError: An argument contradicts the checkpoint.
        """
        settings = saved.get("settings")
        trained_with = {**BEFORE, **settings} if isinstance(settings, dict) and settings else None
        if trainer_of(self) is None:  # `load_from_checkpoint` has made the task of it
            self._trained_with = trained_with
            return
        self._check_kind(saved.get("task"))
        training = self.trainer.state.fn == "fit"
        arguments = {**ARGUMENTS_BEFORE, **checkpoint.get("hyper_parameters", {})}
        for line in check_same(arguments, self.hparams, f"{type(self).__name__}({{}}=...)", self.may_change):
            if training:
                rank_zero_info(line)
        data = known_data(self.trainer)
        check_same_data(saved.get("settings", {}), data, training=training)
        size = saved.get("global_batch_size")  # 0 where it was not known
        if training and self.guard.progress.is_within_epoch and size and data.batch_size:
            # The loader would refuse it as well, but later than schedules of another length, which follow from it.
            check_global_batch_size(size, data.batch_size, ranks_per_batch(self.trainer.strategy))
        self._trained_with = trained_with
        self.guard.load_optimizers(saved.get("optimizers") if training else None)
        carry_best(checkpoint, self.trainer)

    def _check_kind(self, saved: str | None) -> None:
        """Refuse a checkpoint of another task of this package; whose class a user's own task is, it knows itself."""
        kinds = {kind.__name__: kind for kind in kinds_below(Task) if kind.__module__.startswith("lightning_tgnn.")}
        kind = kinds.get(saved or "")
        if kind is not None and not (
            isinstance(self, kind) and (type(self) is kind or type(self) not in kinds.values())
        ):
            raise CheckpointError("model", f"{saved}, as in the checkpoint", type(self).__name__, CURE)


def _is_collection(batch: list | tuple | dict) -> bool:
    parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
    return all(isinstance(part, (EventBatch, SnapshotBatch, Subgraph)) or part is None for part in parts)


def _before_there_is_a_model(name: str, known: Iterator[Parameter]) -> Iterator[Parameter]:
    """Yield parameters, but to no optimizer of torch; Lightning itself looks at them early, too."""
    if str(sys._getframe(1).f_globals.get("__name__")).startswith("torch.optim"):
        cure = (
            f"give the optimizer to the task, {name}(optimizer=...) or --model.optimizer=..., which makes it once there"
            " are parameters, or call data.setup() and task.build(data.info) first"
        )
        requirement = "asked for once the model is built for its data"
        raise InvalidArgumentError(f"the parameters of {name}", requirement, "no model yet", cure)
    yield from known


def _note_loaded_weights(task: nn.Module, keys: object) -> None:
    assert isinstance(task, Task)
    task.has_trained_weights = True
