"""The closing lines of a finished run: metrics, best checkpoint, where time went, and where files are."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

_SPLITS = {"val": "validation", "test": "test"}
BASELINES = {
    "edgebank": "EdgeBank",
    "edgebank_window": "EdgeBank, window",
    "edgebank_repeats": "EdgeBank, repeats",
    "edgebank_threshold": "EdgeBank, threshold",
    "recency": "recency",
    "popularity": "popularity",
    "pair_recency": "recency of the pair",
    "pair_popularity": "popularity of the pair",
    "heuristics": "heuristics",
}
_KINDS = {"random": "random", "historical": "historical", "inductive": "inductive"}
_PROTOCOLS = {"": "", "tgb/": ", TGB", **{f"dyglib/{kind}/": f", DyGLib, {name}" for kind, name in _KINDS.items()}}
_SPLITS = {
    f"{split}/{baseline}{protocol}": f"{title}{name}{rule}"
    for split, title in _SPLITS.items()
    for baseline, name in {"": "", **{f"{key}/": f", {name}" for key, name in BASELINES.items()}}.items()
    for protocol, rule in _PROTOCOLS.items()
}
FIGURES = {"ap": "AP", "auc": "AUC", "mrr": "MRR", "expected_mrr": "expected MRR", "hits@10": "Hits@10"}
FIGURES |= {"ap_inductive": "AP, unseen nodes", "new_node_ap": "AP, new nodes", "new_node_auc": "AUC, new nodes"}
_WIDEST = 1000
FIGURES |= {"accuracy": "accuracy", "f1": "F1", "f1_micro": "F1, micro"}


class Best(NamedTuple):
    """The best checkpoint of a run.

    Attributes:
        name: Of the figure that decided, such as ``val/ap``.
        value: It.
        path: The file.
    """

    name: str
    value: float
    path: str


def print_report(
    metrics: Mapping[str, float],
    log_dir: str | None,
    console: Console | None = None,
    *,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    best: Best | None = None,
    seconds: Mapping[str, float] | None = None,
) -> None:
    """Print the metrics of a run, the best checkpoint, what took the time, and the commands that show more.

    Of folders and commands only those are named that have something to show.

    Args:
        metrics: By key, such as ``val/ap``.
        log_dir: Folder of the logs; None where there are none.
        console: Where to print; standard output if None.
        checkpoint_dir: Folder of the checkpoints; None where there are none.
        best: None where no figure decided.
        seconds: Of the stages of training steps, and ``validation``; None where nobody counted.
    """
    console = console or Console()
    if any(_split_and_figure(name) for name in metrics):
        print_table(_table(metrics), console)
    lines = [f"{name}: {value:.4f}" for name, value in metrics.items() if _split_and_figure(name) is None]
    if best is not None:
        lines.append(f"best {best.name}: {best.value:.4f}, {best.path}")
    if seconds:
        lines.append(time_line(seconds))
    lines += _places(log_dir, checkpoint_dir)
    for line in lines:
        console.out(line, highlight=False)


def _places(log_dir: str | None, checkpoint_dir: str | os.PathLike[str] | None) -> list[str]:
    """Return where logs and checkpoints are, and the commands that show the logs; nothing of what is not there."""
    if log_dir is not None:
        log_dir = os.path.expanduser(log_dir)
    if checkpoint_dir is not None:
        checkpoint_dir = os.path.expanduser(checkpoint_dir)
    curves = log_dir is not None and any(Path(log_dir).glob("events.out.tfevents.*"))
    logs = curves or (log_dir is not None and (Path(log_dir) / "metrics.csv").is_file())
    saved = checkpoint_dir is not None and any(Path(checkpoint_dir).rglob("*.ckpt"))
    lines = []
    if logs and saved and Path(str(checkpoint_dir)).is_relative_to(str(log_dir)):
        lines.append(f"logs and checkpoints: {log_dir}")
    else:
        lines += [f"logs: {log_dir}"] if logs else []
        lines += [f"checkpoints: {checkpoint_dir}"] if saved else []
    lines += [f"curves: tensorboard --logdir {shlex.quote(str(log_dir))}"] if curves else []
    lines += [f"page: lightning-tgnn report {shlex.quote(str(log_dir))}"] if logs else []
    return lines


def print_table(table: Table, console: Console | None = None, *, wide: bool = False) -> None:
    """Print a table with all that is in it.

    On a terminal it gets no wider than that: without lines between columns where it would, with texts on several lines
    where that is not enough, and turned, with a row for each column, where words and numbers would be cut. A file or a
    pipe gets each row on one line, as a program reads it. Names may have brackets or colons, which rich would take for
    markup or emojis.

    Args:
        table: What to print.
        console: Where to; standard output if None.
        wide: Whether it may be wider than the terminal.
    """
    console = console or Console()
    terminal, width = console.is_terminal, console.width
    if terminal and not wide and _needed(table) > width:
        table.box, table.pad_edge = SIMPLE_HEAD, False
        turned = _turned(table)
        if _narrowed(table, width) > width >= _narrowed(turned, width):
            table = turned
    width = max(width, _needed(table))
    Console(file=console.file, width=width, markup=False, emoji=False, force_terminal=terminal).print(table)


def _needed(table: Table) -> int:
    """Return the width at which nothing in a table is cut, and no text begins another line that need not."""
    return Console(width=_WIDEST, markup=False, emoji=False).measure(table).maximum


def _narrowed(table: Table, width: int) -> int:
    """Give the columns of a table widths that make it no wider than a terminal, as far as no word is cut.

    Returns:
        The width of the table.
    """
    texts = [[str(text) for text in (column.header, *column.cells)] for column in table.columns]
    least = [max(cell_len(word) for text in own for word in text.split() or [""]) for own in texts]
    widths = [max(map(cell_len, own)) for own in texts]
    between = _needed(table) - sum(widths)
    while sum(widths) + between > width and widths != least:
        widest = max(
            (number for number in range(len(widths)) if widths[number] > least[number]), key=widths.__getitem__
        )
        widths[widest] -= 1
    for column, chosen in zip(table.columns, widths, strict=True):
        column.width = chosen
    return sum(widths) + between


def _turned(table: Table) -> Table:
    """Return a table with a row for each column but the first."""
    first, *others = table.columns
    turned = Table(str(first.header), *map(str, first.cells), box=table.box, pad_edge=table.pad_edge)
    for column in others:
        turned.add_row(str(column.header), *map(str, column.cells))
    for column in turned.columns[1:]:
        column.justify = "right"
    return turned


def time_line(seconds: Mapping[str, float]) -> str:
    """Return what took the time: the stages of training steps, the longest first, and validation.

    >>> time_line({"embed": 1.0, "backward": 3.0, "validation": 2.0})
    'time: training steps 4.0 s (backward 75 %, embed 25 %), validation 2.0 s'
    """
    stages = {stage: spent for stage, spent in seconds.items() if stage != "validation"}
    total = sum(stages.values())
    longest = sorted(stages, key=lambda stage: -stages[stage])
    shares = ", ".join(f"{stage} {stages[stage] / total:.0%}".replace("%", " %") for stage in longest if total)
    line = f"time: training steps {total:.1f} s" + (f" ({shares})" if shares else "")
    return f"{line}, validation {seconds['validation']:.1f} s" if "validation" in seconds else line


def row_and_figure(name: str) -> tuple[str, str, str] | None:
    """Return the baseline, the protocol with its negatives, and the metric of a name of the test; None of another.

    >>> row_and_figure("test/edgebank/dyglib/historical/ap"), row_and_figure("test/ap")
    (('edgebank', 'DyGLib, historical', 'ap'), ('', '', 'ap'))
    """
    place = _split_and_figure(name)
    if place is None or not name.startswith("test/"):
        return None
    middle = place[0].removeprefix("test/")
    baseline = middle.partition("/")[0]
    baseline = baseline if baseline in BASELINES else ""
    rule = middle.removeprefix(f"{baseline}/") if baseline else middle
    return baseline, _PROTOCOLS[rule].removeprefix(", "), place[1]


def _split_and_figure(name: str) -> tuple[str, str] | None:
    """Return the row and the column of a metric in the table; None where it has none."""
    split, slash, key = name.rpartition("/")
    return (f"{split}/", key) if slash and f"{split}/" in _SPLITS else None


def _table(metrics: Mapping[str, float]) -> Table:
    """Return a table with a row per split of the stream, baseline and kind of negatives that was measured."""
    cells = {place: value for name, value in metrics.items() if (place := _split_and_figure(name)) is not None}
    found = dict.fromkeys(key for _, key in cells)
    columns = {key: title for key, title in FIGURES.items() if key in found} | {
        key: key for key in found if key not in FIGURES
    }
    table = Table("", *columns.values())
    for split, title in _SPLITS.items():
        values = [cells.get((split, key)) for key in columns]
        if any(value is not None for value in values):
            table.add_row(title, *("" if value is None else f"{value:.4f}" for value in values))
    return table
