"""Turns that are made when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

from lightning_tgnn.types.schedule import Turn


class Turns(Sequence[Turn]):
    """The turns of a rank; a subclass knows their number and makes the turn at an index."""

    @abstractmethod
    def at(self, index: int) -> Turn:
        """Return the turn at an index from 0 on."""

    @overload
    def __getitem__(self, index: int) -> Turn: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Turn]: ...

    def __getitem__(self, index: int | slice) -> Turn | Sequence[Turn]:
        if isinstance(index, slice):
            return [self.at(number) for number in range(*index.indices(len(self)))]
        return self.at(range(len(self))[index])
