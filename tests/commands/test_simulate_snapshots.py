"""``lightning-tgnn simulate`` of strategies on snapshots: metrics, pictures, and what is refused."""

import json
import re

import pytest

from lightning_tgnn.__main__ import main
from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.simulator import Costs
from lightning_tgnn.algorithms.schedules.snapshot_epochs import pipelined_groups
from lightning_tgnn.algorithms.schedules.snapshot_groups import SnapshotGroups
from lightning_tgnn.algorithms.schedules.snapshot_operators import predicted_groups
from lightning_tgnn.algorithms.traffic.gradient_compression import gradient_traffic
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.simulate.given_costs import read_link
from lightning_tgnn.commands.simulate.snapshot_costs import read_sizes, read_snapshot_costs
from lightning_tgnn.strategies.blad import BLADStrategy
from lightning_tgnn.types import RankLayout

LOADS = {
    "loads": {
        "graph 1": [1e-4, 0, 2e-9],
        "nn 1": [1e-4, 3e-9, 0],
        "head": [1e-4, 1e-9, 0],
        "backward": [4e-4, 4e-9, 3e-9],
    },
    "widths": {"graph 1": 16, "nn 1": 64, "head": 64},
    "exchanged_widths": {"graph 1": 64},
    "backward_width": 144,
    "state_width": 64,
    "rates": [[0.7, 1.0], [1.0, 0.8]],
    "hand_over": 1e-4,
    "gradients": 120000,
}
GIVEN = f"--stages={json.dumps(LOADS)}"
SIZES = "{count: 20, vertices: 2000, edges: 20000, varies: 7}"
PAIR = "blad:processes_per_device=2"
NAMES = (PAIR, "snapshot_partition", "vertex_partition")


def run(capsys, *options):
    main(["simulate", GIVEN, *options])
    return capsys.readouterr().out


def test_every_strategy_is_told_on_every_number_of_ranks(tmp_path, capsys):
    kept = tmp_path / "out.json"
    options = [f"--snapshots={SIZES}", "--ranks=2,4", "--group_size=4", f"--output={kept}"]
    printed = run(capsys, f"--strategy={','.join(NAMES)}", *options)
    for name in NAMES:
        assert re.findall(rf"^│ {name} +│ +(\d+) │", printed, re.MULTILINE) == ["2", "4"]
    assert "20 groups of up to 4 snapshots, 4 per device and update" in printed
    forecasts = json.loads(kept.read_text())["forecasts"]
    kinds = [set(one["bytes_sent"]) for one in forecasts[::2]]
    assert kinds == [{"weights"}, {"hidden states", "weights"}, {"features", "weights"}]
    # Half of a rank's vertices, 16 floats each, forward and backward; 3 updates of 8 groups on 2 ranks.
    sizes = read_sizes(SIZES).sizes
    each = sum(sizes[max(last - 3, 0) : last + 1, 0].sum() for last in range(20))
    vertex = forecasts[4]["bytes_sent"]
    assert vertex["features"] == pytest.approx(2 * 0.5 * each * 16 * 4)
    assert vertex["weights"] == 3 * 2 * 120000


def test_embeddings_of_targets_travel_where_vertices_are_cut(tmp_path, capsys):
    kept, targets = tmp_path / "out.json", [6, 8, 10]
    sizes = f"{{vertices: [10, 20, 30], edges: [9, 9, 9], targets: {targets}, group_size: 2}}"
    options = ["--ranks=2", "--hosts=2", "--link=1:1", f"--snapshots={sizes}", f"--output={kept}"]
    strategies = "--strategy=vertex_partition,vertex_partition:embeddings=0.25"

    def forecasts(**more):
        main(["simulate", f"--stages={json.dumps(LOADS | more)}", strategies, *options])
        return json.loads(kept.read_text())["forecasts"], capsys.readouterr().out

    (plain, _), printed = forecasts()
    assert "embeddings" not in plain["bytes_sent"]  # nobody has said how wide they are
    found, printed = forecasts(embedding_width=5)
    assert "embeddings" in printed
    for one, share in zip(found, (1, 0.25), strict=True):
        sent = 2 * share * sum(targets) * 5 * 4  # forth, and gradients back
        assert one["bytes_sent"] == plain["bytes_sent"] | {"embeddings": sent}
        longer = one["seconds_per_epoch"] - plain["seconds_per_epoch"]
        assert longer == pytest.approx(2 * 3 * 1e-3 + sent / 2 / 125000)  # as many from each of both ranks


