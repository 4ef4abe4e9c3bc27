"""Values computed from an object, kept as long as the object lives."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

_Held = TypeVar("_Held")


class IdentityCache(Generic[_Held]):
    """Values by the identity of objects, which need neither be hashable nor comparable; their end drops the value.

    A copy of the cache, pickled or not, is empty.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[object], _Held]] = {}

    def get(self, key: object) -> _Held | None:
        """Return what is kept for an object; None if nothing is."""
        found = self._held.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def put(self, key: object, value: _Held) -> None:
        """Keep a value as long as ``key`` lives."""
        place, held = id(key), self._held

        def drop(dead: weakref.ref[object]) -> None:
            if (found := held.get(place)) is not None and found[0] is dead:
                del held[place]

        held[place] = weakref.ref(key, drop), value

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()

    def __iter__(self) -> Iterator[_Held]:
        return (value for _, value in list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()
