"""Draws the folders and what they may import, from the table on the page. `mkdocs.yml` names this file."""

from __future__ import annotations

import re
from typing import Any

_ROW = re.compile(r"^\| `(\w+)(?:/|\.py)` \| [^|]* \| ([^|]*) \|$", re.MULTILINE)
_MARK = "<!-- house -->"
_WIDTH, _HEIGHT, _GAP, _RISE, _ACROSS = 128, 30, 14, 34, 6


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the picture where a page asks for it."""
    return markdown.replace(_MARK, picture(table(markdown))) if _MARK in markdown else markdown


def table(markdown: str) -> dict[str, set[str]]:
    """Return what each folder may import; "everything" is all that the rows above it name."""
    imports: dict[str, set[str]] = {}
    for folder, may in _ROW.findall(markdown):
        imports[folder] = set(imports) if may.strip() == "everything" else set(re.findall(r"`(\w+)`", may))
    return imports


def floors(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the folders by floor: each stands on the highest of those that it may import."""
    floor: dict[str, int] = {}

    def of(folder: str) -> int:
        if folder not in floor:
            floor[folder] = 1 + max((of(lower) for lower in imports[folder]), default=-1)
        return floor[folder]

    for folder in imports:
        of(folder)
    return [[folder for folder in imports if floor[folder] == number] for number in range(max(floor.values()) + 1)]


def direct(imports: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the imports that no other way leads along."""

    def below(folder: str) -> set[str]:
        return imports[folder].union(*(below(lower) for lower in imports[folder]))

    return {
        (folder, lower)
        for folder, may in imports.items()
        for lower in may
        if not any(lower in below(other) for other in may - {lower})
    }


def picture(imports: dict[str, set[str]]) -> str:
    """Return an SVG: floors from the ground up, and a line for each direct import."""
    rows: list[list[str]] = []
    for level in floors(imports):
        rows.extend(level[start : start + _ACROSS] for start in range(0, len(level), _ACROSS))
    width = _ACROSS * (_WIDTH + _GAP)
    height = len(rows) * (_HEIGHT + _RISE)
    place = {
        folder: (
            (width - len(row) * (_WIDTH + _GAP)) // 2 + column * (_WIDTH + _GAP) + _GAP // 2,
            height - (number + 1) * (_HEIGHT + _RISE) + _RISE // 2,
        )
        for number, row in enumerate(rows)
        for column, folder in enumerate(row)
    }
    lines = [
        f'<path d="M{place[upper][0] + _WIDTH // 2} {place[upper][1] + _HEIGHT} '
        f'L{place[lower][0] + _WIDTH // 2} {place[lower][1]}"/>'
        for upper, lower in sorted(direct(imports))
    ]
    boxes = [
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>'
        f'<text x="{x + _WIDTH // 2}" y="{y + 20}">{folder}</text>'
        for folder, (x, y) in place.items()
    ]
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Folders and what they may import" '
        'style="font: 13px monospace; text-anchor: middle">'
        f'<g stroke="currentColor" stroke-opacity="0.25" fill="none">{"".join(lines)}</g>'
        f"<g><style>rect{{fill:var(--md-code-bg-color,#f5f5f5);stroke:currentColor;stroke-opacity:.5}}"
        f"text{{fill:currentColor}}</style>{''.join(boxes)}</g></svg>"
    )