def test_what_is_handed_over_in_memory_is_told_apart_from_what_is_sent(tmp_path, capsys):
    def forecasts(hosts):
        kept, sizes = tmp_path / "out.json", "{vertices: [10, 20, 30], edges: [9, 9, 9], group_size: 2}"
        options = ["--ranks=2", f"--hosts={hosts}", f"--snapshots={sizes}", f"--output={kept}"]
        names = f"{PAIR}:balance=even" if hosts == 1 else "snapshot_partition"
        assert "in memory" in run(capsys, f"--strategy=snapshot_partition,{names}", *options)
        return json.loads(kept.read_text())["forecasts"]

    # Groups of 1, 2 and 2 snapshots: the last two are cut between both ranks. 64 floats a vertex, forth and back.
    handed = 2 * 4 * 64 * (20 + 30)
    for one in forecasts(1):
        assert one["bytes_in_shared_memory"] == handed
        assert one["bytes_sent"].get("hidden states", 0) == 0
    apart = forecasts(2)[0]
    assert apart["bytes_in_shared_memory"] == 0
    assert apart["bytes_sent"]["hidden states"] == handed


def test_a_file_says_what_an_update_is(tmp_path, capsys):
    sizes = "{vertices: [9, 9, 9, 9], edges: [5, 5, 5, 5], group_size: 3, groups: [2, 0, 1], groups_per_update: 2}"
    printed = run(capsys, f"--strategy={PAIR}", "--ranks=2", f"--snapshots={sizes}")
    assert "3 groups of up to 3 snapshots, 2 an update" in printed
    given = ["--group_size=2", "--batch_size=1"]
    assert "3 groups of up to 2 snapshots, 1 per device" in run(
        capsys, f"--strategy={PAIR}", "--ranks=2", f"--snapshots={sizes}", *given
    )


@pytest.mark.parametrize("name", NAMES)
def test_compressed_gradients_are_fewer_bytes(name, tmp_path, capsys):
    whole, kept = 3 * 2 * 120000, tmp_path / "out.json"
    options = [f"--snapshots={SIZES}", "--ranks=2", "--hosts=1", "--group_size=4", f"--output={kept}"]
    given = f"--stages={json.dumps(LOADS | {'gradients_powersgd': 5000})}"
    written = [name, *(f"{name}:gradient_compression={kind}" for kind in ("bfloat16", "int8", "powersgd"))]
    main(["simulate", given, f"--strategy={','.join(written)}", "--local_link=1:0", *options])
    capsys.readouterr()
    found = json.loads(kept.read_text())["forecasts"]
    updates = found[0]["bytes_sent"]["weights"] / (2 * 120000)
    assert name != "vertex_partition" or found[0]["bytes_sent"]["weights"] == whole
    sizes = [60000, 120000 / 4 * 260 / 256, 5000]
    for one, kind, size in zip(found[1:], ["pieces of weights"] * 2 + ["weights"], sizes, strict=True):
        assert one["bytes_sent"][kind] == pytest.approx(updates * 2 * size)
        saved = updates * (120000 - size) / 125000  # seconds on a link of 1 Mbit/s
        assert one["seconds_per_epoch"] == pytest.approx(found[0]["seconds_per_epoch"] - saved)
    longer = f"--stages={json.dumps(LOADS | {'gradients_powersgd': 5000, 'compress_int8': 0.5})}"
    main(["simulate", longer, f"--strategy={','.join(written)}", "--local_link=1:0", *options])
    capsys.readouterr()
    more = [
        one["seconds_per_epoch"] - before["seconds_per_epoch"]
        for one, before in zip(json.loads(kept.read_text())["forecasts"], found, strict=True)
    ]
    assert more == pytest.approx([0, 0, updates * 0.5, 0])
    with pytest.raises(SystemExit) as ended:
        run(capsys, *options, f"--strategy={written[-1]}")
    assert "gradients_powersgd of stages must be given: how many there are goes by the shapes" in str(ended.value)


