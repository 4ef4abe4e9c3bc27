"""Translates users' ids to node numbers, and their times to seconds of the stream, and back."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from lightning_tgnn.checks import DataError, InvalidArgumentError, RowError, check_choice
from lightning_tgnn.data import EventStore
from lightning_tgnn.data.arrays import as_array
from lightning_tgnn.data.readers.frame_columns import Times, time_column

SIDES = ("source", "destination")


class NodeNumbers:
    """Looks up nodes by the ids that their user gave them, and gives numbers to new ids.

    Args:
        ids: [N], integers or strings, the id of every node.
        first_destination: The first destination if sources and destinations are numbered apart, else None.
        added: bool [A], whether each of the last A nodes, which came after training, is a destination; None for none.

    Raises:
        DataError: An id stands for two nodes.
    """

    def __init__(self, ids: np.ndarray, first_destination: int | None, added: np.ndarray | None = None) -> None:
        self._pieces = [ids]
        self._added = [np.zeros(0, dtype=bool) if added is None else added]
        self.count = len(ids)
        self.first_destination = first_destination
        trained = len(ids) - len(self._added[0])
        is_destination = np.arange(trained) >= (trained if first_destination is None else first_destination)
        is_destination = np.concatenate([is_destination, self._added[0]])
        numbers = np.arange(len(ids))
        if first_destination is None:
            self._tables = {"source": _Table(ids, numbers)}
        else:
            chosen = {"source": ~is_destination, "destination": is_destination}
            self._tables = {side: _Table(ids[rows], numbers[rows]) for side, rows in chosen.items()}

    @classmethod
    def from_stream(cls, store: EventStore) -> NodeNumbers:
        """Return the ids of a stream; if ids repeat, sources and destinations have to be numbered apart.

        Raises:
            DataError: Ids repeat within the sources, within the destinations, or in a stream that does not keep these
                apart.
        """
        ids = np.arange(store.num_nodes) if store.node_ids is None else np.asarray(store.node_ids)
        return cls(ids, store.first_destination)

    @property
    def ids(self) -> np.ndarray:
        """The id of every node, [N]."""
        if len(self._pieces) > 1:
            self._pieces = [np.concatenate(self._pieces)]
        return self._pieces[0]

    @property
    def added(self) -> np.ndarray:
        """Whether each node that came after training is a destination, bool [A]."""
        if len(self._added) > 1:
            self._added = [np.concatenate(self._added)]
        return self._added[0]

    def unknown(self, argument: str, ids: ArrayLike, side: str | None = None) -> np.ndarray:
        """Return the ids that have no number, each once, as they come; arguments are as in `find`.

        Raises:
            InvalidArgumentError: An id is of the wrong kind, or ``side`` is missing where sources and destinations are
                numbered apart.
        """
        import pandas as pd

        column, _, is_known = self._look_up(argument, ids, side)
        return np.asarray(pd.unique(column[~is_known]))

    def add(self, ids: np.ndarray, side: str) -> None:
        """Give the next numbers to distinct ids [n] without a number.

        Raises:
            DataError: An id does not fit beside the others in one type of integer.
        """
        held = self._pieces[0].dtype
        if self.are_integers and np.result_type(held, ids).kind == "f":  # int64 beside uint64
            for id in (int(ids.min()), int(ids.max())):
                if not np.iinfo(held).min <= id <= np.iinfo(held).max:
                    raise DataError("ids of new nodes", f"{held}, as in the stream", id, "number nodes from 0")
            ids = ids.astype(held)
        self._table(side).add(ids, np.arange(self.count, self.count + len(ids)))
        self._pieces.append(ids)
        self._added.append(np.full(len(ids), side == "destination"))
        self.count += len(ids)

    def forget(self, count: int) -> None:
        """Forget all nodes but the first ``count``, of which those of training are some."""
        trained = self.count - len(self.added)
        self._pieces, self._added = [self.ids[:count]], [self.added[: count - trained]]
        self.count = count
        for table in self._tables.values():
            table.forget(count)

    @property
    def are_integers(self) -> bool:
        """Whether ids are integers; otherwise they are strings."""
        return self._pieces[0].dtype.kind in "iu"

    def find(self, argument: str, ids: ArrayLike, side: str | None = None) -> Tensor:
        """Return the numbers of nodes, int64 [R].

        Args:
            argument: Name of the ids in an error message.
            ids: [R], integers or strings, as in the stream.
            side: ``"source"`` or ``"destination"``; needed where these are numbered apart.

        Raises:
            InvalidArgumentError: An id is of the wrong kind, or ``side`` is missing where sources and destinations are
                numbered apart.
            DataError: The stream has no node of an id.
        """
        column, numbers, is_known = self._look_up(argument, ids, side)
        if not is_known.all():
            row = int(np.argmin(is_known))
            requirement = "a node of the stream so far"
            cure = "observe an event of it first, or leave it out"
            raise RowError(argument, row, requirement, column[row].item(), cure)
        return torch.from_numpy(numbers)

    def are_known(self, argument: str, ids: ArrayLike, side: str | None = None) -> np.ndarray:
        """Return whether the stream has each node, bool [R]; arguments are as in `find`.

        Raises:
            InvalidArgumentError: An id is of the wrong kind, or ``side`` is missing where sources and destinations are
                numbered apart.
        """
        return self._look_up(argument, ids, side)[2]

    def _look_up(self, argument: str, ids: ArrayLike, side: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the ids as a column, their numbers, and where an id has a number."""
        if side is not None:
            check_choice("side", side, SIDES)
        elif self.first_destination is not None:
            cure = "the same id is one node as a source and another as a destination"
            raise InvalidArgumentError("side", "'source' or 'destination'", None, cure)
        column = self._column(argument, ids)
        return column, *self._table(side).find(column)

    def _table(self, side: str | None) -> _Table:
        return self._tables["source" if self.first_destination is None or side is None else side]

    def _column(self, argument: str, ids: ArrayLike) -> np.ndarray:
        column = np.atleast_1d(as_array(argument, ids))
        if column.dtype == object and all(isinstance(value, str) for value in column.flat):
            column = column.astype(np.str_)
        kinds, name = ("iu", "integers") if self.are_integers else ("U", "strings")
        if column.ndim != 1 or (column.size and column.dtype.kind not in kinds):
            received = f"{column.dtype} of shape {list(column.shape)}"
            raise InvalidArgumentError(argument, f"{name} of shape [R], as in the stream", received, "convert")
        return column if column.size else column.astype(self._pieces[0].dtype)


