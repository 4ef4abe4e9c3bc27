"""``lightning-tgnn plan`` on snapshots: forecasts, words, and a recipe that trains as it stands."""

import io
import json
import re
import shlex
import sys
from dataclasses import replace

import pytest
import torch
import yaml
from rich.console import Console

from lightning_tgnn import SnapshotDataModule
from lightning_tgnn.__main__ import main
from lightning_tgnn.algorithms.partitions.simple import interval_partition, metis_partition
from lightning_tgnn.algorithms.schedules.links import Link, Links
from lightning_tgnn.algorithms.schedules.planner import Cluster
from lightning_tgnn.algorithms.schedules.snapshot_loads import Load, LoadModel, Measured
from lightning_tgnn.commands.plan import snapshot_candidates
from lightning_tgnn.commands.plan.recipe import Trained, snapshot_recipe_of
from lightning_tgnn.commands.plan.snapshot_candidates import SnapshotCandidate, SnapshotCandidates, vertex_shares
from lightning_tgnn.commands.plan.snapshot_measure import held_out_error
from lightning_tgnn.commands.plan.snapshots import print_snapshot_plans, snapshot_reason
from lightning_tgnn.commands.report.run_log import read_latest
from lightning_tgnn.commands.simulate.snapshot_costs import SnapshotCosts, read_snapshot_costs, written_costs
from lightning_tgnn.strategies.names import StrategyRegistry
from tests.multiprocess.ranks import run_commands

SMALL = {"num_nodes": 40, "num_edges": 160, "num_snapshots": 12, "feature_dim": 4}
LOADS = {
    "graph 1": Load(0.0, 0.0, 1e-5),
    "nn 1": Load(1e-3, 1e-5, 0.0),
    "head": Load(1e-3, 0.0, 0.0),
    "backward": Load(2e-3, 2e-5, 4e-5),
}
COSTS = SnapshotCosts(
    LoadModel(LOADS), {"graph 1": 4.0, "nn 1": 1.0, "head": 1.0}, state_width=8.0, hand_over=1e-5, gradients=1e4
)
PAIR = "blad:processes_per_device=2"
SLOW = Links(Link(1e-5, 10e9), Link(1e-2, 1e7))


@pytest.fixture(autouse=True)
def cut(monkeypatch):
    """METIS may cut another way at each call."""
    monkeypatch.setattr(snapshot_candidates, "metis_partition", lambda *edges: interval_partition(*edges[2:]))


def data():
    return SnapshotDataModule("synthetic_snapshots", synthetic=SMALL, group_size=3, vertices="all")


def plans(machines, devices, *, groups=8, links=None, on_gpu=False, compressions=(), epochs=None, **costs):
    cluster = Cluster(machines, devices, links or Links(), float("inf"))
    return SnapshotCandidates(data(), replace(COSTS, **costs), groups, cluster, on_gpu, compressions, epochs).all()


def test_plans_of_all_strategies_are_candidates():
    found = {one.written: one for one in plans(2, 2)}
    assert {name: one.batch_size for name, one in found.items()} == {
        "blad:processes_per_device=2": 4,
        "blad:processes_per_device=2:balance=even": 4,
        "blad:processes_per_device=1": 2,
        "blad:processes_per_device=1:balance=even": 2,
        "snapshot_partition": 8,
        "vertex_partition": 8,
    }
    assert not any(one.objection for one in found.values())
    for one in found.values():  # the strategies take these options
        StrategyRegistry[one.strategy]["strategy"](**one.options)
    kinds = {name: set(one.sent) for name, one in found.items()}
    assert kinds[PAIR] == {"weights"}
    assert kinds["snapshot_partition"] == {"hidden states", "weights"}
    assert kinds["vertex_partition"] == {"features", "weights"}
    # One update, of 7 groups. Ranks 1 and 3 send over the link, each 2 · 3/4 of the weights.
    assert found[PAIR].sent == {"weights": pytest.approx(2 * 2 * 3 / 4 * 1e4)}
    assert all(not any(one.sent.values()) for one in plans(1, 2))


def test_one_process_trains_the_groups_of_all_ranks():
    cluster = Cluster(2, 2, Links(), float("inf"))
    alone = SnapshotCandidates(data(), COSTS, 8, cluster, False).alone()
    assert (alone.written, alone.batch_size, alone.waiting, alone.objection) == ("one process", 8, 0, "")
    assert not any(alone.sent.values())
    assert alone.seconds > max(one.seconds for one in plans(2, 2) if one.strategy == "blad")
    printed = io.StringIO()
    print_snapshot_plans(plans(2, 2), alone, Console(file=printed, width=80))
    (row,) = [line for line in printed.getvalue().splitlines() if "one process" in line]
    assert f"{alone.seconds:,.4f}" in row


