"""Long columns piece by piece, so that mapped files stay on the disk."""

from __future__ import annotations

from collections.abc import Iterator

_VALUES_PER_PIECE = 1 << 22


def pieces(rows: int, width: int = 1) -> Iterator[slice]:
    """Yield slices that cover ``rows`` rows of ``width`` values, some millions of values each."""
    step = max(_VALUES_PER_PIECE // max(width, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, start + step)
