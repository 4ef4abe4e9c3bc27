"""``lightning-tgnn simulate``: tables, pictures and traces of what has not been run."""

import json
import re
from pathlib import Path

import pytest

from lightning_tgnn.__main__ import main
from lightning_tgnn.algorithms.schedules.links import Link, Links
from lightning_tgnn.algorithms.schedules.outlines import data_parallel, in_order, mean_gradients
from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline
from lightning_tgnn.algorithms.schedules.simulator import Costs, simulate
from lightning_tgnn.algorithms.schedules.validator import faults, programs
from lightning_tgnn.commands.simulate.given_costs import read_costs, read_link
from lightning_tgnn.commands.simulate.plans import SimulatedPlan, strategies
from lightning_tgnn.types import RankLayout
from lightning_tgnn.types.outline import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL

SECONDS = {"sample": 0.001, "fetch": 0.002, "update": 0.006, "embed": 0.02, "write": 0.003, "backward": 0.03}
SENT = {"rows": 4e5, "updates": 2e5, "gradients": 1.2e6}
GIVEN = json.dumps({"seconds": SECONDS, "bytes": SENT, "batch_size": 300})


def run(capsys, *options):
    main(["simulate", *options])
    return capsys.readouterr().out


def metrics(folder, capsys, *options):
    run(capsys, *options, f"--output={folder / 'out.json'}")
    return json.loads((folder / "out.json").read_text())


def test_every_strategy_is_told_on_every_number_of_ranks(tmp_path, capsys):
    on_events = [name for name, kind in strategies().items() if kind.trains_on == "events"]
    names = [name for name in on_events if name != "auto-state"]  # which asks what is trained
    printed = run(capsys, f"--strategy={','.join(names)}", f"--stages={GIVEN}", "--ranks=1,2,4", "--turns=8")
    for name in names:
        rows = re.findall(rf"^│ {name} +│ +(\d+) │", printed, re.MULTILINE)
        assert rows == ["1", "2", "4"]
    assert "8 turns of 300 events per rank; the second half is taken to be steady" in printed
    assert "not given and taken to be 0: gather, other, score, serve, step, store\n" in printed


def test_figures_are_those_of_the_simulator(tmp_path, capsys):
    options = ["--strategy=depcache,pipetgl:groups=2", "--ranks=4", "--hosts=2", "--turns=10", "--link=100:2"]
    found = metrics(tmp_path, capsys, *options, f"--stages={GIVEN}", "--local_link=8000:0.5", "--batch_size=200")
    links = {"between": read_link("", "100:2"), "within": read_link("", "8000:0.5")}
    layout, order = RankLayout.of(4, per_host=2), in_order()
    outlines = [
        data_parallel("depcache", order, mean_gradients(order), delay=0),
        PipeTGLOutline(groups=2).of(4),
    ]
    assert found["batch_size"] == 200
    for forecast, outline in zip(found["forecasts"], outlines, strict=True):
        sent = {name: SENT[name] for name in outline.costs(travelling=True)}
        costs = Costs(SECONDS, sent, type(Costs({}).links)(**links))
        known = simulate(outline, layout, costs, 10)
        assert forecast["seconds_per_turn"] == pytest.approx(known.period)
        assert forecast["events_per_second"] == pytest.approx(4 * 200 / known.period)
        assert forecast["bubble"] == pytest.approx(known.bubble.mean())
        # Seconds per turn, as those of waiting and of the turn itself.
        assert forecast["critical_path"] == pytest.approx({name: s / 10 for name, s in known.critical_path().items()})
        assert (forecast["ranks"], forecast["hosts"]) == (4, 2)


def test_numbers_that_yaml_takes_for_texts_are_read():
    assert read_costs("{seconds: {embed: 1e-3}}").seconds == {"embed": 0.001}


def test_bytes_follow_from_what_is_given():
    given, plan = read_costs(GIVEN), SimulatedPlan.of("pipetgl:pass_on=true:sends=weights_and_moments:repeated=0.25")
    costs = given.of(plan, plan.outline(4), 4, Costs({}).links)
    assert costs.sent == {"hand": 0.25 * SENT["updates"], "weights": 3 * SENT["gradients"]}
    sven = SimulatedPlan.of("sven")
    assert given.of(sven, sven.outline(4), 4, Costs({}).links).sent == {
        "rows": 0.75 * SENT["rows"],
        "updates": 0.75 * SENT["updates"],
        "gradients": SENT["gradients"],
    }
    more = read_costs(GIVEN, "{hand: 7, rows: 1}")
    assert more.of(plan, plan.outline(4), 4, Costs({}).links).sent["hand"] == 7
    assert more.sent["rows"] == 1
    assert more.missing(plan, 2) == ["gather", "other", "score", "step"]