def test_updates_take_time_beside_their_snapshots():
    plain, longer = ({one.written: one for one in plans(1, 2, groups=4, update=more)} for more in (0.0, 0.5))
    for name, one in plain.items():
        assert longer[name].seconds == pytest.approx(one.seconds + 2 * 0.5)
        assert longer[name].waiting < one.waiting


def test_compressions_that_may_be_chosen_are_candidates():
    names, made = ("bfloat16", "powersgd"), {"gradients_powersgd": 500.0, "gradients": 1e6, "links": SLOW}
    plain = {one.written: one for one in plans(2, 2, **made)}
    found = {one.written: one for one in plans(2, 2, compressions=names, **made)}
    assert found.keys() - plain.keys() == {f"{name}:gradient_compression={kind}" for name in plain for kind in names}
    for one in found.values():  # the strategies take these options
        StrategyRegistry[one.strategy]["strategy"](**one.options)
    whole, half, product = (found[f"{PAIR}{kind}"] for kind in ("", *(f":gradient_compression={n}" for n in names)))
    # One update, two of four ranks send over the link of 1e7 bytes/s.
    assert whole.sent == {"weights": pytest.approx(2 * 2 * 3 / 4 * 1e6)}
    assert product.sent == {"weights": pytest.approx(2 * 2 * 3 / 4 * 500)}
    assert set(half.sent) == {"pieces of weights"}
    rings = 2 * 2 * 3 * 1e-2  # two more, for the parts of the products
    assert whole.seconds - product.seconds == pytest.approx(2 * 3 / 4 * (1e6 - 500) / 1e7 - rings, rel=0.01)
    slower = {one.written: one for one in plans(2, 2, compressions=names, compress_powersgd=0.5, **made)}
    assert slower[product.written].seconds == pytest.approx(product.seconds + 0.5)
    assert slower[half.written].seconds == half.seconds
    assert {one.written for one in plans(1, 1, compressions=names)} == {one.written for one in plans(1, 1)}


def test_a_recipe_that_ends_before_powersgd_begins_leaves_it_out():
    given = {"compressions": ("int8", "powersgd"), "gradients": 1e7, "gradients_powersgd": 500.0, "links": SLOW}
    # Two updates an epoch, of four and of three groups.
    short, longer = (plans(2, 2, groups=4, epochs=epochs, **given) for epochs in (50, 51))
    assert longer[0].options["gradient_compression"] == "powersgd"
    assert not any(one.objection for one in longer)
    assert short[0].options["gradient_compression"] == "int8"
    why = "left out: powersgd leaves the gradients of the first 100 updates as they are, and the recipe has 100"
    left_out = [one for one in short if one.objection]
    assert len(left_out) == 6
    for one in left_out:
        assert one.options["gradient_compression"] == "powersgd"
        assert snapshot_reason(one, short) == why


def test_gradients_that_lose_nothing_come_first_among_plans_that_are_nearly_as_fast():
    compressed = {"gradient_compression": "int8"}
    near = [
        SnapshotCandidate("blad", {}, 1, 1.04, 0.0, {"weights": 9.0}),
        SnapshotCandidate("blad", compressed, 1, 1.0, 0.0, {"pieces of weights": 1.0}),
    ]
    words = [snapshot_reason(one, near) for one in near]
    assert words[0] == "recommended: 3.8% slower than the fastest, and its gradients lose less"
    assert words[1] == "4.0% faster, but gradients travel as int8"


def test_the_fastest_is_recommended_unless_another_one_sends_less():
    found = plans(2, 2, links=SLOW)
    assert found[0].strategy == "blad"
    assert snapshot_reason(found[0], found) == "recommended: the fastest"
    words = {one.written: snapshot_reason(one, found) for one in found}
    assert words["vertex_partition"].endswith("% slower than the fastest")
    assert [one.seconds for one in found[1:]] == sorted(one.seconds for one in found[1:])
    near = [
        SnapshotCandidate("blad", {}, 1, 1.04, 0.0, {"weights": 1.0}),
        SnapshotCandidate("snapshot_partition", {}, 1, 1.0, 0.0, {"weights": 1.0, "hidden states": 2.0}),
    ]
    assert (
        snapshot_reason(near[0], near) == "recommended: 3.8% slower than the fastest, and sends less between machines"
    )
    assert snapshot_reason(near[1], near) == "4.0% faster, but sends 3.0 times as much between machines"
    slow = [*near, SnapshotCandidate("vertex_partition", {}, 1, 8.0, 0.0, {"features": 9.0})]
    assert snapshot_reason(slow[2], slow) == "87.5% slower than the fastest"  # an eighth of its speed, as of streams


