"""The commands on static graphs: which kind a source is, cuts that training takes, strategies in real processes."""

import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch

from lightning_tgnn import FullGraphDataModule, NodeClassification
from lightning_tgnn.__main__ import main
from lightning_tgnn.algorithms.partitions.replicas import Replicas, cut_report
from lightning_tgnn.algorithms.partitions.vertex_cut import CUT_METHODS, vertex_cut
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.commands.shared.kinds import kind_of
from lightning_tgnn.data import generate_graph, read_events
from lightning_tgnn.strategies.parts.partition import choose_edge_partition
from tests.data.example_streams import random_store
from tests.multiprocess.ranks import run_commands

DATA = Path(os.environ.get("LIGHTNING_TGNN_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
SYNTHETIC = ["--kind=graph", "--synthetic.num_nodes=100", "--synthetic.num_edges=400"]
WIDTH = 4
HOSTS = torch.tensor([0, 0, 1, 1])


def npz(path):
    """A small graph in the form of Cora's file."""
    graph = generate_graph(200, 800, WIDTH, WIDTH)
    masks = {f"{name}_mask": getattr(graph, name) for name in ("train", "val", "test")}
    index = np.stack([graph.src, graph.dst])
    np.savez(path, edge_index=index, features=graph.features, label=graph.labels, **masks)
    return path


def events(path):
    store = random_store(200, num_nodes=30)
    columns = zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True)
    path.write_text("\n".join(f"{u} {v} {t}" for u, v, t in columns))
    return path


def same(made):
    """What a broadcast on one rank does."""
    return made


def edges_of(data):
    return data.graph.src, data.graph.dst, data.graph.num_nodes


def test_a_source_tells_its_kind(tmp_path):
    random_store(10).save(tmp_path / "stream")
    for kind, sources in {
        "graph": [tmp_path / "any.npz", tmp_path],
        "events": [tmp_path / "stream", tmp_path / "any.txt.gz", "synthetic", "nowhere"],
    }.items():
        for source in sources:
            assert kind_of(source) == kind, source
            assert kind_of(source, "graph") == "graph"
            assert kind_of(source, "events") == "events"


@pytest.mark.parametrize("source", ["synthetic", "npz"])
def test_cuts_are_compared_and_kept(source, tmp_path, capsys):
    given = SYNTHETIC if source == "synthetic" else [f"--source={npz(tmp_path / 'graph.npz')}"]
    main(["partition", "--ranks=4", "--hosts=2", f"--output={tmp_path}", *given])
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "partition.json").read_text())
    assert (found["kind"], found["ranks"], found["hosts"]) == ("graph", 4, 2)
    generated = {"num_nodes": 100, "num_edges": 400}
    data = FullGraphDataModule(tmp_path / "graph.npz" if source == "npz" else source, synthetic=generated)
    assert found["fingerprint"] == data.info.fingerprint
    edges = edges_of(data)
    assert (found["vertices"], found["edges"]) == (edges[2], len(edges[0]))
    trainer = SimpleNamespace(datamodule=data, global_rank=0)
    assert set(found["methods"]) == set(CUT_METHODS)
    for method, metrics in found["methods"].items():
        part = choose_edge_partition(tmp_path / f"{method}.pt", edges, HOSTS, trainer, same)
        if method != "metis":  # its own numbers differ from run to run
            assert torch.equal(part, choose_edge_partition(method, edges, HOSTS, trainer, same))
        report = cut_report(part, Replicas.of(*edges[:2], part, edges[2], HOSTS))
        assert metrics.pop("seconds") > 0
        assert metrics == asdict(report)
        assert re.search(rf"{method} +│ +{report.replication_factor:.3f} │", printed), printed
    fewest = min(found["methods"], key=lambda method: found["methods"][method]["replication_factor"])
    assert f"partition: {tmp_path / fewest}.pt" in printed


