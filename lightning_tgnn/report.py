"""What a finished run tells its user: the figures, where they are kept and how to look at them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

_PARTS = {"val": "validation", "test": "test"}
_BASELINES = {"edgebank": "EdgeBank", "edgebank_window": "EdgeBank, window"}
_PARTS |= {f"{part}/{key}": f"{title}, {name}" for key, name in _BASELINES.items() for part, title in _PARTS.items()}
_FIGURES = {"ap": "AP", "auc": "AUC", "mrr": "MRR", "hits@10": "Hits@10", "ap_inductive": "AP, unseen nodes"}
_FIGURES |= {"accuracy": "accuracy", "f1": "F1", "f1_micro": "F1, micro"}


def print_report(figures: Mapping[str, float], log_dir: str | None, console: Console | None = None) -> None:
    """Print the figures of a run, the folder of its logs and the command that shows them.

    Args:
        figures: By key, such as ``val/ap``.
        log_dir: Folder of the logs; None where there are none.
        console: Where to print; standard output if None.
    """
    console = console or Console()
    console.print(_table(figures))
    if log_dir is not None:
        console.print(f"logs and checkpoints: {log_dir}", soft_wrap=True, highlight=False)
        console.print(f"curves: tensorboard --logdir {shlex.quote(log_dir)}", soft_wrap=True, highlight=False)


def _table(figures: Mapping[str, float]) -> Table:
    """Return a table with a row per part of the stream that was measured."""
    columns = {key: title for key, title in _FIGURES.items() if any(f"{part}/{key}" in figures for part in _PARTS)}
    table = Table("", *columns.values())
    for part, title in _PARTS.items():
        values = [figures.get(f"{part}/{key}") for key in columns]
        if any(value is not None for value in values):
            table.add_row(title, *("" if value is None else f"{value:.4f}" for value in values))
    return table
