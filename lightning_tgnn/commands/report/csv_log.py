"""The scalars of a run that Lightning's CSVLogger has written."""

from __future__ import annotations

import csv
from pathlib import Path

CSV_FILE = "metrics.csv"
_STEP = "step"


def read_csv(path: Path) -> tuple[dict[str, list[tuple[int, float]]], int]:
    """Return steps and values by tag, in the order of the file, and how many values or rows are damaged.

    A row has the value of some tags at one step; the cells of the others are empty. One with too few cells, or a last
    one without the end of its line, broke off as it was written and is left out: half a number is a number as well.

    Raises:
        ValueError: The file is no table with a column of steps; the message is one line.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    broken = 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = file.readlines()
            if lines[1:] and not lines[-1].endswith(("\n", "\r")):
                lines.pop()
                broken += 1
            rows = csv.DictReader(lines)
            if _STEP not in (rows.fieldnames or ()):
                raise ValueError(f"no column {_STEP!r}")
            for row in rows:
                is_whole = None not in row and None not in row.values()  # neither more cells than the header nor less
                step = _number(row.pop(_STEP)) if is_whole else None
                if step is None or not step.is_integer():
                    broken += 1
                    continue
                for tag, cell in row.items():
                    if cell and (value := _number(cell)) is not None:
                        found.setdefault(tag, []).append((int(step), value))
                    elif cell:
                        broken += 1
    except csv.Error as error:
        raise ValueError(str(error)) from error
    return found, broken


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
