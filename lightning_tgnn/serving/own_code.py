"""The task of a file whose class, or the class of its model, is a user's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import lightning_tgnn.tasks as tasks
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, check_import, refusal
from lightning_tgnn.models.class_paths import built_from, import_path, named_code
from lightning_tgnn.tasks import MemoryTask

_TRUST = "or trust=True where you know who wrote the file: it then runs the code that it names"


@dataclass(frozen=True)
class OwnCode:
    """What a caller gives of the code that a file names; the file alone chooses among the classes of this package.

    Attributes:
        task: Class of the task; None takes the one that the file names.
        arguments: Arguments of the task in the place of those in the file, such as ``model``; a class that the file
            names is built with the arguments that the file has for it.
        trust: Import what the file names.
    """

    task: type[MemoryTask] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    trust: bool = False

    def task_of(self, name: str, saved: Mapping[str, Any]) -> MemoryTask:
        """Return the task of a file.

        Args:
            name: What the file calls its class.
            saved: The arguments that the file has.

        Raises:
            InvalidArgumentError: The file names code that was not given, or the task does not take an argument.
        """
        kind = self._kind(name)
        # As `load_from_checkpoint` does: a subclass keeps its parents' arguments too, and Lightning's command its own.
        known = inspect.signature(kind).parameters
        takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
        for argument in self.arguments.keys() - known.keys():
            if not takes_any:
                requirement = f"one that {kind.__name__} takes"
                raise InvalidArgumentError(refusal("argument", requirement, argument, "correct its name"))
        arguments = {**saved, **self.arguments}
        for argument, told in named_code(saved).items():
            arguments[argument] = self._part(argument, told)
        if takes_any:
            return kind(**{key: value for key, value in arguments.items() if not key.startswith("_")})
        return kind(**{key: value for key, value in arguments.items() if key in known})

    def _kind(self, name: str) -> type[MemoryTask]:
        if self.task is not None:
            return _task_class(self.task)
        if name in tasks.__all__:
            return _task_class(getattr(tasks, name))
        if self.trust:
            return _task_class(check_import("task", name))
        cure = f"pass task={name.rpartition('.')[2]}, the class, {_TRUST}"
        raise InvalidArgumentError(refusal("task", "given, for it is none of this package", name, cure))

    def _part(self, argument: str, told: Mapping[str, Any]) -> Any:
        path, given = str(told["class_path"]), self.arguments.get(argument)
        if isinstance(given, type) and import_path(given) == path:
            return partial(given, **dict(told.get("init_args") or {}))
        if given is not None:
            return given
        if self.trust:
            return built_from(argument, told)
        cure = f"pass {argument}={path.rpartition('.')[2]}, the class, {_TRUST}"
        raise InvalidArgumentError(refusal(argument, "given, for it is none of this package", path, cure))


def _task_class(kind: Any) -> type[MemoryTask]:
    if isinstance(kind, type) and issubclass(kind, MemoryTask):
        return kind
    received = getattr(kind, "__name__", type(kind).__name__)
    raise CheckpointError(refusal("task", "a class of tasks on event streams", received, "give a LinkPrediction, say"))