_FEW = 1 << 12


class _Table:
    """Distinct ids, sorted, and the number of each; ids that were added lately are sorted apart.

    Args:
        ids: [n].
        numbers: int64 [n].
    """

    def __init__(self, ids: np.ndarray, numbers: np.ndarray) -> None:
        self._main = _ordered(ids, numbers)
        self._late = ids[:0], numbers[:0]
        repeated = self._main[0][1:][self._main[0][1:] == self._main[0][:-1]]
        if len(repeated):
            raise DataError("node_ids", "distinct", repeated[0].item(), "give each node an id of its own")

    def add(self, ids: np.ndarray, numbers: np.ndarray) -> None:
        """Add ids [n] that are not there, with their numbers."""
        self._late = _ordered(*(np.concatenate(pair) for pair in zip(self._late, (ids, numbers), strict=True)))
        if len(self._late[0]) > max(_FEW, len(self._main[0]) // 8):
            self._main = _ordered(*(np.concatenate(pair) for pair in zip(self._main, self._late, strict=True)))
            self._late = ids[:0], numbers[:0]

    def forget(self, end: int) -> None:
        """Forget the ids whose number is ``end`` or higher."""
        self._main, self._late = (
            (ids[numbers < end], numbers[numbers < end]) for ids, numbers in (self._main, self._late)
        )

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers, and where an id has a number."""
        numbers, is_known = _search(*self._main, ids)
        if len(self._late[0]):
            late, is_late = _search(*self._late, ids)
            numbers, is_known = np.where(is_late, late, numbers), is_known | is_late
        return numbers, is_known


def _ordered(ids: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(ids, kind="stable")
    return ids[order], numbers[order]


def _search(held: np.ndarray, numbers: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of ids by the ids that are held, ascending, and where they are among these."""
    if not len(held):
        return np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=bool)
    # In one type: int64 and uint64 together would be compared as floats, which do not tell large ids apart.
    place = np.searchsorted(held, ids.astype(held.dtype, copy=False)).clip(max=len(held) - 1)
    return numbers[place], held[place] == ids


class StreamClock:
    """Knows when the stream began and when its latest event was.

    Args:
        origin: Time of the first event.
        latest: Time of the latest event taken in, -inf before the first.
    """

    def __init__(self, origin: float, latest: float) -> None:
        self.origin = origin
        self.latest = latest

    def event_times(self, time: Times, count: int) -> tuple[Tensor, float]:
        """Return the times of new events since the origin, float64 [count], and the last one as it was given.

        Raises:
            InvalidArgumentError: ``time`` does not hold ``count`` times.
            DataError: A time is not finite, or before the time ahead of it.
        """
        times = self._times(time, count)
        previous = np.concatenate([[self.latest], times[:-1]])
        self._refuse_earlier(times, previous, "sort events by time, and leave out what has been observed")
        return torch.from_numpy(times - self.origin), float(times[-1]) if count else self.latest

    def query_times(self, time: Times | None, count: int) -> Tensor:
        """Return the times of questions since the origin, float64 [count].

        Raises:
            InvalidArgumentError: ``time`` does not hold ``count`` times, or is None before the first event.
            DataError: A time is not finite, or before the latest event.
        """
        if time is None and math.isinf(self.latest):
            raise InvalidArgumentError("time", "given before the first event", None, "give a time")
        times = np.full(count, self.latest) if time is None else self._times(time, count)
        self._refuse_earlier(times, np.full(count, self.latest), "the state has moved on: ask about later times")
        return torch.from_numpy(times - self.origin)

    def _times(self, time: Times, count: int) -> np.ndarray:
        times = time_column("time", time)
        if len(times) == 1:
            times = times.repeat(count)
        if len(times) != count:
            raise InvalidArgumentError("time", f"one, or {count}", len(times), "give one value per row")
        return times

    def _refuse_earlier(self, times: np.ndarray, least: np.ndarray, cure: str) -> None:
        early = times < least
        if early.any():
            where = int(np.argmax(early))
            raise RowError("time", where, f"at least {least[where]}", float(times[where]), cure)
