"""The task of a checkpoint as LightningCLI configures it: ``--ckpt_path`` does without the options of its run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import lightning_tgnn.tasks as tasks
from lightning_tgnn.tasks.restoring import HYPER_PARAMETERS
from lightning_tgnn.tasks.training_options import NOT_SAVED
from lightning_tgnn.trust import allowed_names, check_value, saved_arguments, saved_class

_TASKS: dict[str, type] = {
    **tasks.TASKS_OF_EVENTS,
    **tasks.TASKS_OF_SNAPSHOTS,
    "NodeClassification": tasks.NodeClassification,
}
_PATHS = {
    path: kind
    for name, kind in _TASKS.items()
    for path in (f"lightning_tgnn.{name}", f"lightning_tgnn.tasks.{name}", f"{kind.__module__}.{name}")
}


def saved_task(
    checkpoint: Mapping[str, Any], chosen: Mapping[str, Any], *, file: object, trust: bool = False
) -> dict[str, Any] | None:
    """Return the class and the arguments that a checkpoint has for its task; None if it has none.

    A class that is none of this package, and what stands for a class, has to be what the command was given too.

    Args:
        checkpoint: What the file holds.
        chosen: Class and arguments that the command was given, or has by default.
        file: What to call the file.
        trust: Take whatever the file names.

    Raises:
        CheckpointError: The file names what it may not.
    """
    saved = checkpoint.get(HYPER_PARAMETERS)
    if not saved:
        return None
    if isinstance(saved, Mapping):  # what no checkpoint of ours holds, and the parser would import
        saved = {name: value for name, value in saved.items() if name not in NOT_SAVED}
    given = {**(chosen.get("init_args") or {}), **(chosen.get("dict_kwargs") or {})}
    given_class = chosen.get("class_path")
    path = _path_of(checkpoint, saved, given_class)
    kind = saved_class(path, _PATHS, argument="model", file=file, trust=trust or path == given_class)
    known = saved if isinstance(saved, Mapping) else {}
    equal = {name for name, value in known.items() if name in given and repr(given[name]) == repr(value)}
    arguments = saved_arguments(kind, saved, vouched=equal, file=file, trust=trust)
    if not trust and path not in _PATHS:  # what its strings mean nobody here knows, and the parser imports some
        words = allowed_names(kind)
        for name in arguments.keys() - equal:
            check_value(name, arguments[name], words.get(name, ()), file)
    named = inspect.signature(kind).parameters
    config: dict[str, Any] = {"class_path": path, "init_args": {}}
    for name, value in arguments.items():
        config.setdefault("init_args" if name in named else "dict_kwargs", {})[name] = value
    return config


def _path_of(checkpoint: Mapping[str, Any], saved: object, given: str | None) -> object:
    """Return the path of the task's class; of a run from Python, which keeps no path, that of our class of its name."""
    if isinstance(saved, Mapping) and "_class_path" in saved:
        return saved["_class_path"]
    own = checkpoint.get("lightning_tgnn")
    own = own if isinstance(own, Mapping) else {}
    name = "NodeClassification" if "graph" in own else own.get("task")
    return f"lightning_tgnn.tasks.{name}" if isinstance(name, str) and name in _TASKS else given
