"""Number the nodes of a stream in the order of their ids."""

from __future__ import annotations

import numpy as np


def number_nodes(src: np.ndarray, dst: np.ndarray, *, apart: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number nodes from 0 in ascending order of their ids, integers by value and strings by code point.

    The numbers do not depend on the order of the rows, and ids that are 0 .. N-1 already stay as they are.

    Args:
        src: [E], integers, or str objects, whose surrounding blanks are dropped.
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
    import pandas as pd

    # Hashing all events and sorting only the distinct ids is several times faster than np.unique on the events.
    codes, distinct = pd.factorize(values)
    if values.dtype == object:
        distinct = np.array([text.strip() for text in distinct], dtype=np.str_)
    ids, rank = np.unique(distinct, return_inverse=True)
    return rank.astype(np.int64)[codes], ids
