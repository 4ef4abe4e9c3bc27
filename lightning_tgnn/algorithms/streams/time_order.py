"""The order of a column by value, in pieces, for columns whose whole order does not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

_SAMPLE = 1 << 16


class Column(Protocol):
    """Numbers [E] that may be computed on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray:
        """Return the values of a slice or of positions."""


def ordered_pieces(values: Column, piece: int) -> Iterator[np.ndarray]:
    """Yield the positions of ``values`` in ascending order, equal values in order of position, piece by piece.

    A sample cuts the range of the values into buckets of about ``piece`` positions; each pass over the column collects
    one bucket and sorts it (external distribution sort: Knuth, "The Art of Computer Programming" 3, 5.4.9).

    Args:
        values: Numbers [E] without NaN, in memory or mapped, E at least 1.
        piece: About how many positions a bucket has; more only if more share a value.

    Yields:
        int64 [about ``piece``]; all pieces together are ``argsort(values, kind="stable")``.

    >>> [positions.tolist() for positions in ordered_pieces(np.array([3.0, 1.0, 2.0, 1.0]), 2)]
    [[1, 3], [2, 0]]
    """
    bounds = _bounds(values, piece)
    for low, high in zip([-np.inf, *bounds], [*bounds, np.inf], strict=True):
        found = np.concatenate([_inside(values, start, piece, low, high) for start in range(0, len(values), piece)])
        if len(found):
            yield found[np.argsort(values[found], kind="stable")]


def _bounds(values: Column, piece: int) -> np.ndarray:
    """Return ascending values that cut the column into buckets."""
    buckets = -(-len(values) // piece)
    sample = np.sort(values[:: max(len(values) // max(_SAMPLE, 4 * buckets), 1)])
    return np.unique(sample[np.arange(1, buckets) * len(sample) // buckets])


def _inside(values: Column, start: int, length: int, low: float, high: float) -> np.ndarray:
    """Return the positions from ``start`` on whose value v is ``low <= v < high``; the last bucket is closed."""
    part = values[start : start + length]
    below = part <= high if high == np.inf else part < high
    return np.flatnonzero((part >= low) & below) + start
