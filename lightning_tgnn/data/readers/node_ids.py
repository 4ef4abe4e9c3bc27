"""Number the nodes of a stream in the order of their ids."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lightning_tgnn.algorithms.distinct_rows import distinct_rows
from lightning_tgnn.data.readers.parse import common_type


def number_nodes(src: np.ndarray, dst: np.ndarray, *, apart: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number nodes from 0 in ascending order of their ids, integers by value and strings by code point.

    The numbers do not depend on the order of the rows, and ids that are 0 .. N-1 already stay as they are.

    Args:
        src: [E], integers, or texts whose surrounding blanks are dropped: UTF-8 of a fixed width, or str objects.
        dst: [E], of the same type.
        apart: Give the same id as a source and as a destination two numbers, all sources first.

    Returns:
        Number of every source, int64 [E], number of every destination, int64 [E], and id of every node [N].

    >>> number_nodes(np.array([7, 9]), np.array([9, 7]), apart=False)
    (array([0, 1]), array([1, 0]), array([7, 9]))
    >>> number_nodes(np.array([7, 9]), np.array([9, 7]), apart=True)
    (array([0, 1]), array([3, 2]), array([7, 9, 7, 9]))
    """
    if not apart:
        numbers, ids = _number(np.concatenate([src, dst]))
        return numbers[: len(src)], numbers[len(src) :], ids
    src_numbers, src_ids = _number(src)
    dst_numbers, dst_ids = _number(dst)
    return src_numbers, dst_numbers + len(src_ids), np.concatenate([src_ids, dst_ids])


def _number(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    codes, distinct = distinct_ids(values)
    ids, rank = np.unique(distinct if distinct.dtype.kind in "iu" else texts(distinct), return_inverse=True)
    return rank.astype(np.int64)[codes], ids


def distinct_ids(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of every id among the distinct ones, int64 [E], and these, in no order."""
    # Hashing all events and sorting only the distinct ids is several times faster than np.unique on the events.
    if values.dtype.kind == "S":
        return distinct_rows(values)
    import pandas as pd

    codes, distinct = pd.factorize(values)
    return codes.astype(np.int64, copy=False), distinct


def texts(values: np.ndarray) -> np.ndarray:
    """Return UTF-8 of a fixed width or str objects as strings without surrounding blanks."""
    decoded = (value.decode() for value in values.tolist()) if values.dtype.kind == "S" else values
    return np.array([text.strip() for text in decoded], dtype=np.str_)


class NodeNumbering:
    """Numbers nodes as `number_nodes` does where columns come chunk by chunk.

    Each chunk is numbered by itself at first, so that no more is kept of it than its distinct ids; the final numbers
    come from what all chunks had.

    Args:
        apart: Give the same id as a source and as a destination two numbers, all sources first.
    """

    def __init__(self, *, apart: bool) -> None:
        self._apart = apart
        self._lengths: list[int] = []
        self._src_ids: list[np.ndarray] = []
        self._dst_ids: list[np.ndarray] = []

    def add(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers within the chunk of its sources and destinations, int64."""
        self._lengths.append(len(src))
        src_codes, src_ids = distinct_ids(src)
        dst_codes, dst_ids = distinct_ids(dst)
        self._src_ids.append(src_ids)
        self._dst_ids.append(dst_ids)
        return src_codes, dst_codes

    def close(self) -> None:
        """Take the ids of all chunks together; there are no more."""
        id_type = common_type([*self._src_ids, *self._dst_ids])
        src, dst = (np.concatenate(ids, dtype=id_type, casting="unsafe") for ids in (self._src_ids, self._dst_ids))
        src_numbers, dst_numbers, self.node_ids = number_nodes(src, dst, apart=self._apart)
        self._src_numbers = np.split(src_numbers, np.cumsum([len(ids) for ids in self._src_ids[:-1]]))
        self._dst_numbers = np.split(dst_numbers, np.cumsum([len(ids) for ids in self._dst_ids[:-1]]))
        self._src_ids.clear()
        self._dst_ids.clear()

    def src_numbers(self, codes: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the final numbers of all sources, from the numbers within chunks."""
        return self._numbers(codes, self._src_numbers)

    def dst_numbers(self, codes: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the final numbers of all destinations, from the numbers within chunks."""
        return self._numbers(codes, self._dst_numbers)

    def _numbers(self, codes: np.ndarray, numbers: list[np.ndarray]) -> Iterator[np.ndarray]:
        start = 0
        for length, of_chunk in zip(self._lengths, numbers, strict=True):
            yield of_chunk[codes[start : start + length]]
            start += length
