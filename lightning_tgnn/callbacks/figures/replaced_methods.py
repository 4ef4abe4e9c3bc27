"""Methods of an object that others stand in for, for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ReplacedMethods:
    """Puts functions in the place of an object's methods and takes them away again; the class stays as it is."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, dict[str, Any]]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put what ``make`` returns for a method in its place."""
        own = {name: vars(owner)[name]} if name in vars(owner) else {}
        self._before.append((owner, name, own))
        setattr(owner, name, make(getattr(owner, name)))

    def undo(self) -> None:
        """Put everything back, the latest first."""
        while self._before:
            owner, name, own = self._before.pop()
            delattr(owner, name)
            for key, value in own.items():
                setattr(owner, key, value)
