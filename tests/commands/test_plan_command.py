"""``lightning-tgnn plan``: candidates, words, and a recipe that trains as it stands."""

import io
import json
import re
import sys
from dataclasses import replace

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
import yaml
from rich.console import Console

import lightning_tgnn
from lightning_tgnn import TemporalDataModule
from lightning_tgnn.__main__ import main
from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.planner import Cluster, Stream, assess, rank
from lightning_tgnn.commands.plan import events
from lightning_tgnn.commands.plan.candidates import Candidates, changed, remote_rows
from lightning_tgnn.commands.plan.gradient_compression import (
    CompressedGradients,
    describe_gradients,
    measured_compressions,
)
from lightning_tgnn.commands.plan.measure import (
    MeasuredTurns,
    Measurements,
    fixed_share,
    saturating_size,
)
from lightning_tgnn.commands.plan.recipe import Trained, recipe_of
from lightning_tgnn.commands.plan.tables import describe_spread, metrics_of, print_plans, reason, where_state_belongs
from lightning_tgnn.commands.simulate.plans import CUT_COPIES

SECONDS = {"fetch": 0.002, "update": 0.005, "embed": 0.01, "score": 0.001, "write": 0.002, "backward": 0.02}
SECONDS |= {"step": 0.004, "other": 0.003}
SENT = {"dispatch": 3e5, "dispatch_ahead": 1e5, "request": 1e3, "aggregation": 2e5}
STREAM = Stream(lambda events: min(events / 1000, 1.0), 0.5, 1e8)


def measured(processes=4):
    names = ("depcache", "sven", "pipetgl", "disttgl", CUT_COPIES)
    of_strategy = {name: MeasuredTurns(SECONDS, 0.05, SENT) for name in names}
    return Measurements(processes, 200, of_strategy, 0.25, 1e6, 1e8, targets=0.2, repeated=0.3)


def candidates(machines, devices, *, memory=64e9, keep_batch=False):
    cluster = Cluster(machines, devices, Links(), memory)
    return cluster, Candidates(measured(), cluster, 500, keep_batch).all()


def test_plans_of_all_strategies_are_candidates():
    _, plans = candidates(2, 2)
    written = {plan.written: plan for plan in plans}
    assert set(written) == {
        "depcache",
        "depcache:staleness=1",
        "sven:staleness=0",
        "sven",
        "pipetgl:groups=2",
        "pipetgl:groups=2:sends=weights_and_moments",
        "disttgl:minibatch=2:memory=2",
        "disttgl:memory=4",
        "disttgl:epoch=2:memory=2",
        "disttgl:minibatch=2:memory=2:store=sharded",
        "disttgl:minibatch=2:epoch=2:store=sharded",
        "disttgl:memory=4:store=sharded",
        "disttgl:epoch=2:memory=2:store=sharded",
        "disttgl:epoch=4:store=sharded",
    }
    assert {name: plan.batch_size for name, plan in written.items() if plan.batch_size != 200} == {
        "depcache": 125,
        "depcache:staleness=1": 125,
        "sven": 125,
        "sven:staleness=0": 125,
    }
    assert written["disttgl:minibatch=2:memory=2"].global_batch == 400
    assert written["pipetgl:groups=2"].copies == 1
    assert [plan.batch_size for plan in candidates(2, 2, keep_batch=True)[1]] == [200] * 14
    for plan in plans:  # the strategies take these options
        kind = lightning_tgnn.strategies.names.StrategyRegistry[plan.strategy]["strategy"]
        kind(**plan.options)


def test_costs_are_what_was_measured():
    found = Candidates(measured(), Cluster(1, 4, Links(), 64e9), 500, keep_batch=True).costs()
    assert found["sven"].sent == {"gradients": 1e6, "rows": 401e3 / 3, "updates": 2e5 / 3}
    assert found["depcache"].sent == {"gradients": 1e6, "updates": 2e5 / 12}
    scale = found["sven"].seconds["backward"] / 0.02
    assert scale >= 1
    assert found["pipetgl"].seconds["step"] / found["pipetgl"].seconds["backward"] == pytest.approx(0.001 / 0.02)
    assert found["disttgl"].seconds["serve"] == pytest.approx(found["disttgl"].seconds["store"])
    assert measured().turn_of(200) == pytest.approx(1)
    assert measured().turn_of(400) == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("wide", "largest", "size", "share"),
    [
        (0.40, 1000, 100, None),  # seconds of 400 events, where 100 take 0.1: all of it grows
        (0.41, 1000, 100, None),  # noise: more than all
        (0.41, 35, 35, None),
        (0.35, 1000, 100, 1 / 6),  # four fifths would be reached at 80
        (0.25, 1000, 400, 0.05 / 0.25),
        (0.25, 300, 300, 0.05 / 0.2),
        (0.20, 1000, 400, 1 / 3),
        (0.09, 1000, 400, 1.0),  # noise: less than nothing grows
    ],
)
def test_no_batch_is_chosen_beyond_what_was_measured(wide, largest, size, share):
    turns = {100: 0.1, 400: wide}
    assert saturating_size(turns, 100, 400, largest) == size
    found = fixed_share(turns, 100, 400, size)
    assert found is None if share is None else found == pytest.approx(share, abs=1e-6)