@pytest.mark.parametrize("ranks", [2, 5])
def test_compressed_gradients_are_of_as_many_bytes_as_a_rank_sends(ranks):
    given, whole = read_costs(GIVEN, "{gradients_powersgd: 7000}"), SENT["gradients"]
    expected = {"bfloat16": whole / 2, "int8": whole / 4 * 260 / 256, "powersgd": 7000}
    layout, link = RankLayout.of(ranks, per_host=1), Links(between=Link(0.0, 12.5e6))
    for name, size in expected.items():
        for strategy in ("sven", "depcomm", "depcache", "disttgl"):
            plan = SimulatedPlan.of(f"{strategy}:gradient_compression={name}")
            outline = plan.outline(ranks)
            costs = given.of(plan, outline, ranks, link)
            lacking = read_costs(GIVEN).missing(SimulatedPlan.of(strategy), ranks)
            assert set(given.missing(plan, ranks)) == {*lacking, f"compress_{name}"}
            kinds = {"gradients", "gradient sums"}
            sending = [stage for stage in outline.stages if stage.cost in kinds]
            each = {ALL_TO_ALL: 1, ALL_GATHER: ranks - 1, ALL_REDUCE: 2 * (ranks - 1) / ranks}
            sent = [each[stage.travel] * stage.share * costs.sent[stage.cost] for stage in sending]
            assert sum(sent) == pytest.approx(2 * (ranks - 1) / ranks * size)
            if strategy != "disttgl":  # whose weights change alike, but which asks for rows otherwise
                assert faults(programs(outline, ranks, 6), outline, ranks) == []
        only = {"seconds": {"backward": 0.01}, "bytes": {"gradients": whole, "gradients_powersgd": 7000}}
        plan = SimulatedPlan.of(f"depcache:gradient_compression={name}")
        costs = read_costs(json.dumps(only)).of(plan, plan.outline(ranks), ranks, link)
        found = simulate(plan.outline(ranks), layout, costs, 10)
        assert found.period == pytest.approx(0.01 + 2 * (ranks - 1) / ranks * size / 12.5e6)
        for strategy, sends in (("depcache", 2 * (ranks - 1) / ranks * size / 12.5e6), ("depcache:staleness=1", 0)):
            seconds = {"backward": 0.5, f"compress_{name}": 0.25}  # of late gradients in the background, too
            plan = SimulatedPlan.of(f"{strategy}:gradient_compression={name}")
            costs = read_costs(json.dumps(only | {"seconds": seconds})).of(plan, plan.outline(ranks), ranks, link)
            found = simulate(plan.outline(ranks), layout, costs, 10)
            assert found.period == pytest.approx(0.75 + sends)


@pytest.mark.parametrize("name", ["bfloat16", "int8", "powersgd"])
def test_one_rank_compresses_nothing(name):
    only = {"seconds": {"backward": 0.5, f"compress_{name}": 0.25}, "bytes": {"gradients": 1e6}}
    plan = SimulatedPlan.of(f"depcache:gradient_compression={name}")
    given = read_costs(json.dumps(only))
    costs = given.of(plan, plan.outline(1), 1, Links())
    assert simulate(plan.outline(1), RankLayout.of(1), costs, 4).period == pytest.approx(0.5)
    missing = read_costs(json.dumps({"seconds": {"backward": 0.5}})).missing(plan, 1)
    assert not [found for found in missing if "compress" in found]


def test_ranks_of_a_host_share_its_link_where_pieces_go_from_each_to_each():
    only = json.dumps({"seconds": {"backward": 0.0}, "bytes": {"gradients": 1e6}})
    layout, links = RankLayout.of(8, per_host=4), Links(Link(0.0, 1e15), Link(0.0, 12.5e6))
    plan = SimulatedPlan.of("depcache:gradient_compression=bfloat16")
    costs = read_costs(only).of(plan, plan.outline(8), 8, links)
    # Each of four ranks sends an eighth of half of the bytes to each of four on the other host, twice.
    assert simulate(plan.outline(8), layout, costs, 4).period == pytest.approx(2 * 4 * 4 * 5e5 / 8 / 12.5e6)


