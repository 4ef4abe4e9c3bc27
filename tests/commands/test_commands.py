"""The commands beside LightningCLI's: partitions that training takes, strategies compared in real processes."""

import json
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lightning_tgnn import TemporalDataModule
from lightning_tgnn.__main__ import main
from lightning_tgnn.algorithms.partitions.demand import Demand
from lightning_tgnn.algorithms.partitions.partition_cost import balance_report
from lightning_tgnn.algorithms.partitions.simple import PARTITION_METHODS
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.comm import Flow, Messages
from lightning_tgnn.commands.bench import events
from lightning_tgnn.commands.bench.comparison import Processes, contestants_of
from lightning_tgnn.commands.bench.meters import summed_flows
from lightning_tgnn.commands.bench.tables import _say_if_alike
from lightning_tgnn.commands.partition.nodes import MAKERS
from lightning_tgnn.strategies.parts.partition import choose_partition
from lightning_tgnn.types import RankLayout
from tests.data.example_streams import random_store
from tests.multiprocess.ranks import Started

RANKS = 3
DATA = Path(os.environ.get("LIGHTNING_TGNN_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))


def stream(folder, seed=0):
    random_store(300, num_nodes=40, seed=seed).save(folder)
    return folder


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A stream, and what `partition` found for it."""
    folder = tmp_path_factory.mktemp("partition")
    source, output = stream(folder / "stream"), folder / "out"
    options = ["--batch_size=10", "--batches=4", "--model=apan", "--num_workers=0"]
    main(["partition", f"--source={source}", f"--ranks={RANKS}", f"--output={output}", *options])
    return SimpleNamespace(source=source, output=output, metrics=json.loads((output / "partition.json").read_text()))


def test_every_method_of_the_strategies_is_compared(compared):
    assert set(MAKERS) == set(PARTITION_METHODS)
    assert {"range", "interval", "reflexbicut"} <= set(compared.metrics["methods"]) <= set(MAKERS)


def rows_of(source, numbers):
    """Return the demand of some global batches, and the ids of their events, counted rank by rank."""
    data = TemporalDataModule(source, batch_size=10, num_workers=0)
    data.sampled_roots = "events"  # APAN's
    loader = data.train_dataloader()
    ranks, nodes, events = [], [], []
    for rank in range(RANKS):
        for number, batch in enumerate(loader.follow(DataParallel(), RankLayout.of(RANKS), rank)):
            if number in numbers:
                nodes += [batch.nodes, batch.mail_nodes]
                ranks += [torch.full_like(part, rank) for part in nodes[-2:]]
                events.append(batch.events)
    return Demand.of(torch.cat(ranks), torch.cat(nodes), RANKS, data.info.num_nodes), torch.cat(events).sort().values


def test_partition_writes_what_balance_report_says_of_batches_that_were_not_fitted(compared):
    fitted, judged = (compared.metrics[name] for name in ("fitted_batches", "judged_batches"))
    assert judged == [3]  # of 7: 210 training events in batches of 3 ranks with 10 each
    assert fitted == [0, 1, 2, 4, 5, 6]
    demand, fitted_demand = rows_of(compared.source, judged)[0], rows_of(compared.source, fitted)[0]
    for method, metrics in compared.metrics["methods"].items():
        owner = torch.load(compared.output / f"{method}.pt", weights_only=True)["owner"]
        report = balance_report(demand, owner)
        assert metrics["matrix"] == report.matrix.tolist()
        assert metrics["residual"] == report.residual.tolist()
        assert metrics["cost"] == report.cost.tolist()
        assert metrics["saved"] == report.saved.tolist()
        assert metrics["maximum"] == report.maximum >= compared.metrics["maximum_bound"]
        assert metrics["maximum_where_fitted"] == balance_report(fitted_demand, owner).maximum
        assert metrics["max_over_mean"] == report.max_over_mean
        assert metrics["rows_over_mean"] == pytest.approx(float(owner.bincount().max()) * RANKS / 40)
        off_rank = 1 - report.matrix.trace() / report.matrix.sum()
        assert metrics["off_rank_share"] == pytest.approx(float(off_rank), rel=1e-6)
        assert metrics["seconds"] > 0
        assert (compared.output / f"{method}.png").read_bytes().startswith(b"\x89PNG")


def test_no_method_sees_the_events_that_it_is_judged_on(compared, tmp_path, monkeypatch):
    given = []

    def make(known):
        given.append(known)
        return MAKERS["interval"](known)

    monkeypatch.setitem(MAKERS, "range", make)
    options = ["--batch_size=10", "--batches=4", "--model=apan", "--methods=range", f"--output={tmp_path}"]
    main(["partition", f"--source={compared.source}", f"--ranks={RANKS}", *options])
    known = given[-1]  # the first call loads what the method needs
    store = TemporalDataModule(compared.source).store
    unseen = torch.ones(len(store.src), dtype=torch.bool)
    unseen[rows_of(compared.source, compared.metrics["judged_batches"])[1]] = False
    assert torch.equal(known.src, store.src[unseen])
    assert torch.equal(known.dst, store.dst[unseen])
    fitted = rows_of(compared.source, compared.metrics["fitted_batches"])[0]
    for name in ("rank", "node", "count"):
        assert torch.equal(getattr(known.fitted.demand, name), getattr(fitted, name))


def test_partition_prints_a_row_per_method_and_what_it_was_judged_on(tmp_path, capsys):
    source, output = stream(tmp_path / "stream"), f"--output={tmp_path / 'new'}"
    common = ["partition", f"--source={source}", "--ranks=2", "--methods=interval,reflexbicut", output]
    main([*common, "--batch_size=5", "--batches=8"])
    printed, told = capsys.readouterr()
    assert re.search(r"stream: 300 events \(210 / 45 / 45 for training, .*\d% of the events tied$", told, re.MULTILINE)
    assert re.search(r"stream: \d+% of the events have another one at their time: past='time' hides", told)
    assert "events tied" not in printed
    assert re.search(r"interval +│ nothing +│ +[\d,]+ │ +[\d,]+ │ +1\.\d+ │ +\d+\.\d% │ +1\.0", printed)
    assert re.search(r"reflexbicut +│ fitted batches +│ +[\d,]+ │ +[\d,]+ │ +1\.\d+ │ +\d+\.\d% │ +1\.[01]", printed)
    assert "judged on 5 of the 21 global batches of the training split, fitted on 16 others" in printed
    assert re.search(r"reflexbicut follows \d+% of the differences between ranks", printed)
    assert f"partition: {tmp_path / 'new'}" in printed
    with pytest.raises(SystemExit, match=r"batch_size times ranks must be below the 210 events .*smaller batch_size"):
        main([*common, "--batch_size=105"])


def test_metis_is_left_out_without_a_library_that_has_it(tmp_path, capsys, monkeypatch):
    for name in ("dgl", "pymetis"):
        monkeypatch.setitem(sys.modules, name, None)
    source, output = stream(tmp_path / "stream"), f"--output={tmp_path / 'out'}"
    common = ["partition", f"--source={source}", "--ranks=2", "--batch_size=20", output]
    main([*common, "--methods=range,metis"])
    assert re.search(r"metis is left out: .*install pymetis", capsys.readouterr().out)
    assert set(json.loads((tmp_path / "out/partition.json").read_text())["methods"]) == {"range"}
    with pytest.raises(SystemExit, match="install pymetis"):
        main([*common, "--methods=metis"])


def choose(path, ranks, source, schedule=DataParallel()):  # noqa: B008
    data = TemporalDataModule(source, batch_size=10, num_workers=0)
    run = SimpleNamespace(trainer=SimpleNamespace(datamodule=data), rank=0, schedule=schedule)
    run.messages = lambda family: Messages()
    return choose_partition(path, data.info.num_nodes, ranks, run)


def test_a_run_fits_its_partition_on_most_batches_and_tells_what_it_gains_on_others(tmp_path, caplog):
    source = stream(tmp_path / "stream")
    with caplog.at_level("INFO"):
        owner = choose("reflexbicut", RANKS, source)
    assert owner.bincount(minlength=RANKS).max() <= 1.1 * 40 / RANKS
    told = next(message for message in caplog.messages if message.startswith("partition"))
    assert re.search(r": [+-]\d+\.\d% in 6 batches that it was fitted on, [+-]\d+\.\d% in 1 others; the fullest", told)
    by_destination = choose("reflexbicut", RANKS, source, DataParallel("destination"))
    assert not torch.equal(owner, by_destination)  # that of the batches as they are dealt out


def test_strategies_take_the_file(compared, tmp_path, monkeypatch):
    path = compared.output / "reflexbicut.pt"
    assert choose(path, RANKS, compared.source).bincount(minlength=RANKS).min() > 0
    monkeypatch.setenv("HOME", str(compared.output))
    monkeypatch.setenv("USERPROFILE", str(compared.output))
    assert torch.equal(choose("~/reflexbicut.pt", RANKS, compared.source), choose(path, RANKS, compared.source))
    with pytest.raises(InvalidArgumentError, match=r"partition must be for 2 ranks, got '3 ranks in .*lightning-tgnn"):
        choose(path, 2, compared.source)
    with pytest.raises(InvalidArgumentError, match=r"partition must be of this graph, got 'the partition of another"):
        choose(path, RANKS, stream(tmp_path / "other", seed=1))


def run_console_script(folder, words):
    """Lightning starts the second process by the same words."""
    os.chdir(folder)
    sys.argv = words
    main(words[1:])


def test_what_ranks_exchange_is_added_up_where_one_of_them_has_had_no_batch():
    per_rank = [{"words": Flow(sent=8, calls=1), "rows": Flow(sent=40, calls=2)}, {"words": Flow(sent=8, calls=1)}]
    asked = []

    def strategy_of(rank):
        def reduce(metrics, reduce_op):
            asked.append(metrics)
            return metrics

        names = [sorted(flows) for flows in per_rank]
        return SimpleNamespace(
            world_size=2, root_device="cpu", broadcast=lambda value, source: names[source], reduce=reduce
        )

    found = [summed_flows(strategy_of(rank), flows) for rank, flows in enumerate(per_rank)]
    assert asked[0].shape == asked[1].shape  # else the ranks would not meet
    assert found == [{"rows": Flow(sent=40, calls=2), "words": Flow(sent=8, calls=1)}, {"rows": Flow(), **per_rank[1]}]


def test_a_strategy_is_what_its_name_means_in_a_trainer():
    found = contestants_of("disttgl,disttgl:minibatch=2", "events")
    assert [contestant.strategy()._chosen is None for contestant in found.values()] == [False, True]


def test_bench_measures_two_processes(tmp_path):
    sizes = ["--memory_dim=8", "--embedding_dim=8", "--time_dim=4", "--num_eval_negatives=1", "--batch_size=20"]
    limits = ["--warmup=2", "--steps=4", "--rounds=2", "--epochs=1", "--devices=2", "--accelerator=cpu"]
    store = ["--synthetic.num_events=600", "--synthetic.num_destinations=50", "--synthetic.edge_feature_dim=4"]
    strategies = ["sven", "sven:staleness=0:partition=interval", "depcomm", "depcache"]
    options = [f"--output={tmp_path}", f"--strategies={','.join(strategies)}", *store, *sizes, *limits]
    words = [str(Path(sys.executable).parent / "lightning-tgnn"), "bench", *options, "--one_process=true"]
    process = Started(run_console_script, (tmp_path, words), {}, tmp_path / "pipe")
    code, printed = process.finish(time.monotonic() + 150)
    assert code == 0, printed
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["ranks"], found["steps"]) == (2, 4)
    assert list(found["strategies"]) == strategies
    alone = found["one process"]  # on the same global batches
    assert alone["events"] == found["strategies"]["sven"]["events"]
    assert alone["sent_per_event"] == 0
    assert re.search(r"one process +│ +[\d,]+ │", printed), printed
    for name, metrics in found["strategies"].items():
        shown = name.replace(":staleness", ".*")  # a long name takes several lines
        assert re.search(rf"{shown.partition('=')[0]} +│ +[\d,]+ │ +[\d,]+ │", printed), printed
        assert metrics["events"] == 4 * 2 * 20
        assert metrics["events_per_second"] == min(metrics["events_per_second_of_rounds"]) > 0
        assert metrics["events_per_second"] == pytest.approx(metrics["events"] / metrics["seconds"])
        by_operation = metrics["sent_per_event_by_operation"]
        assert min(by_operation.values()) > 0
        assert metrics["sent_per_event"] == pytest.approx(sum(by_operation.values()))
        for flow in metrics["flows"].values():
            assert flow["sent"] == flow["received"]  # over all ranks
            assert flow["calls"] > 0
        assert 0 <= metrics["hidden_share"] <= 1  # nothing, where a rank never had to wait
        assert 0 < metrics["val_ap"] <= 1
    assert found["strategies"]["sven"]["sent_per_event"] < found["strategies"]["depcomm"]["sent_per_event"]


def test_bench_measures_no_step_that_is_incomplete(monkeypatch, capsys):
    given = []

    def compare(comparison, run):
        given.append(comparison)
        return {}, {"ranks": run.processes.ranks, "rounds": run.rounds, **comparison.about}

    monkeypatch.setattr(events, "compare", compare)
    stream = ["bench", "--synthetic.num_events=600", "--devices=2", "--batch_size=20"]  # 420 train: 10.5 global batches
    for asked, steps in ((50, 8), (8, 8), (7, 7)):
        main([*stream, "--warmup=2", f"--steps={asked}"])
        assert given[-1].measured(False)[1].train_batches == 2 + steps
        printed = capsys.readouterr().out
        assert f"{steps} steps after 2 others" in printed
        assert ("not 50 steps: an epoch has no more global batches that are whole" in printed) == (asked > steps)
    with pytest.raises(SystemExit, match=r"warmup must be less than the whole .*, got '10 of 10'; give a smaller"):
        main([*stream, "--warmup=10"])


def test_bench_refuses_an_output_that_is_no_folder_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_tgnn.commands.bench.comparison._trained", None)
    (tmp_path / "taken").touch()
    words = ["bench", "--synthetic.num_events=600", "--devices=2", "--batch_size=5", f"--output={tmp_path / 'taken'}"]
    with pytest.raises(SystemExit, match=r"output must be where files can be written, got .*taken.*; choose another"):
        main(words)


@pytest.mark.parametrize(("warmup", "inside"), [(10, 30), (80, 20), (100, 0)])
def test_bench_says_where_powersgd_has_not_begun(warmup, inside, tmp_path, monkeypatch, capsys):
    metrics = {"events_per_second": 1.0, "sent_per_event": 1.0, "sent_per_event_by_operation": {}, "hidden_share": None}
    monkeypatch.setattr("lightning_tgnn.commands.bench.comparison._trained", lambda *a, **o: metrics | {"val_ap": None})
    monkeypatch.setattr("lightning_tgnn.commands.bench.comparison._write", lambda *given: None)
    names = ("depcache", "sven:gradient_compression=powersgd", "sven:gradient_compression=int8")
    stream = ["--synthetic.num_events=3000", "--batch_size=5", f"--strategies={','.join(names)}", "--steps=30"]
    words = ["bench", *stream, f"--warmup={warmup}", "--rounds=1", f"--output={tmp_path}"]
    main([*words, "--devices=2"])
    said = f"{names[1]}: {inside} of the 30 updates that are measured are among the first 100, whose gradients travel"
    printed = capsys.readouterr().out
    assert (said in printed) == (inside > 0)
    assert printed.count("updates that are measured") == (inside > 0)
    main([*words, "--devices=1"])
    assert "updates that are measured" not in capsys.readouterr().out  # one rank sends none


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("partition", ["--methods METHODS", "Events per rank and step", "METHOD.png"]),
        ("bench", ["--strategies STRATEGIES", "Events per rank and step", "Width of the node memory"]),
    ],
)
def test_help_helps(command, expected, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for text in expected:
        assert text in printed, printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bench", "--strategies=sven,ddp"],
            r"strategies must be one of .*'pipetgl', 'sven'.*, got 'ddp'",
        ),
        (["bench", "--strategies=,"], r"strategies must be names out of .*depcomm"),
        (["bench", "--strategies=sven:staleness"], r"strategies must be a name with options, got 'sven:staleness'"),
        (["bench", "--strategies=sven:staleness=["], r"staleness with a value as in YAML, got .*; correct '\['"),
        (
            ["bench", "--strategies=sven:store=2024-13-01"],
            r"store with a value as in YAML, got .*; correct '2024-13-01'",
        ),
        (
            ["simulate", "--stages={}", "--strategy=sven:remote=@"],
            r"strategy must be .*, remote with a value as in YAML",
        ),
        (
            ["simulate", "--stages={}", "--strategy=sven:remote=1:remote=2"],
            r"strategy must be a name with each option once, got 'sven:remote=1:remote=2'; leave one of them out",
        ),
        (["bench", "--strategies=sven:stale=0"], r"option of SvenStrategy must be one of .*staleness.*, got 'stale'"),
        (["bench", "--strategies=sven:staleness=2"], r"staleness must be 0 or 1, got 2"),
        (["bench", "--devices=0"], r"devices must be an integer of at least 1, got 0"),
        (
            ["bench", "--warmup=1000"],
            r"warmup must be less than the whole global batches of an epoch, got '1000 of 35'",
        ),
        (["bench", "--source=nowhere.csv"], r"nowhere\.csv"),
        (["bench", "--model=cawn"], r"model must be .*one of 'apan', .*, got 'cawn'"),
        (
            ["partition", "--ranks=2", "--methods=range,louvain"],
            r"methods must be one of .*'reflexbicut', got 'louvain'",
        ),
        (["partition", "--ranks=0"], r"ranks must be an integer of at least 1, got 0"),
        (["partition", "--ranks=2", "--row_limit=0.9"], r"row_limit must be at least 1, got 0.9; 1.1 is usual"),
        (
            ["partition", "--ranks=2", "--row_limit=1.5", "--methods=range,metis"],
            r"row_limit must be left out without reflexbicut, got 1.5; leave it out, or add reflexbicut to --methods",
        ),
        (["partition", "--ranks=2", "--split_batch=node"], r"split_batch must be one of 'destination', 'time', got"),
        (["bench", "--strategies=sven:split_batch=node"], r"split_batch must be one of 'destination', 'time', got"),
        (["partition", "--ranks=2", "--model=cawn"], r"model must be .*one of 'apan', .*, got 'cawn'"),
        (
            ["partition", "--ranks=30000"],
            r"ranks must be at most the events of a split, .*, got 30000; use fewer",
        ),
    ],
)
def test_mistakes_are_one_clear_line(arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert re.search(rf"^lightning-tgnn: .*{message}", str(stopped.value))
    assert "\n" not in str(stopped.value)


def test_processes_that_others_have_started(monkeypatch):
    assert (Processes.of(None, None).ranks, Processes.of(4, 2).ranks) == (2, 8)
    monkeypatch.setattr(os, "environ", {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    found = Processes.of(None, None)
    assert (found.devices, found.num_nodes, found.plugins[0].global_rank()) == (2, 2, 3)
    assert (os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"]) == ("1", "1")
    with pytest.raises(InvalidArgumentError, match=r"devices must be 2, as the processes have been started, got 4"):
        Processes.of(4, None)


@pytest.mark.parametrize(
    ("rounds", "alike"),
    [
        ({"sven": [90.0, 110.0, 100.0], "depcache": [80.0, 91.0, 85.0], "depcomm": [70.0, 89.9, 60.0]}, "depcache"),
        ({"sven": [90.0, 110.0], "depcomm": [70.0, 89.9]}, None),
        ({"sven": [90.0]}, None),
    ],
)
def test_bench_says_which_rounds_overlap(rounds, alike, capsys):
    results = {
        name: {"events_per_second": sorted(each)[len(each) // 2], "events_per_second_of_rounds": each}
        for name, each in rounds.items()
    }
    _say_if_alike(results, "events_per_second", higher_is_faster=True)
    printed = capsys.readouterr().out
    said = f"rounds overlap: sven is not distinguishable from {alike} here; take auto-state"
    assert printed.startswith(said) if alike else not printed


@pytest.mark.skipif(not (DATA / "CollegeMsg.txt.gz").exists(), reason="needs CollegeMsg.txt.gz in LIGHTNING_TGNN_DATA")
def test_on_batches_that_it_has_not_seen_reflexbicut_is_better_balanced_than_range(tmp_path):
    words = [f"--source={DATA / 'CollegeMsg.txt.gz'}", "--ranks=8", "--batch_size=150", f"--output={tmp_path}"]
    main(["partition", *words, "--methods=range,interval,reflexbicut"])
    methods = json.loads((tmp_path / "partition.json").read_text())["methods"]
    by_range, interval, ours = (methods[name]["maximum"] for name in ("range", "interval", "reflexbicut"))
    assert ours < 0.85 * by_range
    assert ours < 1.02 * interval  # who needs a node is chance here, so there is next to nothing to gain