@pytest.mark.parametrize(("spread", "first"), [(1.04, {}), (1.06, {"gradient_compression": "bfloat16"})])
def test_a_compression_is_chosen_where_it_gains(spread, first, monkeypatch):
    made = [
        SnapshotCandidate("blad", {"gradient_compression": "int8"}, 1, 1.0, 0.0, {"pieces of weights": 1.0}),
        SnapshotCandidate("blad", {"gradient_compression": "bfloat16"}, 1, 1.01, 0.0, {"pieces of weights": 2.0}),
        SnapshotCandidate("blad", {}, 1, spread, 0.0, {"weights": 4.0}),
    ]
    monkeypatch.setattr(SnapshotCandidates, "_made", lambda self: iter(made))
    assert plans(2, 1)[0].options == first


@pytest.mark.parametrize("spread", [1.04, 1.052, 1.06])
def test_of_plans_that_are_nearly_as_fast_the_one_that_sends_least_comes_first(spread, monkeypatch):
    made = [
        SnapshotCandidate("vertex_partition", {}, 1, 1.0, 0.0, {"features": 9.0}),
        SnapshotCandidate("blad", {}, 1, spread, 0.0, {"weights": 1.0}),
        SnapshotCandidate("snapshot_partition", {}, objection="no"),
    ]
    monkeypatch.setattr(SnapshotCandidates, "_made", lambda self: iter(made))
    first = plans(2, 1)[0].strategy
    assert first == ("blad" if 1 / spread > 0.95 else "vertex_partition")