def test_bytes_of_compressed_gradients_that_are_given_go_before_those_that_follow():
    costs = read_snapshot_costs(json.dumps(LOADS | {"gradients_int8": 40000, "gradients_bfloat16": 70000}))
    assert [costs.gradient_bytes(name) for name in (None, "bfloat16", "int8")] == [120000, 70000, 40000]
    costs = read_snapshot_costs(json.dumps(LOADS | {"gradients_int8": 0}))  # as where nobody has measured it
    assert costs.gradient_bytes("int8") == pytest.approx(120000 / 4 * 260 / 256)


def test_figures_of_blad_are_those_of_the_simulation(tmp_path, capsys):
    kept = tmp_path / "out.json"
    options = [f"--snapshots={SIZES}", "--ranks=4", "--hosts=2", "--batch_size=5", "--link=500:0.2"]
    run(capsys, f"--strategy={PAIR}:reorder=false", *options, f"--output={kept}")
    (found,) = json.loads(kept.read_text())["forecasts"]
    sizes, costs = read_sizes(SIZES).sizes, read_snapshot_costs(json.dumps(LOADS))
    own = [sizes[max(last - 7, 0) : last + 1] for last in range(20)]
    groups = predicted_groups(costs.model, own, costs.widths, 144, exchanged_widths=costs.exchanged_widths)
    layout, links = RankLayout.of(4, per_host=2), Links(read_link("", "80000:0.01"), read_link("", "500:0.2"))
    updates, pairs = [range(10), range(10, 20)], SnapshotGroups(2)
    known = pipelined_groups(groups, updates, layout, pairs, open_groups=2, hand_over=1e-4, rates=costs.rates)
    plan, sent = BLADStrategy(processes_per_device=2).plan_for(4, 2), gradient_traffic(None, 120000, 2, 4)
    known = known.updated(plan.outline(), layout, Costs({}, {"gradients": 120000}, links), sent)
    assert found["seconds_per_epoch"] == pytest.approx(known.seconds)
    assert found["waiting"] == pytest.approx(known.waiting.mean())
    assert found["overlap"] == pytest.approx(known.overlap)
    assert (found["ranks"], found["hosts"]) == (4, 2)


def test_pictures_and_traces_are_written(tmp_path, capsys):
    picture, trace = tmp_path / "out.png", tmp_path / "out.json"
    shown = [f"--timeline={picture}", f"--trace={trace}", "--shown_turns=2", "--ranks=2", f"--snapshots={SIZES}"]
    assert f"timeline: {picture}\n" in run(capsys, f"--strategy={PAIR}", *shown)
    assert picture.read_bytes().startswith(b"\x89PNG")
    bars = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {bar["args"]["turn"] for bar in bars} == {0, 1}
    assert {"graph forward", "nn backward"} <= {bar["name"] for bar in bars}
    assert "vertex_partition has no timeline" in run(capsys, "--strategy=vertex_partition", *shown)