def test_the_file_of_another_graph_or_number_of_ranks_is_refused(tmp_path):
    main(["partition", "--ranks=4", "--methods=ebv", f"--output={tmp_path}", *SYNTHETIC])
    data = FullGraphDataModule(synthetic={"num_nodes": 100, "num_edges": 400})
    edges, trainer = edges_of(data), SimpleNamespace(datamodule=data, global_rank=0)
    path = tmp_path / "ebv.pt"
    with pytest.raises(InvalidArgumentError, match=r"for 2 ranks, got '4 ranks in .*; make one with `lightning-tgnn p"):
        choose_edge_partition(path, edges, HOSTS[:2], trainer, None)
    other = SimpleNamespace(datamodule=FullGraphDataModule(synthetic={"num_nodes": 100, "num_edges": 399}))
    with pytest.raises(InvalidArgumentError, match="partition must be of this graph, got 'the partition of another"):
        choose_edge_partition(path, edges, HOSTS, other, None)
    with pytest.raises(InvalidArgumentError, match="partition must be a rank for each of 3 edges"):
        choose_edge_partition(
            torch.zeros(4, dtype=torch.int64), (edges[0][:3], edges[1][:3], 100), HOSTS, trainer, None
        )


def test_methods_take_weights(tmp_path, capsys):
    methods = "hierarchical,hierarchical:gamma=0,hierarchical:gamma=1:beta=0.5,ebv,ebv:alpha=0"
    main(["partition", "--ranks=4", "--hosts=2", f"--methods={methods}", f"--output={tmp_path}", *SYNTHETIC])
    src, dst, num_nodes = edges_of(FullGraphDataModule(synthetic={"num_nodes": 100, "num_edges": 400}))
    wanted = {
        "hierarchical": {},
        "hierarchical_gamma=0": {"gamma": 0},
        "hierarchical_gamma=1_beta=0.5": {"gamma": 1, "beta": 0.5},
        "ebv": {},
        "ebv_alpha=0": {"alpha": 0},
    }
    parts = {name: torch.load(tmp_path / f"{name}.pt", weights_only=True)["owner"] for name in wanted}
    for name, weights in wanted.items():
        made = vertex_cut(src, dst, num_nodes, HOSTS, name.partition("_")[0], **weights)
        assert torch.equal(parts[name], made), name
    assert list(json.loads((tmp_path / "partition.json").read_text())["methods"]) == list(wanted)
    assert torch.equal(parts["hierarchical_gamma=0"], parts["ebv"])
    assert not torch.equal(parts["hierarchical_gamma=1_beta=0.5"], parts["hierarchical"])
    assert not torch.equal(parts["ebv_alpha=0"], parts["ebv"])
    assert "gamma=1" in capsys.readouterr().out


@pytest.mark.parametrize("as_it_is", [True, False])
def test_the_distinct_edges_of_a_stream_are_cut(as_it_is, tmp_path, capsys):
    source = events(tmp_path / "events.txt")
    if not as_it_is:  # in another form, too
        read_events(source).save(tmp_path / "stream")
        source = tmp_path / "stream"
    options = ["--undirected=false", "--self_loops=false"] if as_it_is else []
    main(["partition", "--kind=graph", f"--source={source}", "--ranks=2", f"--output={tmp_path / 'out'}", *options])
    printed, told = capsys.readouterr()
    assert re.search(r"^no partition files: a stream has no features", printed, re.MULTILINE)
    assert re.search(r": EventStore\(num_events=200, .*\d% of the events tied$", told, re.MULTILINE)
    assert re.search(r": \d+% of the events have another one at their time: ", told)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["partition.json"]
    found = json.loads((tmp_path / "out/partition.json").read_text())
    store = read_events(source)
    edges = set(zip(store.src.tolist(), store.dst.tolist(), strict=True))
    if not as_it_is:
        edges |= {(v, u) for u, v in edges} | {(v, v) for v in range(store.num_nodes)}
    assert (found["vertices"], found["edges"]) == (store.num_nodes, len(edges))
    src, dst = (torch.tensor(ends) for ends in zip(*sorted(edges), strict=True))
    part = vertex_cut(src, dst, store.num_nodes, torch.zeros(2, dtype=torch.int64), "random")
    replicas = Replicas.of(src, dst, part, store.num_nodes, torch.zeros(2, dtype=torch.int64))
    assert found["methods"]["random"]["inner"] == cut_report(part, replicas).inner