def test_of_a_share_that_noise_hid_nothing_is_claimed():
    given = replace(measured(), fixed_share=None)
    assert (given.turn_of(100), given.turn_of(400)) == (0.5, 2.0)
    assert "%" not in events.describe_share(given.fixed_share)


def test_the_fastest_window_counts_and_all_are_kept():
    windows = [MeasuredTurns(SECONDS, turn, SENT, (turn,)) for turn in (0.06, 0.04, 0.05)]
    found = windows[2].with_windows_of(windows[1].with_windows_of(windows[0].with_windows_of(None)))
    assert (found.seconds_per_turn, found.windows) == (0.04, (0.06, 0.04, 0.05))
    assert replace(measured(), strategies={"sven": found, "depcache": windows[0]}).spread == pytest.approx(0.25)
    assert measured().spread == 0


@pytest.mark.parametrize(("spread", "close"), [(0.0, 0), (0.05, 0), (0.11, 2), (0.3, 3), (9.0, 3)])
def test_plans_that_are_closer_than_windows_are_counted(spread, close):
    cluster, plans = candidates(2, 2)
    first = rank(plans, cluster, STREAM)[0]
    rates = {100.0: "", 90.1: "", 80.0: "", 99.0: "does not fit"}
    found = [replace(first, events_per_second=rate, objection=why) for rate, why in rates.items()]
    said = describe_spread(spread, found)
    assert said.startswith(f"the median window of a strategy took up to {spread:.0%} longer than its fastest")
    assert (
        f": the first {close} plans are not distinguishable here; take auto-state" in said
        if close
        else "plans" not in said
    )


def test_copies_that_are_cut_are_candidates_where_no_machine_holds_one():
    cluster, plans = candidates(4, 1, memory=6e7)  # a copy takes 100 MB
    found = {one.candidate.written: one for one in rank(plans, cluster, STREAM)}
    free = {name for name, one in found.items() if not one.objection and name.startswith("disttgl")}
    assert free == {
        "disttgl:minibatch=2:memory=2:store=sharded",
        "disttgl:minibatch=2:epoch=2:store=sharded",
        "disttgl:epoch=2:memory=2:store=sharded",
        "disttgl:epoch=4:store=sharded",
    }
    assert {name: found[name].state_bytes for name in free} == {
        name: 1e8 / (4 if "memory" not in name else 2) for name in free
    }
    # Measured on 4 ranks: 401e3 / 3 bytes of rows and 2e5 / 3 of updates, were all of them remote. With two epochs at
    # once one rank in two reads and writes, 4/3 of the rows; with two copies 1/2 of these lives on the other rank.
    twice = found["disttgl:epoch=2:memory=2:store=sharded"]
    assert twice.state_per_event * 200 == pytest.approx((4 / 3 * 401e3 + 2e5) / 3 / 2 / 2)
    shared = found["disttgl:minibatch=2:memory=2:store=sharded"]
    assert shared.state_per_event * 200 == pytest.approx((401e3 + 2e5) / 3 / 2)


