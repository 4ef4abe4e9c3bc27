"""What a checkpoint was trained with, and what contradicts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_tgnn.checks import CheckpointError, refusal
from lightning_tgnn.models.class_paths import import_path
from lightning_tgnn.types import KnownData

CURE = "give that, or run fit without a checkpoint to train anew"
# Arguments of DataModules that came after checkpoints were made, with what these were trained with.
BEFORE = {"embed_at": "event", "standardize_features": False}
ARGUMENTS_BEFORE = {"dropout_on_sums": False}


def check_same_data(saved: Mapping[str, Any], data: KnownData, *, training: bool) -> None:
    """Refuse a DataModule that contradicts a checkpoint.

    Args:
        saved: Its settings in the checkpoint.
        data: The one at hand.
        training: Whether it is trained on, rather than shown.

    Raises:
        CheckpointError: A setting of the DataModule differs from the checkpoint's.
    """
    check_same({**BEFORE, **saved}, data.fixed_settings(training=training), f"{type(data).__name__}({{}}=...)")


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


def kinds_below(kind: type) -> Iterator[type]:
    """Yield the classes that descend from one."""
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from kinds_below(child)
