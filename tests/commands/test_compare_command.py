"""`lightning-tgnn compare`: each run once, in a process of its own, and one table of them."""

import csv
import json
from statistics import fmean, stdev

import pytest

from lightning_tgnn.__main__ import main
from lightning_tgnn.callbacks.baselines import BASELINES
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.compare.command import compare
from lightning_tgnn.commands.compare.table import cells, rows_of, write
from lightning_tgnn.commands.shared import printed

SETTINGS = [
    "--trainer.max_epochs=1", "--data.synthetic={num_events: 600}", "--model.memory_dim=4", "--model.embedding_dim=4",
    "--data.num_neighbors=2", "--data.num_eval_negatives=19", "--data.batch_size=40", "--trainer.accelerator=cpu",
]  # fmt: skip


def test_runs_are_made_once_and_their_table_has_the_means(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        "compare",
        "--models=jodie,tgn",
        "--seeds=0,3",
        "--baselines=true",
        "--negatives=destination,all",
        *SETTINGS,
    ]
    main(words)
    said = capsys.readouterr().out
    assert "jodie, seed 3: test/ap 0." in said
    assert "events/s" in said
    folder = tmp_path / "compare"
    results = {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    assert sorted(results) == ["jodie-seed0", "jodie-seed3", "tgn-seed0", "tgn-seed3"]
    held = json.loads((folder / "compare.json").read_text())
    assert held["seeds"] == [0, 3]
    rows = list(csv.DictReader((folder / "compare.csv").read_text().splitlines()))
    assert len(rows) == 2 * (2 + len(BASELINES))
    assert [(row["model"], row["negatives"]) for row in rows[:4]] == [
        ("jodie", "destination"), ("jodie", "all"), ("tgn", "destination"), ("tgn", "all"),
    ]  # fmt: skip
    values = [
        json.loads((folder / f"tgn-seed{seed}" / "result.json").read_text())["tests"]["all"]["test/mrr"]
        for seed in (0, 3)
    ]
    assert values[0] != values[1]
    assert float(rows[3]["mrr"]) == pytest.approx(fmean(values))
    assert float(rows[3]["mrr_std"]) == pytest.approx(stdev(values))
    assert float(rows[3]["peak_bytes"]) > 1e8
    assert rows[0]["mrr"] != rows[1]["mrr"]  # the negatives differ
    lines = (folder / "compare.md").read_text().splitlines()
    assert len(lines) == 2 + len(rows)
    assert all(len(line.split("|")) == len(lines[0].split("|")) for line in lines)

    (folder / "tgn-seed3" / "result.json").unlink()
    main(words)
    again = {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    assert {name for name in again if again[name] != results[name]} == {"tgn-seed3"}
    with pytest.raises(SystemExit, match=r"--output must be a folder of runs with these settings, got .*jodie-seed0"):
        main([*words, "--data.seed=1"])


def test_a_run_that_fails_is_told_with_its_last_word(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"the run of tgn with seed 0 must be one that ends well, got .*lr"):
        compare(["--models=tgn", f"--output={tmp_path}", *SETTINGS, "--model.lr=-1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--models must be names of models or recipes, got 'nothing'"),
        (["--models=tgm"], "--models must be of .*, or recipes, got 'tgm'; did you mean 'tgn'"),
        (["--models=no.yaml"], "--models must be recipes that exist, got 'no.yaml'"),
        (["--models=tgn,tgn"], "--models must be distinct entries with commas between them"),
        (["--models=tgn", "--seeds=a"], "--seeds must be whole numbers from 0 on, got 'a'"),
        (["--models=tgn", "--negatives=alls"], "--negatives must be of .*, got 'alls'"),
        (["--models=tgn", "--seed_everything=3"], "--seed_everything must be left out of a comparison"),
    ],
)
def test_what_cannot_work_is_refused(words, message):
    with pytest.raises(InvalidArgumentError, match=message):
        compare(words)


def test_rows_of_a_protocol(tmp_path):
    tests = {
        "": {"test/dyglib/random/ap": 0.5, "test/dyglib/historical/ap": 0.25, "test/edgebank/dyglib/random/ap": 0.75}
    }
    more = {"": {name: value / 2 for name, value in tests[""].items()}}
    costs = {"events_per_second": 10.0, "peak_bytes": 2**30}
    rows = rows_of([("tgn", {"tests": tests, **costs}), ("tgn", {"tests": more, **costs, "events_per_second": None})])
    assert cells(rows) == [
        ["model", "negatives", "AP", "events/s", "peak memory"],
        ["tgn", "DyGLib, random", "0.3750 ± 0.1768", "10", "1.1 GB"],
        ["tgn", "DyGLib, historical", "0.1875 ± 0.0884", "10", "1.1 GB"],
        ["EdgeBank", "DyGLib, random", "0.7500", "", ""],
    ]
    write(rows, tmp_path, {})
    assert 'EdgeBank,"DyGLib, random",1,0.75,,' in (tmp_path / "compare.csv").read_text()


def test_every_baseline_has_a_title():
    assert tuple(printed.BASELINES) == BASELINES
