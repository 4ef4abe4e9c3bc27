"""Statistics and the order of columns that need not fit in memory. Each function reads piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

_PIECE = 1 << 22
_DIGIT = 16  # bits
_PAIRWISE = 128  # NumPy adds so many values up without cutting them further
Table = dict[str, dict[str, float]]


def in_pieces(values: np.ndarray, piece: int = _PIECE) -> Iterator[np.ndarray]:
    """Yield a column piece by piece; an empty column has no piece."""
    return (values[start : start + piece] for start in range(0, len(values), piece))


def pairwise_sum(
    values: np.ndarray, term: Callable[[np.ndarray], np.ndarray] | None = None, piece: int = _PIECE
) -> float:
    """Return the sum of a term of every value, equal to the last bit to NumPy's sum of all terms at once.

    NumPy halves a column until the halves are short (pairwise summation), and so does this function. No more than
    ``piece`` terms are in memory.

    Args:
        values: float64 [n].
        term: Returns the term of each value, elementwise; None adds up the values themselves.
        piece: At least 128.

    >>> column = np.linspace(0, 1, 1001)
    >>> bool(pairwise_sum(column, np.square, piece=128) == np.square(column).sum())
    True
    """
    if len(values) <= max(piece, _PAIRWISE):
        return float(np.add.reduce(values if term is None else term(values)))
    half = len(values) // 2
    half -= half % 8  # where NumPy cuts it
    return pairwise_sum(values[:half], term, piece) + pairwise_sum(values[half:], term, piece)


def order_statistics(values: np.ndarray, ranks: Sequence[int], piece: int = _PIECE) -> list[float]:
    """Return the values that stand at ``ranks`` in ascending order, by counting their digits (radix selection).

    Args:
        values: float64 [n], at least 0, because the bits of such numbers ascend with the numbers.
        ranks: In 0 .. n - 1.
        piece: Values that are looked at together.
    """
    from lightning_tgnn.algorithms.streams.statistics_loops import count_digits  # imports the compiler

    prefixes, below = np.zeros(len(ranks), np.uint64), np.array(ranks, np.int64)
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        distinct, places = np.unique(prefixes, return_inverse=True)
        counts = np.zeros((len(distinct), 1 << _DIGIT), np.int64)
        for part in in_pieces(values, piece):
            count_digits(part.view(np.uint64), shift, distinct, counts)
        ends = counts.cumsum(1)
        for place, row in enumerate(places):
            digit = int(np.searchsorted(ends[row], below[place], side="right"))
            below[place] -= ends[row, digit] - counts[row, digit]
            prefixes[place] = (int(prefixes[place]) << _DIGIT) | digit
    return prefixes.view(np.float64).tolist()


def quantiles(values: np.ndarray, shares: Sequence[float], piece: int = _PIECE) -> list[float]:
    """Return the same as ``np.quantile(values, shares)``, interpolated between the values of the two nearest ranks.

    Args:
        values: float64 [n], at least 0 each, n at least 1.
        shares: In [0, 1].
        piece: Values that are looked at together.

    >>> quantiles(np.array([4.0, 1.0, 3.0, 2.0]), [0.5, 0.9])
    [2.5, 3.7]
    """
    places = [(len(values) - 1) * np.float64(share) for share in shares]
    ranks = [rank for place in places for rank in (int(place), min(int(place) + 1, len(values) - 1))]
    found = order_statistics(values, ranks, piece)
    return [_between(low, high, place) for low, high, place in zip(found[::2], found[1::2], places, strict=True)]


def _between(low: float, high: float, place: float) -> float:
    part = float(place - int(place))
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part  # as NumPy rounds it


def burstiness(values: np.ndarray, piece: int = _PIECE) -> float:
    """Return (deviation - mean) / (deviation + mean): -1 for regular times between events, 0 for random ones.

    Goh and Barabasi, "Burstiness and memory in complex systems" (EPL 2008), equation 1.

    >>> burstiness(np.array([2.0, 2.0]))
    -1.0
    """
    mean = pairwise_sum(values, piece=piece) / len(values)
    deviation = float(np.sqrt(pairwise_sum(values, lambda part: np.square(part - mean), piece) / len(values)))
    return (deviation - mean) / (deviation + mean) if deviation + mean else 0.0


def summary(columns: dict[str, np.ndarray], shares: Sequence[float] = (0.5, 0.9, 0.99), piece: int = _PIECE) -> Table:
    """Return number, mean, quantiles and maximum of each column that has values; all values are at least 0."""
    return {name: _row(values, shares, piece) for name, values in columns.items() if len(values)}


def _row(values: np.ndarray, shares: Sequence[float], piece: int) -> dict[str, float]:
    values = values if values.dtype == np.float64 else values.astype(np.float64)
    found = zip((f"{share:.0%}" for share in shares), quantiles(values, shares, piece), strict=True)
    mean = pairwise_sum(values, piece=piece) / len(values)
    return {"number": len(values), "mean": mean, **dict(found), "max": float(values.max())}


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
