"""The state that a task keeps in a checkpoint so that a run can resume, and the checkpoints that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from lightning.pytorch.utilities.rank_zero import rank_zero_info

from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, check_global_batch_size, refusal
from lightning_tgnn.compat.loops import place_loader
from lightning_tgnn.compat.modules import trainer_of
from lightning_tgnn.files.best_checkpoint import carry_best
from lightning_tgnn.models.class_paths import import_path
from lightning_tgnn.tasks.optimizer_settings import check_same_optimizers, optimizer_settings, take_changed_options
from lightning_tgnn.tasks.states_of_ranks import restore_random_states
from lightning_tgnn.tasks.trained_task import TrainedTask
from lightning_tgnn.types import BatchedData, FixedSettings, datamodule_of, ranks_per_batch

CURE = "give that, or run fit without a checkpoint to train anew"
# Arguments of DataModules that came after checkpoints were made, with what these were trained with.
_BEFORE = {"embed_at": "event", "standardize_features": False}
_ARGUMENTS_BEFORE = {"dropout_on_sums": False}


class ResumableTask(TrainedTask):
    """A task whose checkpoints say what they were trained with; what contradicts them is refused by name.

    Settings of `may_change` are taken as they are given now, and so are the options of the optimizer. All other
    arguments of the task, and those of the DataModule that it names in ``fixed_settings``, have to be as they were.
    """

    may_change: ClassVar[frozenset[str]] = frozenset({"lr", "lr_scaling", "weight_decay", "dropout", "detect_nan"})
    """Arguments that may differ from those in the checkpoint."""

    def __init__(self, *, detect_nan: bool = True) -> None:
        super().__init__(detect_nan=detect_nan)
        self._optimizers_configured: dict[str, Any] | None = None
        self._optimizers_saved: dict[str, Any] | None = None
        self._saved_random: dict[str, Any] | None = None
        self._trained_with: Mapping[str, Any] | None = None  # settings of the DataModule

    def on_fit_start(self) -> None:
        """Note how the optimizers are configured, before a checkpoint is restored."""
        super().on_fit_start()
        self._optimizers_configured = optimizer_settings(self.trainer, self._optimizers_saved)
        if self._optimizers_saved is not None and self.trainer.ckpt_path is not None:
            check_same_optimizers(self._optimizers_saved, self._optimizers_configured)

    def on_train_start(self) -> None:
        """Continue where the checkpoint was made, with the options of optimizers that have changed."""
        saved, self._optimizers_saved = self._optimizers_saved, None
        if self.trainer.ckpt_path is not None:
            place_loader(self.trainer)
        super().on_train_start()
        if saved is not None and self._optimizers_configured is not None and self.trainer.ckpt_path is not None:
            take_changed_options(saved, self._optimizers_configured, self.trainer)
        self._trained_with = self._data_settings() or None

    def _continue_random_states(self) -> None:
        """Continue the random states of the checkpoint; a task calls this as late as possible before its first step."""
        saved, self._saved_random = self._saved_random, None
        if saved is not None and self.trainer.ckpt_path is not None:
            restore_random_states(saved, self.trainer)

    def on_validation_start(self) -> None:
        """Refuse an evaluation, outside of a fit, on other splits or neighbours than those of training.

        Raises:
            InvalidArgumentError: A setting of the DataModule differs from the training's.
        """
        super().on_validation_start()
        data, before = datamodule_of(self.trainer), self._trained_with
        if before is None or not isinstance(data, FixedSettings) or self.trainer.state.fn == "fit":
            return
        given = data.fixed_settings(training=False)
        for name in differing(before, given):
            argument, cure = f"{type(data).__name__}({name}=...)", "give that, or train a new task"
            raise InvalidArgumentError(refusal(argument, f"{before[name]!r}, as in training", given[name], cure))

    on_test_start = on_predict_start = on_validation_start

    def _data_settings(self) -> dict[str, Any]:
        data = datamodule_of(self.trainer)
        return dict(data.fixed_settings(training=True)) if isinstance(data, FixedSettings) else {}

    def resumption(self) -> dict[str, Any]:
        """Return what a checkpoint holds for `resume_with`, plain values all."""
        return {
            "task": task_name(type(self)),
            "settings": self._data_settings(),
            "optimizers": self._optimizers_configured,
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
        trained_with = {**_BEFORE, **settings} if isinstance(settings, dict) and settings else None
        if trainer_of(self) is None:  # `load_from_checkpoint` has made the task of it
            self._trained_with = trained_with
            return
        self._check_kind(saved.get("task"))
        training = self.trainer.state.fn == "fit"
        arguments = {**_ARGUMENTS_BEFORE, **checkpoint.get("hyper_parameters", {})}
        for line in check_same(arguments, self.hparams, f"{type(self).__name__}({{}}=...)", self.may_change):
            if training:
                rank_zero_info(line)
        data = datamodule_of(self.trainer)
        if isinstance(data, FixedSettings):
            check_same_data(saved.get("settings", {}), data, training=training)
        size = saved.get("global_batch_size")  # 0 where it was not known
        if training and self._fit_progress.is_within_epoch and size and isinstance(data, BatchedData):
            # The loader would refuse it as well, but later than schedules of another length, which follow from it.
            check_global_batch_size(size, data.batch_size, ranks_per_batch(self.trainer.strategy))
        self._trained_with = trained_with
        self._optimizers_saved = saved.get("optimizers") if training else None
        carry_best(checkpoint, self.trainer)

    def _check_kind(self, saved: str | None) -> None:
        """Refuse a checkpoint of another task of this package; whose class a user's own task is, it knows itself."""
        kinds = {kind.__name__: kind for kind in _below(ResumableTask) if kind.__module__.startswith("lightning_tgnn.")}
        kind = kinds.get(saved or "")
        if kind is not None and not (
            isinstance(self, kind) and (type(self) is kind or type(self) not in kinds.values())
        ):
            raise CheckpointError(refusal("model", f"{saved}, as in the checkpoint", type(self).__name__, CURE))


