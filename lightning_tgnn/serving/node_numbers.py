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
    """Looks up nodes by the ids that their user gave them.

    Args:
        ids: [N], integers or strings, the id of every node.
        first_destination: The first destination if sources and destinations are numbered apart, else None.

    Raises:
        DataError: An id stands for two nodes.
    """

    def __init__(self, ids: np.ndarray, first_destination: int | None) -> None:
        self.ids = ids
        self.first_destination = first_destination
        cut = 0 if first_destination is None else first_destination
        self._tables = {side: _Table(own, start) for side, own, start in self._by_side(cut)}

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
    def are_integers(self) -> bool:
        """Whether ids are integers; otherwise they are strings."""
        return self.ids.dtype.kind in "iu"

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
            requirement = "a node of the stream that the model was trained on"
            cure = "node state has a row per node of the stream: leave it out, or train on a stream that has it"
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
        numbers, is_known = self._tables[side if self.first_destination is not None else "source"].find(column)
        return column, numbers, is_known

    def _by_side(self, cut: int) -> list[tuple[str | None, np.ndarray, int]]:
        if self.first_destination is None:
            return [("source", self.ids, 0)]
        return [("source", self.ids[:cut], 0), ("destination", self.ids[cut:], cut)]

    def _column(self, argument: str, ids: ArrayLike) -> np.ndarray:
        column = np.atleast_1d(as_array(argument, ids))
        if column.dtype == object and all(isinstance(value, str) for value in column.flat):
            column = column.astype(np.str_)
        kinds, name = ("iu", "integers") if self.are_integers else ("U", "strings")
        if column.ndim != 1 or (column.size and column.dtype.kind not in kinds):
            received = f"{column.dtype} of shape {list(column.shape)}"
            raise InvalidArgumentError(argument, f"{name} of shape [R], as in the stream", received, "convert")
        return column if column.size else column.astype(self.ids.dtype)


class _Table:
    """Distinct ids, sorted, and the number of each."""

    def __init__(self, ids: np.ndarray, start: int) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids, self._numbers = ids[order], order + start
        repeated = self._ids[1:][self._ids[1:] == self._ids[:-1]]
        if len(repeated):
            raise DataError("node_ids", "distinct", repeated[0].item(), "give each node an id of its own")

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers, and where an id has a number."""
        # In one type: int64 and uint64 together would be compared as floats, which do not tell large ids apart.
        place = np.searchsorted(self._ids, ids.astype(self._ids.dtype, copy=False)).clip(max=len(self._ids) - 1)
        return self._numbers[place], self._ids[place] == ids


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