def test_plans_that_do_not_fit_are_left_out_with_the_reason(monkeypatch):
    def objections(*args, **options):
        return {one.written: one.objection for one in plans(*args, **options) if one.objection}

    pairs = (PAIR, f"{PAIR}:balance=even")
    odd = "its pairs of processes do not fit 3 on each machine"
    assert objections(2, 3, groups=6) == dict.fromkeys(pairs, odd)
    shared = objections(1, 4, groups=2)
    assert shared["blad:processes_per_device=1"] == "2 groups of an update do not fit 4 devices"
    assert PAIR not in shared
    alone = objections(1, 1)
    assert alone["snapshot_partition"] == alone["vertex_partition"] == "one process has nobody to share groups with"
    assert objections(1, 2, on_gpu=True).keys() == set(pairs)
    found = plans(1, 1)
    assert [bool(one.objection) for one in found] == [False] * 2 + [True] * 4
    assert snapshot_reason(found[-1], found).startswith("left out: ")
    assert "seconds" not in found[-1].metrics()

    monkeypatch.setattr(snapshot_candidates, "metis_partition", metis_partition)
    for name in ("dgl", "pymetis"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "install pymetis" in objections(2, 1)["vertex_partition"]


def test_a_message_takes_time_beside_its_link():
    plain, longer = ({one.written: one for one in plans(1, 2, message=more)} for more in (0.0, 0.25))
    # Of 7 groups, 18 snapshots: a product each, forward and backward; and one meeting of gradients.
    assert longer["vertex_partition"].seconds - plain["vertex_partition"].seconds == pytest.approx((2 * 18 + 2) * 0.25)
    assert longer[PAIR].seconds - plain[PAIR].seconds == pytest.approx(2 * 0.25)


def test_shares_of_ranks_are_those_of_their_vertices(monkeypatch):
    ranks, owner = 3, torch.arange(SMALL["num_nodes"]) ** 2 % 3
    monkeypatch.setattr(snapshot_candidates, "metis_partition", lambda *edges: owner)
    source = data()
    found = vertex_shares(source, ranks)
    last = max(source.split.train)
    assert found.sizes.shape == (last + 1, ranks, 3)
    for number in range(last + 1):
        edges = source.sequence.edges(number)
        both = {(place, place) for place in range(len(owner))}  # loops
        for src, dst in zip(edges.src.tolist(), edges.dst.tolist(), strict=True):
            both |= {(src, dst), (dst, src)}
        for rank in range(ranks):
            own = [(src, dst) for src, dst in both if owner[dst] == rank]
            travels = {(src, int(owner[dst])) for src, dst in both if owner[src] == rank != owner[dst]}
            scored = source.targets.counts[number] / ranks
            assert found.sizes[number, rank].tolist() == [int((owner == rank).sum()), len(own), scored]
            assert found.sent[number, rank] == len(travels)
            targets = source.targets.for_group(number, 0).rows.tolist() if number in source.split.train else []
            read = {(row, int(owner[rows[0]])) for rows in targets for row in rows if owner[row] != owner[rows[0]]}
            assert found.scored[number, rank] == sum(int(owner[row]) == rank for row, _ in read)
    assert found.scored.sum() > 0


def test_errors_are_those_of_sizes_that_were_not_fitted():
    load = Load(1e-3, 1e-6, 1e-7)

    def call(vertices, edges, wrong=1.0):
        return Measured("nn 1", wrong * (load.call + load.vertex * vertices + load.edge * edges), 1, vertices, edges)

    calls = [call(10 * n, n**2 + 5) for n in range(1, 13) for _ in range(3)]
    assert held_out_error(calls) == {"nn 1": pytest.approx(0, abs=1e-9)}
    # Sizes 2, 6 and 10 are held out: what is wrong with them is no part of the fit.
    odd = [call(10 * n, n**2 + 5, wrong=2.0 if n in (2, 6, 10) else 1.0) for n in range(1, 13)]
    assert held_out_error(odd) == {"nn 1": pytest.approx(0.5)}
    assert held_out_error([call(10, 10)] * 5) == {}


def test_costs_are_read_as_they_were_written():
    again = read_snapshot_costs(json.dumps(written_costs(COSTS)))
    assert again == replace(COSTS, widths=dict(COSTS.widths))
    costs = replace(COSTS, where_cut_loads={"graph 1": Load(1.0, 2.0, 3.0)}, update=0.5, message=0.25)
    again = read_snapshot_costs(json.dumps(written_costs(costs)))
    assert again.where_cut.model.loads == {**LOADS, "graph 1": Load(1.0, 2.0, 3.0)}
    assert (again.update, again.message) == (0.5, 0.25)


def test_a_recipe_says_where_it_runs():
    given = {"source": "events.csv", "group_size": 4, "seed": 0}
    trained = Trained(given, {"model": "tgcn", "hidden_dim": 64}, "cpu", 7)
    text = snapshot_recipe_of("blad", {"balance": "even"}, 3, Cluster(2, 2, Links(), 0.0), trained)
    assert text.startswith("# blad:balance=even on 2 machines with 2 processes each.\n# Start it on each of them")
    recipe = yaml.safe_load(text)
    strategy = {"class_path": "lightning_tgnn.BLADStrategy", "init_args": {"balance": "even"}}
    assert recipe["trainer"]["strategy"] == strategy
    assert [recipe["trainer"][name] for name in ("devices", "num_nodes", "max_epochs")] == [2, 2, 7]
    assert recipe["data"]["init_args"] == {"source": "events.csv", "group_size": 4, "batch_size": 3}
    assert recipe["model"]["init_args"] == {"model": "tgcn"}


@pytest.mark.usefixtures("in_own_group")
@pytest.mark.parametrize("model", ["tgcn", "evolvegcn_h"])
def test_the_recipe_of_a_plan_trains_as_it_stands(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    tiny = [f"--synthetic={json.dumps(SMALL)}", "--group_size=3", f"--model={model}", "--hidden_dim=6"]
    where = ["--devices=1", "--accelerator=cpu", "--epochs=1", "--measured_epochs=1", "--groups_per_update=3"]
    main(["plan", "--kind=snapshots", "--source=synthetic_snapshots", *where, *tiny])
    printed = capsys.readouterr().out
    assert "recommended: " in printed
    assert "an epoch has 7 groups of up to 3 snapshots, 3 an update" in printed
    assert "recipe: lightning-tgnn fit --config runs/plan/recipe.yaml" in printed
    metrics = json.loads((tmp_path / "runs/plan/plan.json").read_text())
    (measured,) = metrics["measured"]
    operators = {"graph 1", "graph 2", "nn 1", "nn 2", "rnn 1", "rnn 2", "head", "backward"}
    assert set(measured["error"]) == operators
    assert set(measured["costs"]["loads"]) == operators | {"last backward"}
    assert set(measured["costs"]["last_only"]) == {"head"} | ({"graph 2", "nn 2"} if model == "evolvegcn_h" else set())
    assert measured["processes"] == 1
    assert measured["costs"]["widths"]["graph 1"] == 4
    recommended, *others = metrics["plans"]
    assert recommended["seconds"] > 0
    assert [one["plan"] for one in others if "objection" in one][-1] == "vertex_partition"
    main(["fit", "--config=runs/plan/recipe.yaml"])
    assert list(tmp_path.glob("runs/planned_blad/version_0/checkpoints/last.ckpt"))
    logged = read_latest(tmp_path / "runs/planned_blad/version_0").by_kind("scalars")
    assert len(logged["train/loss"].numbers()) == 3  # updates, in the only epoch


@pytest.mark.timeout(200)
def test_two_processes_measure_and_simulate_forecasts_the_same(tmp_path, monkeypatch, capsys):
    tiny = [f"--synthetic={json.dumps(SMALL)}", "--group_size=3", "--hidden_dim=6", "--model=tgcn"]
    where = ["--devices=2", "--accelerator=cpu", "--measured_epochs=1", "--groups_per_update=4", "--link=500:0.2"]
    where += ["--gradient_compression=int8,powersgd", "--epochs=60"]  # longer than powersgd takes to begin
    words = ["plan", "--kind=snapshots", "--source=synthetic_snapshots", *where, *tiny]
    printed, other = run_commands(tmp_path, words)
    assert "recommended: " not in other
    metrics = json.loads((tmp_path / "runs/plan/plan.json").read_text())
    assert [one["processes"] for one in metrics["measured"]] == [2, 2]
    assert metrics["measured"][0]["costs"]["message"] > 0
    assert all(one["seconds"] > 0 for one in metrics["measured"][0]["compressed"].values())
    assert re.search(r"kB of gradients for an update as they are, \d+ with bfloat16, which takes \d+\.\d ms", printed)
    (command,) = re.findall("for other clusters: lightning-tgnn (simulate .*)", printed)
    assert "--ranks 2 --hosts 1 --link 500:0.2" in command

    monkeypatch.chdir(tmp_path)
    main([*shlex.split(command), "--output=again.json"])
    assert "7 groups of up to 3 snapshots, 4 an update" in capsys.readouterr().out
    again = json.loads((tmp_path / "again.json").read_text())["forecasts"]
    found = {re.sub(":(remote|embeddings)=[^:]*", "", one["strategy"]): one["seconds_per_epoch"] for one in again}
    planned = {one["plan"]: one["seconds"] for one in metrics["plans"]}
    assert found.keys() == planned.keys()
    for name, seconds in planned.items():
        # Ranks have equal shares of the vertices in `simulate`, and those of METIS in `plan`.
        assert found[name] == pytest.approx(seconds, rel=0.3 if name.startswith("vertex_partition") else 1e-6), name
    cut = next(one for one in again if one["strategy"].startswith("vertex_partition"))
    assert cut["bytes_sent"]["embeddings"] > 0
    # Two updates between two ranks, of gradients whose weights are small and filled up to whole blocks.
    (quantised,) = (one for one in again if one["strategy"] == "blad:processes_per_device=1:gradient_compression=int8")
    nbytes = metrics["measured"][0]["compressed"]["int8"]["nbytes"]
    assert nbytes > metrics["measured"][0]["costs"]["gradients"] / 4 * 260 / 256
    assert quantised["bytes_sent"]["pieces of weights"] == pytest.approx(2 * 2 * nbytes)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["--machines=0"], "machines must be an integer of at least 1, got 0"),
        (
            ["--groups_per_update=0"],
            "groups_per_update must be an integer of at least 1, got 0; give a number",
        ),
        (["--measured_epochs=0"], "measured_epochs must be an integer of at least 1, got 0; 2 is usual"),
        (["--gradient_compression=int4"], "gradient_compression must be one of 'bfloat16', 'int8', 'powersgd', got"),
        (["--updates=0"], "updates must be an integer of at least 1, got 0"),
        (["--link=fast"], "link must be MBIT or MBIT:MILLISECONDS, got 'fast'"),
        (["--model=gru"], "model must be what builds a SnapshotModel, or one of "),
        (["--steps=3"], "steps must be left out with --kind snapshots, got 'an option of --kind events'"),
        (["--batch_size=3"], "batch_size must be left out with --kind snapshots, got 'an option of --kind events'"),
        (["--kind=graph"], "kind must be one of 'auto', 'events', 'snapshots', got 'graph'"),
        (["--groups_per_updat=3"], "did you mean '--groups_per_update'?"),
        ([f"--output={__file__}"], "output must be where files can be written, got"),
        (["--processes=9", "--group_size=3"], "processes must be at most the 7 groups, got 9; give fewer --processes"),
    ],
)
@pytest.mark.usefixtures("in_own_group")
def test_what_cannot_be_planned_is_refused(options, refused, capsys):
    defaults = ["--kind=snapshots", "--source=synthetic_snapshots", "--accelerator=cpu"]
    with pytest.raises(SystemExit) as ended:
        main(["plan", *defaults, f"--synthetic={json.dumps(SMALL)}", *options])
    assert refused in f"{ended.value} {capsys.readouterr().err}"