def test_compressions_that_may_be_chosen_are_candidates():
    cluster, given = Cluster(2, 2, Links(), 64e9), measured()
    made = {"bfloat16": (5e5, 0.0), "int8": (2.6e5, 0.004), "powersgd": (3e4, 0.1)}
    given = replace(given, compressed={name: CompressedGradients(*each) for name, each in made.items()})
    plain = Candidates(given, cluster, 500, False).all()
    more = Candidates(given, cluster, 500, False, ("int8", "powersgd")).all()
    written = {plan.written: plan for plan in more}
    disttgl = [plan.written for plan in plain if plan.strategy == "disttgl"]
    assert set(written) - {plan.written for plan in plain} == {
        f"{name}:gradient_compression={kind}"
        for name in ("depcache", "depcache:staleness=1", "sven", "sven:staleness=0", *disttgl)
        for kind in ("int8", "powersgd")
    }  # fmt: skip
    found = {name: assess(plan, cluster, STREAM) for name, plan in written.items()}
    saved = found["depcache"].sent_per_event - found["depcache:gradient_compression=int8"].sent_per_event
    assert saved * written["depcache"].batch_size == pytest.approx(2 * 3 / 4 * (1e6 - 2.6e5))
    costs = [found[f"depcache{kind}"].accuracy_cost
             for kind in ("", ":gradient_compression=int8", ":gradient_compression=powersgd")]  # fmt: skip
    assert costs == sorted(set(costs))
    for plan in more:  # the strategies take these options
        kind = lightning_tgnn.strategies.names.StrategyRegistry[plan.strategy]["strategy"]
        kind(**plan.options)
    # What a rank takes to compress its gradients does not shrink with the batch, of 125 instead of 200 events here.
    own = [written[f"depcache:gradient_compression={name}"].costs.seconds["compress"] for name in ("int8", "powersgd")]
    assert own == [0.004, 0.1]
    turns = [found[f"depcache{kind}"].seconds_per_turn
             for kind in ("", ":gradient_compression=int8", ":gradient_compression=powersgd")]  # fmt: skip
    assert turns[1] - turns[0] < 0.004  # fewer bytes travel
    assert turns[2] - turns[0] > 0.09
    found = Candidates(given, cluster, 500, False).costs()
    assert all(found[name].seconds["compress_powersgd"] == 0.1 for name in ("depcache", "sven", "disttgl"))


def test_a_recipe_that_ends_before_powersgd_begins_leaves_it_out():
    cluster, given = Cluster(2, 2, Links(), 64e9), measured()
    made = {"int8": CompressedGradients(2.6e5, 0.0), "powersgd": CompressedGradients(3e4, 0.0)}
    given = replace(given, compressed=made)

    def left_out(epochs):
        # 50 updates an epoch of 125 events on each of 4 ranks; 125 of 200 events where each rank has a copy.
        plans = Candidates(given, cluster, 500, False, tuple(made), trained=(25000, epochs)).all()
        found, printed = rank(plans, cluster, STREAM), io.StringIO()
        print_plans(found, found[0], Console(file=printed, width=80))
        lines = [line for line in printed.getvalue().splitlines() if line.startswith(("left out: ", "slower and "))]
        return {one.candidate.written: one.objection for one in found if one.objection}, len(found), lines

    few, count, (line, rest) = left_out(2)
    assert few["sven:gradient_compression=powersgd"] == (
        "powersgd leaves the gradients of the first 100 updates as they are, and the recipe has 100"
    )
    assert all(name.endswith(":gradient_compression=powersgd") for name in few)
    assert "disttgl:memory=4:gradient_compression=powersgd" not in few  # one epoch of 125 updates
    assert re.fullmatch(
        rf"left out: .*: powersgd leaves the gradients of .*; {len(few) - 1} more are left out, see plan.json", line
    )
    assert rest == f"slower and in plan.json: {count - 12 - len(few)} more"
    assert left_out(12) == ({}, count, [f"slower and in plan.json: {count - 12} more"])


