"""The distinct values of a column of bytes, by hashing."""

from __future__ import annotations

import numpy as np


def distinct_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of every value among the distinct values, int64 [E], and these values in first-seen order.

    Args:
        values: [E], bytes of a fixed width that is a multiple of 8, contiguous.

    >>> distinct_rows(np.array([b"b", b"a", b"b"], "S8"))
    (array([0, 1, 0]), array([b'b', b'a'], dtype='|S8'))
    """
    from lightning_tgnn.algorithms.streams import distinct_loops  # imports the compiler: only where it is used

    words = values.view(np.uint64).reshape(len(values), values.itemsize // 8)
    slots = np.full(2 ** (2 * len(values)).bit_length(), -1)
    codes, first = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
    count = distinct_loops.number_rows(words, slots, codes, first)
    return codes, values[first[:count]]
