"""When the stages of a turn begin and end, told to whoever listens."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class StageListener(Protocol):
    """Hears of the stages of turns. Stages may lie within each other."""

    def enter(self, stage: str, turn: int) -> None:
        """Take note that a stage of a turn begins."""
        ...

    def leave(self, stage: str, turn: int) -> None:
        """Take note that it ends."""
        ...


class Stages:
    """Whom the order of a task's stages tells: ``with task.stages("embed"): ...``.

    Attributes:
        turn: The number of the current turn in its epoch.
    """

    def __init__(self) -> None:
        self.turn = 0
        self._listeners: list[StageListener] = []

    def add(self, listener: StageListener) -> None:
        """Have a listener hear of what comes."""
        self._listeners.append(listener)

    def remove(self, listener: StageListener) -> None:
        """Have it hear of nothing more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def __call__(self, stage: str) -> Stage:
        """Return a stage, which lasts from ``with`` to the end of its block."""
        return Stage(self._listeners, stage, self.turn) if self._listeners else _UNHEARD


class Stage:
    """A stage of a turn, under way."""

    def __init__(self, listeners: list[StageListener], name: str, turn: int) -> None:
        self._listeners, self._name, self._turn = listeners, name, turn

    def __enter__(self) -> None:
        for listener in self._listeners:
            listener.enter(self._name, self._turn)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._listeners:
            listener.leave(self._name, self._turn)


_UNHEARD = Stage([], "", 0)