def test_each_strategy_may_take_something_else(tmp_path, capsys):
    each = {name: {"seconds": {"backward": seconds}} for name, seconds in (("sven", 0.5), ("disttgl", 0.25))}
    given = json.dumps({"strategies": each})
    found = metrics(
        tmp_path, capsys, "--strategy=sven,disttgl", f"--stages={given}", "--bytes={gradients: 0}", "--ranks=1"
    )
    assert [one["seconds_per_turn"] for one in found["forecasts"]] == [0.5, 0.25]


def test_fewer_rows_travel_where_batches_are_split_by_destination(tmp_path, capsys):
    given = "{seconds: {backward: 0.000000001}, bytes: {rows: 1000000000, updates: 500000000}}"
    plans = "sven:staleness=0,sven:staleness=0:remote=0.5,sven:staleness=0:remote=0.5:ahead=0.5:micro_batches=2"
    found = metrics(tmp_path, capsys, f"--strategy={plans}", f"--stages={given}", "--ranks=4")["forecasts"]
    whole, half, ahead = (forecast["events_per_second"] for forecast in found)
    assert half == pytest.approx(2 * whole, rel=1e-2)
    assert ahead == pytest.approx(2 * whole, rel=1e-2)


def test_copies_that_are_cut_may_lie_on_several_hosts(tmp_path, capsys):
    given = "{seconds: {backward: 0.000000001}, bytes: {rows: 1000000, updates: 1000000}}"
    link = ["--link=8:0", "--local_link=1000000000:0", "--turns=8"]
    words = "disttgl:store=sharded:memory=1:minibatch={}:epoch={},disttgl:store=sharded:memory=2:minibatch={}:epoch={}"
    words += ",disttgl:store=sharded:memory=4"
    plans = words.format(4, 1, 2, 1)
    found = metrics(tmp_path, capsys, f"--strategy={plans}", f"--stages={given}", "--ranks=4", "--hosts=4", *link)
    seconds = [forecast["seconds_per_turn"] for forecast in found["forecasts"]]
    # Of a rank's bytes 3/4 and 1/2 live on others, a megabyte a second leaves its host.
    assert seconds == pytest.approx([2 * 3 / 4, 2 * 1 / 2, 0], abs=1e-6)
    found = metrics(
        tmp_path, capsys, f"--strategy={words.format(2, 2, 1, 2)}", f"--stages={given}", "--ranks=4", "--hosts=4", *link
    )
    seconds = [forecast["seconds_per_turn"] for forecast in found["forecasts"]]
    # One rank of two reads for both passes 4/3 times as much; what it writes stays the same.
    assert seconds == pytest.approx([7 / 3 * 3 / 4, 7 / 3 * 1 / 2, 0], abs=1e-6)


def test_rows_that_are_cut_may_have_costs_of_their_own():
    names = ("disttgl", "disttgl:store=sharded", "pipetgl")
    given = read_costs(
        json.dumps({"strategies": {name: {"seconds": {"score": place}} for place, name in enumerate(names)}})
    )
    written = ("disttgl:epoch=2", "disttgl:epoch=2:store=sharded", "pipetgl", "pipetgl:groups=2")
    plans = [SimulatedPlan.of(each) for each in written]
    assert [given.for_plan(plan).seconds["score"] for plan in plans] == [0, 1, 2, 2]


