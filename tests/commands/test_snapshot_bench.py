"""`bench --kind snapshots`: strategies on snapshots in real processes, its help and what it refuses."""

import json
import re
from pathlib import Path

import pytest

from lightning_tgnn.__main__ import main
from lightning_tgnn.commands.bench.snapshots import SnapshotBenchOptions
from lightning_tgnn.commands.shared.kinds import kind_of
from tests.data.example_streams import random_store
from tests.multiprocess.ranks import run_commands

TINY = ["--hidden_dim=4", "--group_size=3", "--groups_per_update=4", "--accelerator=cpu", "--num_workers=0"]
GENERATED = ["--source=synthetic_snapshots", "--synthetic={num_nodes: 60, num_edges: 200, num_snapshots: 14}"]


def test_the_generator_tells_its_kind_and_a_stream_has_to_be_told():
    assert kind_of("synthetic_snapshots") == kind_of("any.csv", "snapshots") == "snapshots"
    assert kind_of("synthetic_snapshots", "events") == kind_of("any.csv") == "events"


def test_all_strategies_are_measured_in_two_processes(tmp_path):
    limits = ["--epochs=4", "--warmup=2", "--rounds=2", "--devices=2", "--seed=3"]
    printed, _ = run_commands(tmp_path, ["bench", *GENERATED, *TINY, *limits, f"--output={tmp_path}"])
    found = json.loads((tmp_path / "bench.json").read_text())
    about = {"kind": "snapshots", "ranks": 2, "hosts": 1, "vertices": 60, "snapshots": 14, "groups_per_update": 4}
    assert {name: found[name] for name in about} == about
    assert list(found["strategies"]) == SnapshotBenchOptions().strategies.split(",")
    for name, metrics in found["strategies"].items():
        head = name.partition(":")[0]
        assert re.search(rf"{head}[^│]* +│ +{metrics['seconds_per_epoch']:.4f} │", printed), printed
        assert metrics["seconds_per_epoch"] == max(metrics["seconds_per_epoch_of_rounds"]) > 0
        assert 0 <= metrics["waiting_share"] < 1
        kinds = metrics["bytes_per_epoch_by_operation"]
        assert sum(kinds.values()) == pytest.approx(metrics["bytes_per_epoch"])
        assert kinds["gradients"] > 0
        hands_over = any(sent for operation, sent in kinds.items() if "hidden state" in operation)
        assert hands_over == (head == "snapshot_partition" or "processes_per_device=2" in name)
        assert bool(metrics["shared_memory_bytes_per_epoch"]) == hands_over
        assert bool(kinds.get("features")) == (head == "vertex_partition")
    # The same groups make up an update, the weights are the same at the start: so are the metrics of the test.
    tested = [metrics["test_ap"] for metrics in found["strategies"].values()]
    assert tested == pytest.approx(tested[:1] * len(tested), abs=0.02)


def test_a_stream_is_cut_and_trained_on_two_hosts(tmp_path):
    random_store(200, num_nodes=30).save(tmp_path / "stream")
    source = ["--kind=snapshots", f"--source={tmp_path / 'stream'}", "--num_snapshots=12"]
    limits = ["--epochs=3", "--rounds=1", "--strategies=blad:processes_per_device=1", "--model=evolvegcn_o"]
    said = run_commands(tmp_path, ["bench", *source, *TINY, *limits, f"--output={tmp_path}"], hosts=2)
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["hosts"], found["snapshots"], found["task"]["model"]) == (2, 12, "evolvegcn_o")
    (metrics,) = found["strategies"].values()
    sent = {operation: size for operation, size in metrics["bytes_per_epoch_by_operation"].items() if size}
    assert list(sent) == ["gradients"]  # nothing else travels between devices
    assert sum("s/epoch" in text for text in said) == 1  # one of them reports


def test_its_help_has_options_of_snapshots_and_not_what_it_sets_itself(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--kind", "snapshots", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    texts = ["--groups_per_update", "--num_snapshots", "--group_size", "--num_layers", "snapshot_partition", "--epochs"]
    for text in texts:
        assert text in printed, text
    assert "--batch_size" not in printed
    assert printed.count("--num_layers") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategies=sven"], r"strategies must be one of 'blad', 'snapshot_partition', 'vertex_.*', got 'sven'"),
        (["--strategies=blad:balance=odd"], r"balance must be one of 'even', 'load'|balance must be .*got 'odd'"),
        (
            ["--warmup=1"],
            r"warmup must be an integer of at least 2, got 1; 2 is usual: loads are measured in the first",
        ),
        (["--epochs=2"], r"warmup must be less than epochs=2, got 2"),
        (["--groups_per_update=0"], r"groups_per_update must be an integer of at least 1, got 0"),
        (["--batch_size=3"], r"batch_size must be left out with --kind snapshots"),
        (["--model=tgn"], r"model must be what builds .*'tgcn', 'wd_gcn', got 'tgn'"),
    ],
)
def test_mistakes_are_one_clear_line(arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--kind=snapshots", *arguments])
    assert re.search(rf"^lightning-tgnn: .*{message}", str(stopped.value)), stopped.value
    assert "\n" not in str(stopped.value)


def test_a_command_without_snapshots_says_what_it_takes(tmp_path):
    output = f"--output={tmp_path}"
    with pytest.raises(SystemExit, match=r"got 'synthetic_snapshots'; partition takes --kind events or --kind graph"):
        main(["partition", "--ranks=2", "--source=synthetic_snapshots", output])
    with pytest.raises(SystemExit, match=r"kind must be one of 'auto', 'events', 'graph', got 'snapshots'"):
        main(["partition", "--ranks=2", "--kind=snapshots", output])
    assert not list(Path(tmp_path).iterdir())
