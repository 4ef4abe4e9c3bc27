"""What the terminal shows: tables as wide as it is, and no more of Lightning than counts."""

import io
import logging

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from lightning_tgnn.commands.fit.shown import ParameterSummary, less_from_lightning
from lightning_tgnn.commands.shared.printed import print_report, print_table
from lightning_tgnn.serving import TopK


@pytest.mark.parametrize("kind", ["terminal", "wide", "file"])
def test_a_table_is_as_wide_as_the_terminal_and_whole_in_a_file(kind):
    table, said = Table("plan", "batch", "why"), io.StringIO()
    table.add_row("sven:staleness=0", "200", "word " * 30)
    print_table(table, Console(file=said, width=80, force_terminal=kind != "file", no_color=True), wide=kind == "wide")
    lines = [line for line in said.getvalue().splitlines() if "\x1b" not in line]
    assert all(cell_len(line) <= 80 for line in lines) == (kind == "terminal")
    assert said.getvalue().count("word") == 30


def test_no_number_and_no_name_is_cut():
    said = io.StringIO()
    metrics = {f"{split}/f1_{number}": 0.1234 for split in ("val", "test") for number in range(20)}
    print_report(metrics | {"val/ap": 0.5}, None, Console(file=said, width=80, force_terminal=True, no_color=True))
    assert "\u2026" not in said.getvalue()
    assert said.getvalue().count("0.1234") == 40
    assert max(cell_len(line) for line in said.getvalue().splitlines() if "\x1b" not in line) <= 80
    table, said = Table("plan", "batch", "why"), io.StringIO()
    table.add_row(f"disttgl:{'memory=2:store=sharded' * 2}", "200", "word " * 30)
    print_table(table, Console(file=said, width=80, force_terminal=True, no_color=True))
    assert f"disttgl:{'memory=2:store=sharded' * 2}" in said.getvalue()
    assert max(cell_len(line) for line in said.getvalue().splitlines() if "\x1b" not in line) <= 80


def test_lightning_says_what_is_new():
    logger, heard = logging.getLogger("lightning.pytorch.utilities.rank_zero"), []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger.addHandler(handler)
    with less_from_lightning():
        for said in ("💡 Tip: buy", "Restored a", "Restored a", "Restored b"):
            logger.warning(said)
    logger.warning("💡 Tip: buy")
    logger.removeHandler(handler)
    assert heard == ["Restored a", "Restored b", "💡 Tip: buy"]


def test_the_summary_has_the_parts_with_parameters(capsys):
    columns = [("Name", ["model", "metrics"]), ("Type", ["A", "B"]), ("Params", ["2 K", "0 "]), ("FLOPs", ["0", "0"])]
    ParameterSummary.summarize(columns, 2000, 1000, 0.008, {}, 0)
    printed = capsys.readouterr().out
    assert "model" in printed
    assert "metrics" not in printed
    assert "FLOPs" not in printed


def test_the_best_print_as_a_table():
    found = np.ma.MaskedArray([["a", "b"], ["c", ""]], [[False, False], [False, True]])
    best = TopK(found, np.float32([[0.9, 0.5], [0.25, np.nan]]), np.array(["u", "v"]))
    frame = best.to_frame()
    assert frame.values.tolist() == [["u", 1, "a", np.float32(0.9)], ["u", 2, "b", 0.5], ["v", 1, "c", 0.25]]
    assert str(best) == str(frame)
    assert [part.shape for part in best] == [(2, 2), (2, 2)]
