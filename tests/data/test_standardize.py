"""Raw features: which are standardized, by what, and that every reader of a model does the same."""

import json
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_tgnn import (
    EventStore,
    FullGraphDataModule,
    LinkPrediction,
    Predictor,
    SnapshotDataModule,
    TemporalDataModule,
)
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import CheckpointError, DataError, InvalidArgumentError
from lightning_tgnn.data.graphs.graph import Graph
from lightning_tgnn.data.sources.convert import convert_events
from lightning_tgnn.data.sources.open_events import read_source
from lightning_tgnn.data.standardize import Moments, standardization_of
from lightning_tgnn.serving.tables import by_name
from lightning_tgnn.types import Standardization, StandardizedRows
from tests.data.example_streams import random_store
from tests.serving.runs import SMALL, data_module, fitted, trainer


def stream(scale=1.0, shift=0.0, node_dim=0):
    """Return a stream whose first feature is off, and whose second one is as usual."""
    store = random_store(300, num_nodes=20, edge_dim=2, node_dim=node_dim)
    features = store.edge_features.clone()
    features[:, 0] = features[:, 0] * scale + shift
    columns = {name: getattr(store, name) for name in ("src", "dst", "time", "node_features", "node_ids")}
    return EventStore.from_arrays(**columns, edge_features=features)


def test_moments_are_those_of_numpy_in_pieces(monkeypatch):
    rows = np.random.default_rng(0).normal(1e6, 2.0, (1000, 3)).astype(np.float32)
    monkeypatch.setattr("lightning_tgnn.files.npy_file._VALUES_PER_PIECE", 100)
    found = Moments.from_rows(torch.from_numpy(rows), torch.arange(0, 1000, 2))
    wide = rows[::2].astype(np.float64)
    np.testing.assert_allclose(found.mean, wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.deviation, wide.std(0), rtol=1e-7)
    np.testing.assert_allclose(found.largest, np.abs(wide).max(0))
    assert Moments.from_plain(json.loads(json.dumps(found.to_plain()))).mean.tolist() == found.mean.tolist()


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        (np.linspace(-2, 2, 50), False),
        (np.tile([0.0, 1.0], 25), False),
        (np.eye(50)[0], False),
        (np.linspace(0, 100, 50), True),
        (np.full(50, 20.0), True),
        (np.linspace(-1e-4, 1e-4, 50), True),
        (np.zeros(50), False),
        (np.where(np.arange(50) % 2, 1e-44, 0), True),  # whose deviation has no inverse in float32
    ],
)
def test_auto_takes_what_needs_it(column, changes):
    rows = torch.tensor(column, dtype=torch.float32).unsqueeze(1)
    done = standardization_of(Moments.from_rows(rows), "auto")
    assert (done is not None) == changes
    if done is not None:
        made = done(rows)
        assert abs(float(made.mean())) < 1e-4
        assert float(made.std(correction=0)) == pytest.approx(1, abs=1e-3) or np.ptp(column) < 1e-30
    assert standardization_of(Moments.from_rows(rows), False) is None
    assert standardization_of(Moments.from_rows(rows), True) is not None


