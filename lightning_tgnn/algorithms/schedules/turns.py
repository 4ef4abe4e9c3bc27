"""Turns that are made when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import overload

from lightning_tgnn.types.schedule import Turn


class Turns(Sequence[Turn]):
    """The turns of a rank; a subclass has their number and makes the one at an index."""

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


def in_passes(turns: Sequence[Turn], position: int) -> Iterator[range]:
    """Yield the numbers of turns from a position on, one that reads together with those that take what it has read."""
    number = position
    while number < len(turns):
        first, count = turns[number], 1
        while first.reads and first.events and number + count < len(turns):
            turn = turns[number + count]
            if turn.reads or turn.events != first.events:
                break
            count += 1
        yield range(number, number + count)
        number += count