def test_shares_of_rows_are_options_that_those_of_a_strategy_go_before(tmp_path, capsys):
    measured = {"targets": 0.9, "repeated": 0.8, "ahead": 0.6}
    given = json.dumps({**json.loads(GIVEN), "shares": measured})
    named = (
        "sven:ahead=0.6", "sven:ahead=0", "pipetgl:targets=0.9:repeated=0.8", "pipetgl:targets=0.1:repeated=0.8",
        "disttgl:store=sharded:ahead=0.6", "disttgl", "disttgl:store=sharded:epoch=2", "depcache",
    )  # fmt: skip
    left_open = ("sven", *named[1:2], "pipetgl", "pipetgl:targets=0.1", "disttgl:store=sharded", *named[5:])
    options = ["--ranks=2", "--local_link=1000:0", "--turns=8"]
    known = metrics(tmp_path, capsys, f"--strategy={','.join(named)}", f"--stages={GIVEN}", *options)["forecasts"]
    found = metrics(tmp_path, capsys, f"--strategy={','.join(left_open)}", f"--stages={given}", *options)["forecasts"]
    seconds = [[one["seconds_per_turn"] for one in forecasts] for forecasts in (known, found)]
    assert seconds[0] == seconds[1]
    assert seconds[0][0] < seconds[0][1]
    # Each strategy has its own, as `plan` writes them.
    own = {"strategies": {"sven": json.loads(given), "pipetgl": json.loads(GIVEN)}}
    options.append(f"--stages={json.dumps(own)}")
    found = metrics(tmp_path, capsys, "--strategy=sven,pipetgl:targets=0.9:repeated=0.8", *options)["forecasts"]
    assert [one["seconds_per_turn"] for one in found] == [seconds[0][0], seconds[0][2]]


def test_a_share_may_be_all_rows(tmp_path, capsys):
    for written in ("pipetgl:targets=1:repeated=1", "sven:ahead=1"):
        outline = SimulatedPlan.of(written).outline(2)
        assert faults(programs(outline, 2, 6), outline, 2) == []
        (found,) = metrics(tmp_path, capsys, f"--strategy={written}", f"--stages={GIVEN}", "--ranks=2")["forecasts"]
        assert found["seconds_per_turn"] > sum(SECONDS.values()) / 2


def test_files_and_runs_are_read(tmp_path):
    (tmp_path / "costs.yaml").write_text(f"seconds: {json.dumps(SECONDS)}\nbatch_size: 10\n")
    assert read_costs(str(tmp_path / "costs.yaml")).seconds == SECONDS
    assert read_costs(str(tmp_path / "costs.yaml")).batch_size == 10
    run = tmp_path / "version_0"
    run.mkdir()
    # Windows of 10 steps of 0.1 s and of 5 steps of 0.4 s; behind another, in which loops are compiled, the same.
    rows = ["step,time/fetch,time/wait,time/sample,system/window_seconds,system/milliseconds_per_step"]
    (run / "metrics.csv").write_text("\n".join([*rows, "10,0.5,0.25,0.25,1.0,100", ""]))
    assert read_costs(str(run)).seconds == pytest.approx({"fetch": 0.05, "other": 0.025, "sample": 0.0})
    warm = ["10,0.5,0.25,0.25,1.0,100", "15,0.25,0.25,0.5,2.0,400", ""]
    (run / "metrics.csv").write_text("\n".join([*rows, "5,0.9,0.05,0.05,9.0,1800", *warm]))
    assert read_costs(str(run)).seconds == pytest.approx({"fetch": 1.0 / 15, "other": 1.25 / 15, "sample": 0.0})
    assert read_costs(str(run)).batch_size is None
    (run / "hparams.yaml").write_text("data: {batch_size: 100, num_workers: 2}\n")
    assert read_costs(str(run)).batch_size == 100
    rows = ["step,time/graph,time/nn,system/window_seconds,system/milliseconds_per_step", "10,0.5,0.25,1.0,100", ""]
    (run / "metrics.csv").write_text("\n".join(rows))
    with pytest.raises(
        ValueError, match=r"stages must be a run on an event stream, got '.*, on snapshots'; simulate bl"
    ):
        read_costs(str(run))
    (run / "metrics.csv").write_text("step,train/loss\n10,0.5\n")
    with pytest.raises(ValueError, match="stages must be a run with shares of time, got "):
        read_costs(str(run))