@pytest.mark.parametrize("saved", [False, True])
def test_columns_are_brought_to_the_training_split(saved, tmp_path):
    raw = stream(1000, 500, node_dim=2)
    source = raw.save(tmp_path / "store") if saved else raw
    data = data_module(source)
    made = data.store.edge_features[:]
    assert isinstance(data.store.edge_features, StandardizedRows) == saved
    assert torch.equal(made[:, 1], raw.edge_features[:, 1]), "standard features stay as they are, bit for bit"
    train = made[data.split.train, 0].double()
    assert abs(float(train.mean())) < 1e-5
    assert float(train.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert data.info.node_standardization is None
    batch = next(iter(data.train_dataloader()))
    assert batch.edge_features[:, 0].abs().max() < 10
    untouched = data_module(source, standardize_features=False)
    assert torch.equal(untouched.store.edge_features, raw.edge_features)
    whole = data_module(source, standardize_features=True)
    assert 1 not in whole.info.edge_standardization.scale
    assert whole.info.node_standardization is not None
    plain = data_module(random_store(300, num_nodes=20, edge_dim=2))
    assert plain.info.edge_standardization is None


def test_moments_are_kept_in_the_manifest_of_a_store(tmp_path, monkeypatch):
    stream(1000).save(tmp_path / "store")
    first = data_module(tmp_path / "store").info.edge_standardization
    kept = json.loads((tmp_path / "store" / "manifest.json").read_text())["moments"]
    assert len(kept) == 1
    monkeypatch.setattr(Moments, "from_rows", None)  # not read again
    assert data_module(tmp_path / "store").info.edge_standardization == first
    monkeypatch.undo()
    table = tmp_path / "store" / "edge_features.npy"
    np.save(table, np.load(table) * 2)
    assert data_module(tmp_path / "store").info.edge_standardization != first
    assert data_module(tmp_path / "store", val_ratio=0.3).info.edge_standardization != first


@pytest.mark.parametrize("reopened", [False, True])
def test_the_unit_of_a_feature_changes_nothing(tmp_path, reopened):
    """Euros, cents and a thousand times that: the same batches, checkpoint and answers to rounding."""
    answers, weights = [], []
    for scale in (10, 1000, 10**6):
        store = stream(scale, 3.0 * scale)
        task = fitted(tmp_path / f"{scale}.ckpt", data_module(store))
        predictor = Predictor.from_checkpoint(tmp_path / f"{scale}.ckpt", data_module(store))
        if reopened:
            predictor.save(tmp_path / "live.pt")
            predictor = Predictor.load(tmp_path / "live.pt")
        predictor.observe([1, 2], [3, 4], [2000.0, 2001.0], [[4.0 * scale, 0.5], [2.0 * scale, -0.5]])
        answers.append(predictor.score([1, 2, 3], [4, 5, 6], 2002.0))
        weights.append(task.predictor.out.weight)
    for answer, weight in zip(answers[1:], weights[1:], strict=True):
        np.testing.assert_allclose(answer, answers[0], atol=2e-3)
        torch.testing.assert_close(weight, weights[0], atol=2e-3, rtol=0)


def test_a_checkpoint_keeps_whether_features_are_standardized(tmp_path):
    store = stream(1000)
    fitted(tmp_path / "a.ckpt", data_module(store))
    held = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert held["lightning_tgnn"]["stream"]["edge_standardization"]["scale"][1] == 1
    info = LinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt").info
    assert isinstance(info.edge_standardization, Standardization)
    task = LinkPrediction("tgn", **SMALL)
    with pytest.raises(
        CheckpointError,
        match=r"standardize_features=...\) must be 'columns 0 of edges', as in the checkpoint, got False",
    ):
        trainer(max_epochs=2).fit(
            task, datamodule=data_module(store, standardize_features=False), ckpt_path=tmp_path / "a.ckpt"
        )
    with pytest.raises(CheckpointError, match="got 'columns 0, 1 of edges'"):
        trainer().test(task, data_module(store, standardize_features=True), ckpt_path=tmp_path / "a.ckpt")
    trainer(max_epochs=2).fit(task, datamodule=data_module(store), ckpt_path=tmp_path / "a.ckpt")
    # A checkpoint of before: its model has seen raw features.
    fitted(tmp_path / "raw.ckpt", data_module(store, standardize_features=False))
    held = torch.load(tmp_path / "raw.ckpt", weights_only=True)
    for name in ("settings", "data"):
        held["lightning_tgnn"][name].pop("standardize_features")
    for name in ("edge_standardization", "node_standardization"):
        held["lightning_tgnn"]["stream"].pop(name)
    torch.save(held, tmp_path / "old.ckpt")
    store.save(tmp_path / "store")
    predictor = Predictor.from_checkpoint(tmp_path / "old.ckpt", tmp_path / "store")
    assert predictor._state.info.edge_standardization is None


def test_a_heavy_tail_is_named_with_the_cure():
    rows = np.random.default_rng(0).normal(size=(3000, 1))
    rows[5] = 1e6
    store = EventStore.from_arrays(
        np.arange(3000) % 7, np.arange(3000) % 5 + 7, np.arange(3000.0), rows, edge_feature_names=["price"]
    )
    with pytest.warns(
        UserWarning, match=r"edge features with a heavy tail, .*: 'price' \(46 deviations\); take logarithms"
    ):
        data_module(store).setup()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data_module(random_store(300, edge_dim=2, ties=False)).setup()
        data_module(store, standardize_features=False).setup()


def test_features_of_vertices_and_of_snapshots():
    rng = np.random.default_rng(0)
    features = torch.tensor(rng.normal(100, 50, (60, 2)), dtype=torch.float32)
    ends = torch.tensor(rng.integers(0, 60, (2, 200)))
    masks = {name: torch.arange(60) % 3 == number for number, name in enumerate(("train", "val", "test"))}
    graph = Graph(*ends, features, torch.arange(60) % 4, **masks)
    data = FullGraphDataModule(graph)
    train = data.graph.features[data.graph.train].double()
    torch.testing.assert_close(train.mean(0), torch.zeros(2).double(), atol=1e-5, rtol=0)
    assert data.fixed_settings(training=True)["standardize_features"]
    assert torch.equal(FullGraphDataModule(graph, standardize_features=False).graph.features, features)
    store = random_store(200)
    given = torch.tensor(rng.normal(100, 50, (store.num_nodes, 2)), dtype=torch.float32)
    options = {"num_snapshots": 10, "group_size": 2, "features": given, "vertices": "all", "num_workers": 0}
    snapshots = SnapshotDataModule(store, **options)
    made = snapshots.snapshots[0].features.double()
    torch.testing.assert_close(made.mean(0), torch.zeros(2).double(), atol=1e-5, rtol=0)
    assert torch.equal(SnapshotDataModule(store, **options, standardize_features=False).snapshots[0].features, given)


def test_snapshots_in_a_folder_are_standardized_as_well(tmp_path):
    store = random_store(200)
    given = torch.randn(store.num_nodes, 2) * 50 + 100
    options = {"num_snapshots": 10, "group_size": 2, "features": given, "num_workers": 0}
    for vertices in ("all", "seen"):
        kept = SnapshotDataModule(store, **options, vertices=vertices, folder=tmp_path / vertices)
        kept.prepare_data()
        plain = SnapshotDataModule(store, **options, vertices=vertices)
        for number in range(10):
            assert torch.equal(kept.snapshots[number].features, plain.snapshots[number].features)
            assert plain.snapshots[number].features.abs().max() < 10


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_other_values_are_refused(given):
    with pytest.raises(InvalidArgumentError, match="standardize_features must be 'auto', True or False"):
        TemporalDataModule(standardize_features=given)


ROWS = "src,dst,time,channel,w\n1,2,1,web,5\n2,3,2, shop,6\n3,1,3,web,7\n1,3,4,,8\n"
COLUMNS = {"src": "src", "dst": "dst", "time": "time", "edge_features": ["w"], "categories": ["channel"]}


def test_categories_are_features_of_0_and_1(tmp_path):
    (tmp_path / "e.csv").write_text(ROWS)
    frame = pd.read_csv(tmp_path / "e.csv", keep_default_na=False)
    for store in (
        read_source(tmp_path / "e.csv", columns=COLUMNS),
        read_source(frame, columns=COLUMNS),
        convert_events(tmp_path / "e.csv", tmp_path / "store", columns=COLUMNS),
    ):
        assert store.edge_feature_names == ("w", "channel=", "channel=shop", "channel=web")
        assert store.edge_features.tolist() == [[5, 0, 0, 1], [6, 0, 1, 0], [7, 0, 0, 1], [8, 1, 0, 0]]
    many = "src,dst,time,channel,w\n" + "".join(f"1,2,{i},c{i},5\n" for i in range(101))
    (tmp_path / "many.csv").write_text(many)
    for source in (tmp_path / "many.csv", pd.read_csv(tmp_path / "many.csv")):
        with pytest.raises(DataError, match="categories 'channel' must be at most 100, got '101, such as c0"):
            read_source(source, columns=COLUMNS)
    with pytest.raises(InvalidArgumentError, match=r"columns\['categories'\] must be a list"):
        read_source(tmp_path / "e.csv", columns={**COLUMNS, "categories": "channel"})


def test_events_to_observe_have_categories_as_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i % 7},{7 + i % 5},{i},{('web', 'shop')[i % 3 % 2]},{i % 4}\n" for i in range(200))
    (tmp_path / "e.csv").write_text(f"src,dst,time,channel,w\n{rows}")
    fitted("a.ckpt", data_module(tmp_path / "e.csv", columns=COLUMNS))
    later = pd.DataFrame({"src": [1, 2], "dst": [8, 9], "time": [300, 301], "channel": ["web", "post"], "w": [1, 2]})
    later.to_csv("later.csv", index=False)
    marked = later.drop(columns="channel").assign(**{"channel=web": [1.0, 0.0], "channel=shop": [0.0, 0.0]})
    scores = []
    for events in (later, marked):
        predictor = Predictor.from_checkpoint("a.ckpt")
        warned = pytest.warns(UserWarning, match="channel: training had no 'post', only 'shop', 'web'; such a value is")
        with warned if events is later else nullcontext():
            predictor.observe(
                events["src"].to_numpy(), events["dst"].to_numpy(), events["time"], events[events.columns[3:]]
            )
        scores.append(predictor.score([1], [9], 302))
    assert scores[0] == scores[1]
    pd.DataFrame({"src": [1], "dst": [9], "time": [302]}).to_csv("q.csv", index=False)
    main(["predict", "--ckpt_path=a.ckpt", "--events=later.csv", "--score=q.csv", "--output=out.csv"])
    assert pd.read_csv("out.csv")["probability"][0] == pytest.approx(float(scores[0][0]), abs=1e-6)