def test_metis_is_left_out_without_a_library_that_has_it(tmp_path, capsys, monkeypatch):
    for name in ("dgl", "pymetis"):
        monkeypatch.setitem(sys.modules, name, None)
    common = ["partition", "--ranks=2", f"--output={tmp_path}", *SYNTHETIC]
    main([*common, "--methods=random,metis"])
    assert re.search(r"metis is left out: .*install pymetis", capsys.readouterr().out)
    assert set(json.loads((tmp_path / "partition.json").read_text())["methods"]) == {"random"}
    with pytest.raises(SystemExit, match="install pymetis"):
        main([*common, "--methods=metis"])


def test_a_file_of_options_counts(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(f"source: {npz(tmp_path / 'graph.npz')}\nranks: 2\nmethods: ebv\noutput: {tmp_path / 'out'}\n")
    main(["partition", f"--config={config}"])
    assert (tmp_path / "out/ebv.pt").is_file()
    config.write_text("kind: graph\nranks: 2\nbatch_size: 3\n")
    with pytest.raises(SystemExit, match="batch_size must be left out with --kind graph"):
        main(["partition", f"--config={config}"])


def test_bench_measures_two_processes(tmp_path):
    source, epochs = npz(tmp_path / "graph.npz"), 6
    strategies = ["cdfgnn:cache=false:bits=none", "cdfgnn:bits=none:threshold=0.2", "cdfgnn:cache=false", "cdfgnn"]
    strategies.append("cdfgnn:cache=sancus:threshold=0.9:bits=none")
    limits = [f"--epochs={epochs}", "--warmup=2", "--rounds=2", "--devices=2", "--accelerator=cpu"]
    options = [f"--output={tmp_path}", f"--source={source}", f"--hidden_dim={WIDTH}", "--seed=3", *limits]
    said = run_commands(tmp_path, ["bench", f"--strategies={','.join(strategies)}", *options])
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["kind"], found["ranks"], found["epochs"], found["task"]["dropout"]) == ("graph", 2, epochs, 0.0)
    assert list(found["strategies"]) == strategies
    src, dst, num_nodes = edges_of(FullGraphDataModule(source))
    hosts = torch.tensor([0, 0])
    part = vertex_cut(src, dst, num_nodes, hosts)
    mirrors = cut_report(part, Replicas.of(src, dst, part, num_nodes, hosts)).inner
    for name, metrics in found["strategies"].items():
        head = name.partition(":")[0]
        row = rf"{head}[^│]* +│ +{metrics['seconds_per_epoch']:.4f} │ +{metrics['bytes_per_epoch']:,.0f} │"
        assert re.search(row, said[0]), said
        assert metrics["seconds_per_epoch"] == max(metrics["seconds_per_epoch_of_rounds"]) > 0
        assert len(metrics["seconds_per_epoch_of_rounds"]) == 2
        # To the master and back, of the second layer, forward and backward; the first layer's sums travel once.
        assert metrics["rows_possible"] == 4 * mirrors * epochs
        once = [metrics["flows"][f"{way}_exact"]["sent"] for way in ("gather", "scatter")]
        assert once == [mirrors * WIDTH * 4] * 2
        assert metrics["rows_share"] == metrics["rows_sent"] / metrics["rows_possible"]
        assert sum(flow["sent"] for flow in metrics["flows"].values()) == pytest.approx(
            metrics["bytes_per_epoch"] * epochs
        )
        assert 0 < metrics["train_accuracy"] <= 1
        assert 0 < metrics["test_accuracy"] <= 1
    whole, cached, coded, both, skipped = found["strategies"].values()
    assert whole["rows_share"] == coded["rows_share"] == 1
    summed = [flow["sent"] for name, flow in whole["flows"].items() if "exact" not in name]
    assert sum(summed) == whole["rows_sent"] * WIDTH * 4  # float32
    assert cached["rows_share"] < 1
    assert 0.5 < skipped["rows_share"] < 1  # gradients go whole
    assert coded["bytes_per_epoch"] < whole["bytes_per_epoch"]
    assert both["bytes_per_epoch"] < whole["bytes_per_epoch"]
    alone = trained_alone(source, epochs)
    assert whole["train_accuracy"] == pytest.approx(alone["train/accuracy"], abs=0.02)
    assert whole["test_accuracy"] == pytest.approx(alone["test/accuracy"], abs=0.03)