def test_pictures_and_traces_are_written(tmp_path, capsys):
    picture, trace = tmp_path / "new" / "out.png", tmp_path / "out.json"
    options = [f"--timeline={picture}", f"--trace={trace}", "--shown_turns=2", "--turns=5"]
    printed = run(capsys, "--strategy=sven,pipetgl", f"--stages={GIVEN}", "--ranks=2,20", *options)
    assert f"timeline: {picture}\n" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    bars = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {bar["pid"] for bar in bars} == set(range(20))
    assert {bar["args"]["turn"] for bar in bars} == {0, 1}
    assert {"targets_update", "support"} <= {bar["name"] for bar in bars}


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (
            ["--strategy=pipetgll"],
            "'pipetgl', 'snapshot_partition', 'sven', 'vertex_partition', got 'pipetgll'; did you mean 'pipetgl'?",
        ),
        (["--strategy= , "], "strategy must be names of strategies, got ' , '; separate them by commas"),
        (
            ["--strategy=sven:groups=2"],
            "option of sven must be one of 'ahead', 'features_by_event', 'fetch_ahead', 'gradient_compression', ",
        ),
        (
            ["--strategy=sven:gradient_compression=fp8"],
            "gradient_compression must be bfloat16, int8, powersgd, one of them with settings",
        ),
        (
            ["--strategy=sven:gradient_compression=powersgd"],
            "bytes must be with gradients_powersgd: how many there are goes by the shapes of the weights, got",
        ),
        (["--strategy=sven:micro_batches=0"], "micro_batches must be an integer of at least 1, got 0"),
        (["--strategy=sven:staleness=2"], "staleness must be 0 or 1, got 2; 0 waits for gradients"),
        (["--strategy=sven:staleness=often"], "staleness must be an integer of at least 0, got 'often'"),
        (["--strategy=pipetgl:pass_on=3"], "pass_on must be True or False, got 3"),
        (["--strategy=pipetgl:staleness=smallest"], "staleness must be an integer of at least 0, got 'smallest'"),
        (
            ["--strategy=pipetgl:sends=weights_and_moments:staleness=0"],
            "staleness must be left out where weights travel: ",
        ),
        (
            ["--strategy=disttgl:minibatch=2:memory=2"],
            "must be three factors whose product is the 2 ranks, got '2 x 1 x 2'; let their prod",
        ),
        (
            ["--strategy=disttgl:memory=1", "--ranks=1,2"],
            "three factors whose product is the 2 ranks, got '1 x 1 x 1'",
        ),
        (
            ["--strategy=disttgl:minibatch=2", "--hosts=2"],
            "memory must be a multiple of the 2 machines: a copy of node mem",
        ),
        (["--strategy=disttgl:epoch=0"], "epoch must be an integer of at least 1, got 0"),
        (["--strategy=disttgl:store=host"], "store must be 'served' or 'sharded', got 'host'"),
        (["--strategy=disttgl:ahead=0.5"], "option of disttgl must be one of 'epoch', 'fetch_ahead', "),
        (
            ["--strategy=disttgl:store=sharded:epoch=2:ahead=0.5"],
            "option of disttgl must be one of 'epoch', 'fetch_ahead', ",
        ),
        (["--strategy=disttgl:store=sharded:ahead=2"], "ahead must be "),
        (["--strategy=sven:fetch_ahead=false:ahead=0.5"], "option of sven must be one of "),
        (["--strategy=sven:micro_batches=adaptive"], "micro_batches must be a number, to be simulated, got 'adaptive'"),
        (["--strategy=disttgl:memory=1000000"], "strategy must be one for at most 65,536 ranks, got '1,000,000'"),
        (["--strategy=auto-state"], "strategy must be one whose plan does not depend on what is trained, got 'auto-st"),
        (["--strategy=pipetgl", "--hosts=2"], "groups must be so many that the ranks of each are on one machine"),
        (["--strategy=sven:remote=-1"], "remote must be a finite number of at least 0, got -1; give a share"),
        (["--strategy=disttgl:fetch_ahead=3"], "fetch_ahead must be True or False, got 3"),
        (["--strategy=pipetgl:groups=3"], "groups must be a divisor of the 2 ranks, got 3; let groups divide"),
        (["--ranks=2,x"], "ranks must be integers of at least 1, with commas, got '2,x'; give for example 2,4,8"),
        (["--ranks=0"], "ranks must be integers of at least 1"),
        (["--ranks=3", "--hosts=2"], "hosts must be a divisor of ranks=3, got 2; give as many ranks on each host"),
        (["--turns=1"], "turns must be an integer of at least 2, got 1; 50 is usual"),
        (["--shown_turns=0"], "shown_turns must be an integer of at least 1"),
        (["--batch_size=0"], "batch_size must be an integer of at least 1"),
        (["--link=fast"], "link must be MBIT or MBIT:MILLISECONDS, got 'fast'; give for example 10000:0.1"),
        (["--link=0"], "MBIT of link must be a finite number above 0, got 0.0"),
        (["--local_link=10:-1"], "MILLISECONDS of local_link must be a finite number of at least 0, got -1.0"),
        (
            ["--stages=nowhere.yaml"],
            "stages must be a file or a folder that is there, got 'nowhere.yaml'; correct the path",
        ),
        (
            ["--stages=."],
            "stages must be a folder with TensorBoard's event files or a metrics.csv, or with vers",
        ),
        (["--stages={seconds: {embd: 1}}"], "got 'embd'; did you mean 'embed'?"),
        (["--stages={seconds: {embed: 1s}}"], "seconds of embed must be a finite number of at least 0, got '1s'"),
        (["--stages={seconds: {embed: -1}}"], "seconds of embed must be a finite number of at least 0, got -1"),
        (["--stages={seconds: {embed: [1, 2]}}"], "seconds of embed must be a finite number of at least 0, got [1, 2]"),
        (
            ["--ranks=1", "--stages={seconds: {embed: 0, serve: 1}, batch_size: 9}"],
            "seconds must be above 0 for some stage of sven, got 0; measured ones",
        ),
        (["--stages={second: {embed: 1}}"], "a part of stages must be one of 'batch_size', 'bytes', 'seconds'"),
        (["--stages={bytes: {rows: 1}}"], "seconds of stages must be stages with seconds, got 'nothing'; write {sec"),
        (["--stages={seconds: {embed: 1}, bytes: 3}"], "bytes of stages must be names with bytes, got 'int'"),
        (["--stages={seconds: {embed: 1}, batch_size: x}"], "batch_size of stages must be an integer of at least 1"),
        (["--stages={seconds: ["], "stages must be YAML or JSON, got '{seconds: [ (while parsing"),
        (["--stages={strategies: {}}"], "stages must be strategies with their seconds, and nothing else, got"),
        (["--stages={strategies: {svn: {seconds: {}}}}"], "a strategy of stages must be one of"),
        (["--stages={strategies: {depcache: {seconds: {}}}}"], "strategy must be one of 'depcache', got 'sven'"),
        (["--stages={strategies: {sven: {seconds: {embd: 1}}}}"], "got 'embd'; did you mean 'embed'?"),
        (["--stages={seconds: {embed: 1}, shares: 3}"], "shares of stages must be names with shares, got 'int'"),
        (["--stages={seconds: {embed: 1}, shares: {target: 1}}"], "got 'target'; did you mean 'targets'?"),
        (["--stages={seconds: {embed: 1}, shares: {ahead: 2}}"], "ahead of stages must be a number in [0, 1], got 2"),
        (["--group_size=4"], "group_size must be left out with strategies on events, got 4; they are for blad"),
        (["--snapshots={count: 9}"], "snapshots must be left out with strategies on events, got '{count: 9}'"),
        (
            ["--bytes={row: 3}"],
            "bytes must be one of 'gradients', 'gradients_bfloat16', 'gradients_int8', ",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(options, refused, capsys):
    defaults = ["--strategy=sven", f"--stages={GIVEN}", "--ranks=2"]
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *defaults, *options])
    assert refused in str(ended.value)


def test_what_is_read_is_never_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("costs.json").write_text(GIVEN)
    options = ["--strategy=sven", "--stages=costs.json", "--ranks=2"]
    for argument in ("output", "trace"):
        with pytest.raises(SystemExit, match=rf"{argument} must be apart from stages \(costs.json\), got"):
            main(["simulate", *options, f"--{argument}=./costs.json"])
    with pytest.raises(SystemExit, match=r"trace must be apart from output \(a.json\), got 'a.json'"):
        main(["simulate", *options, "--output=a.json", "--trace=a.json"])
    with pytest.raises(
        SystemExit, match=r"output must be a name that ends in \.json, got '\.json'; put a name before it"
    ):
        main(["simulate", *options, "--output=.json"])
    assert [path.read_text() for path in tmp_path.iterdir()] == [GIVEN]
    for argument, ending in (("output", ".json"), ("timeline", ".png"), ("trace", ".json")):
        with pytest.raises(SystemExit, match=rf"{argument} must be a name that ends in {ending}, got 'costs.csv'; add"):
            main(["simulate", *options, f"--{argument}=costs.csv"])
    run(capsys, *options, "--output=a.json", "--trace=b.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "costs.json"]