@pytest.mark.parametrize("codes", [("01", "02"), ("true", "false"), ("1.5", ""), ("7", "8")])
def test_words_that_look_like_numbers_are_the_same_in_training_and_for_answers(codes, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{7 + i % 5},{i},{codes[i % 3 % 2]}" for i in range(200)]
    Path("e.csv").write_text("\n".join(["src,dst,time,code", *rows]) + "\n")
    columns = {"src": "src", "dst": "dst", "time": "time", "categories": ["code"]}
    fitted("a.ckpt", data_module(tmp_path / "e.csv", columns=columns))
    given, features = [], Predictor._features
    monkeypatch.setattr(Predictor, "_features", lambda *them: given.append(them[1]) or features(*them))
    Path("later.csv").write_text(f"src,dst,time,code\n1,8,300,{codes[0]}\n2,9,301,{codes[1]}\n")
    Path("q.csv").write_text("src,dst,time\n1,9,302\n")
    main(["predict", "--ckpt_path=a.ckpt", "--events=later.csv", "--score=q.csv", "--output=out.csv"])
    assert "nothing reads" not in capsys.readouterr().err
    first, second = sorted(codes)
    marks = by_name(given[0], (f"code={first}", f"code={second}"))
    assert marks.to_numpy().tolist() == [[float(code == first), float(code == second)] for code in codes]
