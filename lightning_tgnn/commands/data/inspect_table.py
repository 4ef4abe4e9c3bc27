"""How `data inspect` tells its user what it found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.data.streams.split_stream import tie_notice


def print_stream(console: Console, figures: dict[str, Any], folder: Path) -> None:
    """Print the figures of a stream and where their files are.

    Args:
        console: Where to.
        figures: What `lightning_tgnn.commands.data.inspect.describe` returned.
        folder: Where the files are.
    """
    single = Table("", "value")
    single.columns[1].justify = "right"
    for name, value in {"nodes": figures["nodes"], **figures["counts"], **figures["repetition"]}.items():
        single.add_row(name.replace("_", " "), _text(value))
    print_table(single, console)
    if notice := tie_notice(figures["counts"]["tie_rate"]):
        console.print(notice, soft_wrap=True)
    _print_rows(console, "events per", figures["degrees"])
    _print_rows(console, "gaps of", figures["gaps"])
    _print_batches(console, figures["batches"])
    console.print(f"figures and picture: {folder}", soft_wrap=True)


def _print_rows(console: Console, title: str, rows: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(rows.values()), {}))
    table = Table(title, *names)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in rows.items():
        table.add_row(name, *(_text(row[column]) for column in names))
    print_table(table, console)


def _print_batches(console: Console, batches: dict[str, Any]) -> None:
    table = Table("batch size", *(f"{size:,}" for size in batches["loss"]))
    table.add_row("updates lost", *(f"{loss:.0%}" for loss in batches["loss"].values()))
    table.add_row("busiest tenth", *(f"{loss:.0%}" for loss in batches["loss_of_busiest_tenth"].values()))
    print_table(table, console)
    console.print(f"largest batch that loses at most {batches['max_loss']:.0%}: {batches['largest']:,} events")


def _text(value: float) -> str:
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):,}"
    digits = 0 if abs(value) >= 1000 else 2 if abs(value) >= 10 else 4
    return f"{value:,.{digits}f}"