def check_same_data(saved: Mapping[str, Any], data: FixedSettings, *, training: bool) -> None:
    """Refuse a DataModule that contradicts a checkpoint.

    Args:
        saved: Its settings in the checkpoint.
        data: The one at hand.
        training: Whether it is trained on, rather than shown.

    Raises:
        CheckpointError: A setting of the DataModule differs from the checkpoint's.
    """
    check_same({**_BEFORE, **saved}, data.fixed_settings(training=training), f"{type(data).__name__}({{}}=...)")


def check_same(
    saved: Mapping[str, Any], given: Mapping[str, Any], argument: str, may_change: frozenset[str] = frozenset()
) -> list[str]:
    """Refuse what contradicts a checkpoint.

    Args:
        saved: Settings in the checkpoint.
        given: Settings now; those that only one of the two has do not count, nor names with ``_`` at their head.
        argument: How a setting is called in the refusal, with ``{}`` for its name.
        may_change: Settings that may differ.

    Returns:
        A line for each setting of these that does.

    Raises:
        CheckpointError: A setting outside ``may_change`` differs.
    """
    names = differing(saved, given)
    for name in names:
        if name not in may_change:
            requirement = f"{saved[name]!r}, as in the checkpoint"
            raise CheckpointError(refusal(argument.format(name), requirement, given[name], CURE))
    return [f"{name}: {saved[name]!r} in the checkpoint, {given[name]!r} from here on" for name in names]


def differing(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that differ; see `check_same`."""
    return [name for name in saved if not name.startswith("_") and name in given and _differ(saved[name], given[name])]


def task_name(kind: type) -> str:
    """Return what a checkpoint calls a task: a class of this package by its name, another by its import path."""
    package = __name__.partition(".")[0]
    return kind.__name__ if kind.__module__.startswith(f"{package}.") else import_path(kind)


def _differ(saved: object, given: object) -> bool:
    saved, given = _as_in_yaml(saved), _as_in_yaml(given)
    if isinstance(saved, dict | str) and isinstance(given, dict | str) and type(saved) is not type(given):
        return False  # a class by its path and arguments from a recipe, by its name from Python
    return saved != given


def _as_in_yaml(value: object) -> object:
    if isinstance(value, dict):
        return {name: _as_in_yaml(held) for name, held in value.items()}
    return [_as_in_yaml(held) for held in value] if isinstance(value, list | tuple) else value


def _below(kind: type) -> Iterator[type]:
    """Yield the classes that descend from one."""
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from _below(child)