@pytest.mark.usefixtures("in_own_group")
def test_what_compression_leaves_and_takes_is_measured(tmp_path):
    class Task(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.table, self.layer = torch.nn.Embedding(10, 3), torch.nn.Linear(64, 32, bias=False)

    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/ranks")
    made = measured_compressions(Task(), torch.device("cpu"))
    table = 4 * 10 * 3  # which travels as it is
    assert {name: one.nbytes for name, one in made.items()} == {
        "bfloat16": table + 2 * 64 * 32,
        "int8": table + 8 * 260,
        "powersgd": table + 4 * 4 * (64 + 32),
    }
    assert all(one.seconds > 0 for one in made.values())
    (line,) = describe_gradients(1e6, {"int8": CompressedGradients(2e5, 0.0123)}, 2)
    assert line.startswith(
        "a rank sends 1,000 kB of gradients for an update as they are, 200 with int8, which takes 12.3"
    )
    assert describe_gradients(1e6, made, 1) == []


def test_batches_that_are_split_by_destination_are_candidates_where_their_rows_are_counted():
    cluster = Cluster(2, 2, Links(), 64e9)
    plain, counted = (Candidates(measured(), cluster, 500, False, remote=remote).all() for remote in (None, 0.75))
    written = {plan.written: plan for plan in counted}
    split = {"sven:split_batch=destination", "sven:staleness=0:split_batch=destination"}
    assert set(written) - {plan.written for plan in plain} == split
    for name in split:
        kind = lightning_tgnn.strategies.names.StrategyRegistry["sven"]["strategy"]
        kind(**written[name].options)  # which takes them
        whole, fewer = (
            assess(written[one], cluster, STREAM) for one in (name.replace(":split_batch=destination", ""), name)
        )
        assert fewer.state_per_event == pytest.approx(0.75 * whole.state_per_event)
        assert fewer.accuracy_cost == whole.accuracy_cost  # no result changes
        assert "; its ranks need 25.0% fewer rows of each other" in reason(fewer, [fewer], 0)
        assert "of each other" not in reason(whole, [whole], 0)


def test_rows_are_counted_on_batches_that_no_partition_was_fitted_on(tmp_path, monkeypatch, capsys):
    """As the command `partition` counts them; and the planner says so."""
    monkeypatch.chdir(tmp_path)
    stream = ["--synthetic={num_events: 900}", "--seed=3"]
    kept = {}
    for split in ("time", "destination"):
        main(["partition", *stream, "--ranks=2", "--batch_size=20", "--methods=interval,reflexbicut",
              f"--split_batch={split}", f"--output={split}"])  # fmt: skip
        kept[split] = json.loads((tmp_path / split / "partition.json").read_text())
    capsys.readouterr()
    known = replace(measured(2), batch_size=20)
    monkeypatch.setattr("lightning_tgnn.commands.plan.events.measure", lambda *given, **options: known)
    main(["plan", *stream, "--machines=2", "--devices=1", "--batch_size=20", "--max_loss=0.99", "--link=1:1"])
    printed, found = capsys.readouterr().out, json.loads((tmp_path / "runs/plan/plan.json").read_text())
    for split, of in kept.items():
        matrix = torch.tensor(of["methods"]["reflexbicut"]["matrix"])
        own, maxima = found["remote_rows"]["held_out"][split], [of["methods"][one]["maximum"] for one in of["methods"]]
        assert own["rows"] == int(matrix.sum() - matrix.diagonal().sum())
        assert own["batches"] == len(of["judged_batches"])
        assert own["gain"] == pytest.approx(1 - maxima[1] / maxima[0])
        assert found["remote_rows"]["fitted"][split]["batches"] == len(of["fitted_batches"])
    rows = [found["remote_rows"]["held_out"][split]["rows"] for split in kept]
    share, less = changed(rows[1] / rows[0]), f"{rows[1]:,} against {rows[0]:,} in {own['batches']} global batches"
    assert (
        f"with split_batch='destination' ranks of sven need {share} rows of each other than by time: {less}" in printed
    )
    assert "its partition lets the busiest rank move fewer rows than intervals do, by " in printed
    (one,) = (plan for plan in found["plans"] if plan["plan"] == "sven:split_batch=destination")
    assert one["options"] == {"split_batch": "destination"}
    assert remote_rows(TemporalDataModule(synthetic={"num_events": 60}), 2, 40) is None  # one batch shows nothing
    assert remote_rows(TemporalDataModule(synthetic={"num_events": 60}), 1, 4) is None


def test_what_was_measured_stays_where_no_plan_can_be_recommended(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lightning_tgnn.commands.plan.events.measure", lambda *given, **options: measured(2))
    where = ["--machines=2", "--devices=1"]
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--synthetic={num_events: 900}", *where, "--max_loss=0", "--batch_size=200"])
    refused = f"{ended.value} {capsys.readouterr().err}"
    assert "candidates must be plans of which one can be recommended" in refused
    assert not (tmp_path / "runs/plan/recipe.yaml").exists()
    main(["simulate", "--strategy=sven", "--stages=runs/plan/costs.yaml", "--ranks=2", "--turns=4"])
    assert "4 turns of 200 events per rank" in capsys.readouterr().out


def test_every_plan_has_its_reason():
    cluster, plans = candidates(2, 4, memory=3e8)
    found = rank(plans, cluster, STREAM)
    words = [reason(one, found, place) for place, one in enumerate(found)]
    assert words[0].startswith("recommended: ")
    assert any(re.match(r"[\d.]+% slower than the fastest; waits \d+% for ", each) for each in words)
    assert "node state does not fit: 0.40 GB on a machine with 0.30 GB" in words
    assert json.loads(json.dumps(metrics_of(found[0])))["plan"] == found[0].candidate.written
    # What is faster than the recommended plan is so at a cost.
    slow = [found[1], found[0], *found[2:]] if found[0].events_per_second > found[1].events_per_second else found
    assert re.search(r"\d+% faster, but ", reason(slow[1], slow, 1))


def test_it_says_where_node_state_belongs():
    for machines, devices in ((1, 2), (4, 1)):
        cluster, plans = candidates(machines, devices)
        found = rank(plans, cluster, STREAM)
        ranks = machines * devices
        # Measured on 4 ranks: of DepCache's 2e5 bytes a rank has 1/12 for each other one; of Sven's all but its own.
        whole, cut = 2e5 / 12 * (ranks - 1) / 1e3, (401e3 + 2e5) / 3 * (ranks - 1) / ranks / 1e3
        size = next(one.candidate.batch_size for one in found if one.candidate.written == "depcache") / 200
        said = where_state_belongs(found)
        assert said.startswith("depcache rather than sven: ")
        assert f"{whole * size:,.0f} against {cut * size:,.0f} kB a rank and turn" in said
    cluster, plans = candidates(2, 4, memory=3e8)
    assert where_state_belongs(rank(plans, cluster, STREAM)).startswith(
        "sven rather than depcache: node state does not"
    )
    cluster, plans = candidates(1, 1)
    assert where_state_belongs(rank(plans, cluster, STREAM)) == ""


def test_plans_that_are_left_out_are_not_called_slower():
    cluster, plans = candidates(2, 2)
    found = rank(plans, cluster, STREAM)

    def without(*strategies):
        lossy = [replace(one, objection="loses much") if one.candidate.strategy in strategies else one for one in found]
        return sorted(lossy, key=lambda one: (bool(one.objection), -one.events_per_second))

    fastest = max(found, key=lambda one: one.events_per_second).candidate.strategy
    assert "that are not left out" not in reason(found[0], found, 0)
    lossy = without(fastest)
    assert reason(lossy[0], lossy, 0).startswith("recommended: the fastest of those that are not left out")
    assert where_state_belongs(without("sven")) == "depcache rather than sven: loses much"
    assert where_state_belongs(without("sven", "depcache")) == ""  # neither can be had


def test_what_is_said_of_plans_is_a_line_in_a_file():
    cluster, plans = candidates(2, 2)
    found, printed = rank(plans, cluster, STREAM), io.StringIO()
    print_plans(found, found[0], Console(file=printed, width=80))
    assert where_state_belongs(found) in printed.getvalue().splitlines()


def test_one_process_trains_the_global_batches_of_the_ranks_alone():
    cluster = Cluster(2, 2, Links(), 64e9)
    plain = Candidates(measured(), cluster, 500, False).alone()
    alone, printed = assess(plain, Cluster(1, 1, Links(), 64e9), STREAM), io.StringIO()
    assert (plain.written, plain.batch_size, plain.global_batch) == ("one process", 500, 500)
    # A turn of 200 events beside three others takes 0.05 s, of which a quarter does not grow; messages take little.
    assert alone.seconds_per_turn == pytest.approx(0.05 * (0.25 + 0.75 * 500 / 200), rel=0.1)
    assert alone.sent_per_event == 0
    print_plans(rank(candidates(2, 2)[1], cluster, STREAM), alone, Console(file=printed, width=80))
    (row,) = [line for line in printed.getvalue().splitlines() if "one process" in line]
    assert f"{alone.events_per_second:,.0f}" in row


def test_a_recipe_says_where_it_runs_and_how_long():
    cluster, plans = candidates(2, 2)
    plan = next(one for one in plans if one.written == "disttgl:epoch=2:memory=2")
    given = {"source": "events.csv", "num_neighbors": 10, "past": "batch"}
    text = recipe_of(plan, cluster, Trained(given, {"model": "jodie", "lr": 1e-3}, "cpu", 10))
    recipe = yaml.safe_load(text)
    assert recipe["trainer"]["strategy"] == {
        "class_path": "lightning_tgnn.DistTGLStrategy",
        "init_args": {"epoch": 2, "memory": 2},
    }
    assert (recipe["trainer"]["devices"], recipe["trainer"]["num_nodes"], recipe["trainer"]["max_epochs"]) == (2, 2, 2)
    data = {"source": "events.csv", "num_neighbors": 10, "past": "batch", "batch_size": 200}
    assert recipe["data"]["init_args"] == data
    assert recipe["model"]["init_args"] == {"model": "jodie"}
    assert "# An epoch trains every event 4 times." in text
    broken_off = recipe["trainer"]["callbacks"][-1]["init_args"]
    assert (broken_off["every_n_train_steps"], broken_off["save_on_exception"]) == (1000, True)


@pytest.mark.usefixtures("in_own_group")
def test_the_recipe_of_a_plan_trains_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    tiny = ["--memory_dim=8", "--embedding_dim=8", "--time_dim=4", "--synthetic={num_events: 600}"]
    where = ["--devices=1", "--accelerator=cpu", "--epochs=1", "--steps=2", "--rounds=1", "--batch_size=20"]
    main(["plan", *where, *tiny, "--num_eval_negatives=3"])
    printed = capsys.readouterr().out
    assert "recommended: " in printed
    assert "recipe: lightning-tgnn fit --config runs/plan/recipe.yaml" in printed
    assert "beside each other: lightning-tgnn bench --config runs/plan/recipe.yaml --strategies " in printed
    assert json.loads((tmp_path / "runs/plan/plan.json").read_text())["measured"]["processes"] == 1
    main(["simulate", "--strategy=disttgl,sven", "--stages=runs/plan/costs.yaml", "--ranks=1,4", "--turns=4"])
    assert "4 turns of 20 events per rank" in capsys.readouterr().out
    measured = json.loads((tmp_path / "runs/plan/plan.json").read_text())["measured"]
    costs = yaml.safe_load((tmp_path / "runs/plan/costs.yaml").read_text())["strategies"]
    assert costs["pipetgl"]["shares"] == {name: measured[name] for name in ("targets", "repeated")}
    assert (list(costs["sven"]["shares"]), costs["depcache"]["shares"]) == (["ahead"], {})
    short = ["--trainer.limit_train_batches=2", "--trainer.limit_val_batches=2", "--test_after_fit=false"]
    main(["fit", "--config=runs/plan/recipe.yaml", *short])
    assert list(tmp_path.glob("runs/planned_*/version_0/checkpoints/last.ckpt"))


@pytest.mark.parametrize(
    ("options", "memory", "refused"),
    [
        (["--machines=5", "--devices=9"], 1 << 30, "devices times machines must be at most the 42 events .*, got 45"),
        (["--processes=50"], 1 << 30, "processes must be at most the 42 events that are trained on, got 50; "),
        ([f"--output={__file__}"], 1 << 30, "output must be where files can be written, got .*; choose another place"),
        (["--devices=2"], None, "memory must be given where the system does not tell .*, got None; give gigabytes"),
    ],
)
def test_what_cannot_be_ranked_is_refused_before_it_is_measured(options, memory, refused, monkeypatch, capsys):
    monkeypatch.setattr(events, "measure", None)  # nothing comes so far
    monkeypatch.setattr(events, "available_memory", lambda: memory)
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--accelerator=cpu", "--synthetic={num_events: 60}", *options])
    assert re.search(refused, f"{ended.value} {capsys.readouterr().err}")


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["--machines=0"], "machines must be an integer of at least 1, got 0"),
        (["--processes=0"], "processes must be an integer of at least 1, got 0; give a number, or leave it out"),
        (
            ["--gradient_compression=int8,fp8"],
            "gradient_compression must be one of 'bfloat16', 'int8', 'powersgd'",
        ),
        (["--memory=-1"], "memory must be a finite number above 0, got -1"),
        (["--max_loss=2"], "max_loss must be"),
        (["--link=fast"], "link must be MBIT or MBIT:MILLISECONDS, got 'fast'"),
        (["--batch_sise=3"], "did you mean '--batch_size'?"),
        (
            ["--devices=1", "--steps=99", "--rounds=1", "--synthetic={num_events: 60}"],
            "a stream of at least 198 training events per process, got '42 on each of 1 processes'",
        ),
    ],
)
@pytest.mark.usefixtures("in_own_group")
def test_what_cannot_be_planned_is_refused(options, refused, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--accelerator=cpu", *options])
    assert refused in f"{ended.value} {capsys.readouterr().err}"
