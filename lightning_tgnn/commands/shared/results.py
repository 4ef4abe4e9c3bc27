"""The one table of strategies that `bench`, `plan` and `simulate` print, of what was measured or forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lightning_tgnn.commands.shared.printed import print_table
from lightning_tgnn.files.memory import readable_size


def _kinds(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {size:,.0f}" for kind, size in sizes.items() if size)


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "strategy": ("strategy", str),
    "ranks": ("ranks", "{:,}".format),
    "batch_size": ("batch", "{:,}".format),
    "staleness": ("staleness", str),
    "events_per_second": ("events/s", "{:,.0f}".format),
    "seconds_per_epoch": ("s/epoch", "{:,.4f}".format),
    "seconds_per_turn": ("ms/turn", lambda seconds: f"{1e3 * seconds:,.2f}"),
    "bubble": ("bubble", "{:.1%}".format),
    "waiting_share": ("waiting", "{:.1%}".format),
    "overlap": ("overlap", "{:.1%}".format),
    "state_bytes": ("state/machine", lambda size: readable_size(round(size))),
    "sent_per_event": ("B/event", "{:,.0f}".format),
    "bytes_per_epoch": ("B/epoch", "{:,.0f}".format),
    "sent_by_kind": ("of which", _kinds),
    "bytes_in_memory": ("in memory", "{:,.0f}".format),
    "hidden_share": ("hidden", "{:.1%}".format),
    "rows_share": ("rows sent", "{:.1%}".format),
    "updates_lost": ("updates lost", "{:.0%}".format),
    "val_ap": ("val AP", "{:.4f}".format),
    "test_ap": ("test AP", "{:.4f}".format),
    "train_accuracy": ("training", "{:.4f}".format),
    "test_accuracy": ("test", "{:.4f}".format),
    "waits_for": ("waits for", str),
    "hangs_on": ("hangs on", str),
    "why": ("why", str),
}
"""Title and form of every metric; the pages of the three commands explain them."""
_LEFT = {"strategy", "sent_by_kind", "waits_for", "hangs_on", "why"}


def print_results(rows: Sequence[Mapping[str, Any]], console: Console | None = None, *, wide: bool = False) -> None:
    """Print a row for each strategy.

    Args:
        rows: Metrics by their names in `COLUMNS`; a column that no row has a value of is left out.
        console: Where to; standard output if None.
        wide: Whether the table may be wider than the terminal.
    """
    known = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    table = Table()
    for name in known:
        is_left = name in _LEFT
        table.add_column(COLUMNS[name][0], justify="left" if is_left else "right", no_wrap=not is_left)
    for row in rows:
        table.add_row(*("" if row.get(name) is None else COLUMNS[name][1](row[name]) for name in known))
    print_table(table, console, wide=wide)
