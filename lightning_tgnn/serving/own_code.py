"""The task of a file, whose class and parts may be a user's own: from the caller, or from the file if that is trusted."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_tgnn import tasks
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError, refusal
from lightning_tgnn.models.class_paths import built_from, imported
from lightning_tgnn.tasks import MemoryTask

_TRUST = "or trust=True where you know who wrote the file: it then runs the code that it names"


@dataclass(frozen=True)
class OwnCode:
    """What a caller gives of the code that a file names; the file alone chooses among the classes of this package.

    Attributes:
        task: Class of the task; None takes the one that the file names.
        arguments: Arguments of the task in the place of those in the file, such as ``model``.
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
        arguments = {**saved, **self.arguments}
        for argument, value in arguments.items():
            if isinstance(value, Mapping) and "class_path" in value:
                arguments[argument] = self._part(argument, value)
        # As `load_from_checkpoint` does: a subclass keeps its parents' arguments too, and Lightning's command its own.
        known = inspect.signature(kind).parameters
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
            return kind(**{key: value for key, value in arguments.items() if not key.startswith("_")})
        for argument in self.arguments.keys() - known.keys():
            cure = "correct its name"
            raise InvalidArgumentError(refusal("argument", f"one that {kind.__name__} takes", argument, cure))
        return kind(**{key: value for key, value in arguments.items() if key in known})

    def _kind(self, name: str) -> type[MemoryTask]:
        if self.task is not None:
            return _task_class(self.task)
        if name in tasks.__all__:
            return _task_class(getattr(tasks, name))
        if self.trust:
            return _task_class(imported("task", name))
        cure = f"pass its class, task={name.rpartition('.')[2]}, {_TRUST}"
        raise InvalidArgumentError(refusal("task", "given, for it is none of this package", name, cure))

    def _part(self, argument: str, told: Mapping[str, Any]) -> Any:
        if self.trust:
            return built_from(argument, told)
        path = str(told["class_path"])
        cure = f"pass {argument}={path.rpartition('.')[2]}, the class, {_TRUST}"
        raise InvalidArgumentError(refusal(argument, "given, for it is none of this package", path, cure))


def _task_class(kind: Any) -> type[MemoryTask]:
    if isinstance(kind, type) and issubclass(kind, MemoryTask):
        return kind
    received = getattr(kind, "__name__", type(kind).__name__)
    raise CheckpointError(refusal("task", "a class of tasks on event streams", received, "give a LinkPrediction, say"))