def test_sizes_are_read_from_files_or_made_up(tmp_path):
    (tmp_path / "sizes.csv").write_text("snapshot,vertices,edges\n0,10,20\n1,30,40\n")
    assert read_sizes(str(tmp_path / "sizes.csv")).sizes.tolist() == [[10, 20, 40], [30, 40, 40]]
    (tmp_path / "more.csv").write_text("vertices,edges,targets\n10,20,5\n30,40,0\n")
    assert read_sizes(str(tmp_path / "more.csv")).sizes.tolist() == [[10, 20, 5], [30, 40, 0]]
    (tmp_path / "empty.csv").write_text("vertices,edges\n")
    with pytest.raises(InvalidArgumentError, match="snapshots must be a CSV file with at least one row, got"):
        read_sizes(str(tmp_path / "empty.csv"))
    (tmp_path / "sizes.yaml").write_text("vertices: [10, 0]\nedges: [20, 0]\n")
    assert read_sizes(str(tmp_path / "sizes.yaml")).sizes.tolist() == [[10, 20, 0], [0, 0, 0]]
    given = "{vertices: [10, 0], edges: [20, 0], targets: [3, 4]}"
    assert read_sizes(given).sizes.tolist() == [[10, 20, 3], [0, 0, 4]]
    assert read_sizes(given).written() == {"vertices": [10, 0], "edges": [20, 0], "targets": [3, 4]}
    edges = read_sizes("{count: 50, vertices: 1000, edges: 1000000, varies: 7}").sizes[:, 1]
    assert edges.max() / edges.min() == pytest.approx(7, rel=1e-3)
    assert len(set(read_sizes("{count: 5, vertices: 9, edges: 9}").sizes[:, 1].tolist())) == 1


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["--snapshots=null"], "snapshots must be the sizes of snapshots, got None; give --snapshots"),
        (["--strategy=blad,sven"], "strategy must be all on events or all on snapshots, got 'blad,sven'"),
        (
            ["--strategy=blad:splits=even"],
            "option of blad must be one of 'balance', 'gradient_compression', ",
        ),
        (["--strategy=blad:balance=evn"], "balance must be one of 'even', 'load', got 'evn'; did you mean"),
        (["--strategy=blad:split=even"], "split must be one of 'paper', 'search', got 'even'"),
        (["--strategy=blad:reorder=3"], "reorder must be True or False, got 3"),
        (["--strategy=blad:processes_per_device=3"], "processes_per_device must be 1, 2 or 'auto', got 3"),
        (["--strategy=blad:open_groups=0"], "open_groups must be an integer of at least 1, got 0"),
        (["--ranks=3"], "devices times num_nodes must be a multiple of the 2 processes per device, got 3"),
        (["--strategy=vertex_partition:remote=-1"], "remote must be a finite number of at least 0"),
        (["--strategy=vertex_partition:embeddings=-1"], "embeddings must be a finite number"),
        (["--turns=9"], "turns must be left out with strategies on snapshots, got 9; every group is played once, or"),
        (["--bytes={rows: 3}"], "bytes must be left out with strategies on snapshots, got '{rows: 3}'; the loads of"),
        (["--group_size=0"], "group_size must be an integer of at least 1, got 0"),
        (["--snapshots=gone.csv"], "snapshots must be a file that is there, got 'gone.csv'"),
        (
            ["--snapshots={vertices: [1], edges: [1, 2]}"],
            "snapshots must be lists of as many vertices as edges",
        ),
        (["--snapshots={vertices: [1], edges: [1], targets: [1, 2]}"], "at least one, and of as many targets if ther"),
        (["--snapshots={vertices: [1], edges: [1], targets: 3}"], "at least one, and of as many targets if ther"),
        (["--snapshots={vertices: [1], edges: [1], targets: [-1]}"], "targets of snapshot 0 must be an integer of at"),
        (
            ["--snapshots={vertices: [1], edges: [1], groups: [1]}"],
            "groups of snapshots must be a list of numbers below 1",
        ),
        (
            ["--snapshots={vertices: [1], edges: [1], group_size: 0}"],
            "group_size of snapshots must be an integer of at",
        ),
        (["--snapshots={vertices: [1], edges: [x]}"], "edges of snapshot 0 must be an integer of at least 0, got 'x'"),
        (["--snapshots={count: 3, vertices: 1}"], "edges of snapshots must be an integer of at least 1, got None"),
        (
            ["--snapshots={count: 3, vertices: 1, edges: 1, varies: 0}"],
            "varies of snapshots must be a number of at least 1, got 0",
        ),
        (
            ["--stages=."],
            "the loads of operators on snapshots, got 'a folder, .'; give costs.yaml of `lightning-tgnn pl",
        ),
        (["--stages={seconds: {}}"], "a part of stages must be one of 'backward_width', "),
        (["--stages={loads: {}}"], "loads of stages must be operators with numbers, got 'dict'"),
        (
            ["--stages={loads: {nn 1: 3}, widths: {nn 1: 1}}"],
            "load of 'nn 1' must be seconds of a snapshot, of a vertex, of an edge and, if there are any, of a target, "
            "got 3",
        ),
        (
            ["--stages={loads: {nn 1: [1, 0, 0]}, widths: {nn 1: 1}}"],
            "an operator of stages must be one of 'nn 1', got 'backward'",
        ),
        (
            ["--stages={loads: {nn 1: [1, 0, 0], backward: [1, 0, 0]}, widths: {nn 1: -1}}"],
            "nn 1 of widths must be a finite number of at least 0, got -1.0",
        ),
        (
            ["--stages={loads: {nn 1: [1, 0, 0], backward: [1, 0, 0]}, widths: {nn 1: 1}, rates: [[1, x], [1, 1]]}"],
            "rates of stages must be two rows of two numbers, of graph and NN operators, got [[1, 'x'], [1, 1]]",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(options, refused):
    defaults = [f"--strategy={PAIR}", GIVEN, "--ranks=2", f"--snapshots={SIZES}"]
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *defaults, *options])
    assert refused in str(ended.value)