def trained_alone(source, epochs):
    """What the same training gives in one process without a strategy."""
    data, task = FullGraphDataModule(source, seed=3), NodeClassification(hidden_dim=WIDTH, dropout=0.0)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", limit_val_batches=0, enable_model_summary=False, **quiet)
    torch.manual_seed(3)
    trainer.fit(task, datamodule=data)
    trained = float(trainer.callback_metrics["train/accuracy"])
    (tested,) = trainer.test(task, datamodule=data, verbose=False)
    return tested | {"train/accuracy": trained}


def test_bench_measures_two_hosts(tmp_path):
    limits = ["--epochs=3", "--warmup=1", "--rounds=1", "--model=gat", "--hidden_dim=4", "--accelerator=cpu"]
    options = [f"--output={tmp_path}", "--strategies=cdfgnn", "--dropout=0.1", *SYNTHETIC, *limits]
    said = run_commands(tmp_path, ["bench", *options], hosts=2)
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["ranks"], found["hosts"], found["task"]["model"]) == (2, 2, "gat")
    assert found["strategies"]["cdfgnn"]["bytes_per_epoch"] > 0
    assert sum("s/epoch" in text for text in said) == 1  # one of them reports


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("partition", ["--hosts HOSTS", "hierarchical:gamma=0.3", "METHOD.pt", "--undirected"]),
        ("bench", ["--strategies STRATEGIES", "Epochs to train", "Width of the layers in between", "default: 0.0"]),
    ],
)
def test_help_is_that_of_the_kind(command, expected, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--kind", "graph", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for text in expected:
        assert text in printed, printed
    assert "batch_size" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["partition", "--ranks=2", "--kind=graphs"], r"kind must be one of 'auto', 'events', 'graph', got 'graphs'"),
        (["partition", "--ranks=3", "--hosts=2", "--kind=graph"], r"hosts must be a divisor of ranks=3, got 2"),
        (["partition", "--ranks=3", "--hosts=0", "--kind=graph"], r"hosts must be an integer of at least 1, got 0"),
        (["partition", "--ranks=0", "--kind=graph"], r"ranks must be an integer of at least 1, got 0"),
        (
            ["partition", "--ranks=2", "--source=any.npz", "--methods=reflexbicut"],
            r"methods must be one of 'ebv', 'hdrf', 'hierarchical', 'metis', 'random', got 'reflexbicut'",
        ),
        (
            ["partition", "--ranks=2", "--source=any.txt", "--methods=ebv"],
            r"methods must be one of 'interval', 'metis', 'range', 'reflexbicut', got 'ebv'",
        ),
        (
            ["partition", "--ranks=2", "--methods=hierarchical:delta=1", "--kind=graph"],
            r"option of hierarchical must be one of gamma, alpha, beta, got 'delta'",
        ),
        (
            ["partition", "--ranks=2", "--methods=random:gamma=1", "--kind=graph"],
            r"option of random must be left out, for it has none, got 'gamma'",
        ),
        (
            ["partition", "--ranks=2", "--methods=ebv:gamma=1", "--kind=graph"],
            r"option of ebv must be one of alpha, beta, got 'gamma'",
        ),
        (
            ["partition", "--ranks=2", "--methods=hierarchical:gamma=2", "--kind=graph"],
            r"gamma must be a number in \[0, 1\]",
        ),
        (["partition", "--ranks=2", "--methods=ebv:alpha=x", "--kind=graph"], r"alpha must be a finite.*got 'x'"),
        (["partition", "--ranks=2", "--methods=ebv:alpha", "--kind=graph"], r"methods must be a name with options"),
        (["partition", "--ranks=900", *SYNTHETIC], r"ranks must be at most one for each of \d+ edges, got 900"),
        (
            ["partition", "--ranks=2", "--source=no.npz"],
            r"source must be a file or folder that is there, got 'no\.npz'",
        ),
        (["partition", "--ranks=2", "--source=no.txt", "--kind=graph"], r"no\.txt must be an existing file"),
        (
            ["partition", "--ranks=2", "--source=any.npz", "--batch_size=3"],
            r"batch_size must be left out with --kind graph, got 'an option of --kind events'; give --kind ev",
        ),
        (
            ["partition", "--ranks=2", "--hosts", "2"],
            r"hosts must be left out with --kind events, got .*`lightning-tgnn partition --kind events --help` lists",
        ),
        (["bench", "--kind=graph", "--synthetic.num_nodes=50", "--memory_dim=8"], r"memory_dim must be left out with"),
        (["bench", "--hidden_dim=8"], r"hidden_dim must be left out with --kind events"),
        (["bench", "--kind=graph", "--strategies=sven"], r"strategies must be one of 'cdfgnn', got 'sven'"),
        (
            ["bench", "--strategies=cdfgnn"],
            r"strategies must be one of .*'pipetgl', 'sven'.*, got 'cdfgnn'",
        ),
        (["bench", "--kind=graph", "--strategies=cdfgnn:bits=3"], r"bits must be one of 2, 4, 8, 16, or None, got 3"),
        (["bench", "--kind=graph", "--warmup=0"], r"warmup must be an integer of at least 1, got 0"),
        (["bench", "--kind=graph", "--epochs=0"], r"epochs must be an integer of at least 1, got 0"),
        (["bench", "--kind=graph", "--warmup=3", "--epochs=3"], r"warmup must be less than epochs=3, got 3"),
        (["bench", "--kind=graph", "--rounds=0"], r"rounds must be an integer of at least 1, got 0"),
        (
            ["bench", "--kind=graph", "--model=tgn"],
            r"model must be what builds .*one of 'gat', 'gatv2', 'gcn', 'gin', 'sage', got 'tgn'",
        ),
        (["bench", "--source=no.npz"], r"source must be a file or folder that is there, got 'no\.npz'"),
    ],
)
def test_mistakes_are_one_clear_line(arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert re.search(rf"^lightning-tgnn: .*{message}", str(stopped.value))
    assert "\n" not in str(stopped.value)


def test_options_are_written_out(capsys):
    with pytest.raises(SystemExit):
        main(["partition", "--ranks=2", "--sourc=any.npz"])
    assert "--sourc=any.npz; did you mean '--source'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "simulate", "partition"])
def test_a_recipe_is_no_file_of_options(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--config=recipes/cdfgnn_synthetic.yaml"])
    assert f"--config must be a file of options of lightning-tgnn {command}, got 'the recipe" in capsys.readouterr().err


@pytest.mark.skipif(not (DATA / "cora.npz").exists(), reason="needs cora.npz in LIGHTNING_TGNN_DATA")
def test_cuts_of_cora(tmp_path):
    main(["partition", f"--source={DATA / 'cora.npz'}", "--ranks=4", "--hosts=2", f"--output={tmp_path}"])
    found = json.loads((tmp_path / "partition.json").read_text())
    assert (found["vertices"], found["edges"]) == (2708, 10556 + 2708)
    outer = {method: metrics["outer"] for method, metrics in found["methods"].items()}
    assert outer["hierarchical"] < outer["ebv"] < outer["random"]


@pytest.fixture(scope="module")
def trained_vertices(tmp_path_factory):
    """A checkpoint of vertices' classes, its graph, and the probabilities of all vertices."""
    folder = tmp_path_factory.mktemp("vertices")
    source, quiet = npz(folder / "graph.npz"), {"accelerator": "cpu", "logger": False, "max_epochs": 3}
    runner = pl.Trainer(**quiet, default_root_dir=folder, enable_progress_bar=False, enable_checkpointing=False)
    data, task = FullGraphDataModule(source, self_loops=False), NodeClassification("sage", hidden_dim=8)
    runner.fit(task, datamodule=data)
    runner.save_checkpoint(folder / "trained.ckpt")
    (answer,) = runner.predict(task, datamodule=data)
    return SimpleNamespace(folder=folder, source=source, task=task, answer=answer, path=folder / "trained.ckpt")


def grown(source, path, width=WIDTH, more=5):
    """A graph with more vertices, which have edges to earlier ones, and perhaps another number of features."""
    held = dict(np.load(source))
    old, rng = len(held["label"]), np.random.default_rng(0)
    new = np.arange(old, old + more)
    held["edge_index"] = np.concatenate([held["edge_index"], np.stack([new, rng.integers(0, old, more)])], axis=1)
    features = rng.standard_normal((old + more, width), dtype=np.float32)
    features[:old, : held["features"].shape[1]] = held["features"][:, :width]
    held["features"], held["label"] = features, np.concatenate([held["label"], np.full(more, -1)])
    for name in ("train_mask", "val_mask", "test_mask"):
        held[name] = np.concatenate([held[name], np.zeros(more, bool)])
    np.savez(path, **held)
    return path


def classes(path, source, output, *more):
    main(["predict", f"--ckpt_path={path}", f"--vertices={source}", f"--output={output}", *more])
    return pd.read_csv(output) if output.suffix == ".csv" else pd.read_parquet(output)


def test_every_vertex_gets_its_class_and_probabilities(trained_vertices, tmp_path, capsys):
    held = trained_vertices
    assert torch.equal(held.answer["node"], torch.arange(200))
    found = classes(held.path, held.source, tmp_path / "classes.parquet")
    assert "200 answers: " in capsys.readouterr().out
    expected = held.answer["probability"].numpy()
    assert found["node"].tolist() == list(range(200))
    assert found["class"].tolist() == expected.argmax(1).tolist()
    np.testing.assert_allclose(found[[f"p{number}" for number in range(expected.shape[1])]], expected, rtol=1e-5)


def test_vertices_of_several_classes_get_a_probability_of_each(tmp_path):
    source = npz(tmp_path / "graph.npz")
    held = dict(np.load(source))
    held["label"] = np.stack([held["label"] == 0, held["label"] > 0], axis=1).astype(np.int64)
    np.savez(source, **held)
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    runner, task = pl.Trainer(**quiet, max_epochs=40), NodeClassification(hidden_dim=8, dropout=0.0)
    runner.fit(task, datamodule=FullGraphDataModule(source))
    (metrics,) = runner.test(task, FullGraphDataModule(source), verbose=False)
    assert metrics.keys() == {"test/accuracy", "test/f1", "test/f1_micro"}
    runner.save_checkpoint(tmp_path / "trained.ckpt")
    found = classes(tmp_path / "trained.ckpt", source, tmp_path / "classes.csv")
    assert list(found) == ["node", "p0", "p1"]
    right = (found[["p0", "p1"]].to_numpy() > 0.5) == held["label"]
    assert right[held["test_mask"]].mean() == pytest.approx(metrics["test/accuracy"])
    # The sum of both probabilities need not be 1, but a vertex is of one of the two.
    assert metrics["test/accuracy"] > 0.7


def test_a_graph_may_have_grown_since_training(trained_vertices, tmp_path):
    held, source = trained_vertices, grown(trained_vertices.source, tmp_path / "grown.npz")
    found = classes(held.path, source, tmp_path / "classes.csv")
    assert len(found) == 205
    runner = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path)
    data = FullGraphDataModule(source, self_loops=False)
    for options in ({}, {"ckpt_path": held.path}):
        task = held.task if not options else NodeClassification("sage", hidden_dim=8)
        (answer,) = runner.predict(task, datamodule=data, **options)
        np.testing.assert_allclose(found["p0"], answer["probability"][:, 0], rtol=1e-5)
    with pytest.raises(CheckpointError, match="model or checkpoint must be of this graph"):
        runner.test(held.task, datamodule=data)


def test_questions_about_vertices_that_do_not_fit_are_refused(trained_vertices, tmp_path):
    held, output = trained_vertices, tmp_path / "classes.csv"
    wide = grown(held.source, tmp_path / "wide.npz", width=WIDTH + 1)
    with pytest.raises(
        SystemExit, match=r"vertices must be a graph with the 4 features of training, got 5; give such a"
    ):
        classes(held.path, wide, output)
    with pytest.raises(SystemExit, match="events must be left out with --vertices, got"):
        classes(held.path, held.source, output, "--events=more.csv")
    with pytest.raises(SystemExit, match="question must be one of score, top_k, embed, classify, vertices, got"):
        classes(held.path, held.source, output, "--score=pairs.csv")
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.5.0"}, tmp_path / "other.ckpt")
    with pytest.raises(SystemExit, match="ckpt_path must be of NodeClassification, with --vertices, got"):
        classes(tmp_path / "other.ckpt", held.source, output)
    assert not output.exists()
