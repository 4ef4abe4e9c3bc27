"""Values of a wrong type or size are refused where they are given, by a line that names the argument."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from lightning_tgnn import (
    BLADStrategy,
    CDFGNNStrategy,
    DepCacheStrategy,
    DistTGLStrategy,
    EventStore,
    FullGraphDataModule,
    LinkPrediction,
    NodeClassification,
    PipeTGLStrategy,
    Predictor,
    SnapshotDataModule,
    SnapshotLinkPrediction,
    SnapshotNodeClassification,
    SnapshotNodeRegression,
    SvenStrategy,
    TemporalDataModule,
    VertexPartitionStrategy,
)
from lightning_tgnn.checks import CheckpointError, LightningTGNNError, check_global_batch_size
from lightning_tgnn.data import Graph, generate_graph, read_events
from lightning_tgnn.data.sources.open_events import place_of
from lightning_tgnn.files import memory
from tests.data.example_graphs import parts
from tests.data.example_streams import random_store

STORE = random_store(30, 6)
GRAPH = Graph(**parts())
ONE = {"src": [1], "dst": [2], "time": [0]}


@pytest.fixture(autouse=True)
def memory_of_64_gb(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 64 * 10**9)


def refused(make, message):
    with pytest.raises(LightningTGNNError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


FLAGS = [
    (NodeClassification, "layer_norm"),
    (LinkPrediction, "detect_nan"),
    (SnapshotLinkPrediction, "reuse"),
    (SnapshotLinkPrediction, "skip_unread"),
    (FullGraphDataModule, "undirected"),
    (FullGraphDataModule, "self_loops"),
    (SnapshotDataModule, "undirected"),
    (SnapshotDataModule, "self_loops"),
    (SnapshotDataModule, "shuffle"),
    (BLADStrategy, "reorder"),
    (CDFGNNStrategy, "relay"),
    (CDFGNNStrategy, "halo"),
    (SvenStrategy, "omit_own_half"),
    (SvenStrategy, "features_by_event"),
    (SvenStrategy, "fetch_ahead"),
    (DepCacheStrategy, "make_mails"),
    (DistTGLStrategy, "scale_epochs"),
    (DistTGLStrategy, "fetch_ahead"),
    (PipeTGLStrategy, "targets_first"),
]


@pytest.mark.parametrize(("kind", "name"), FLAGS)
@pytest.mark.parametrize("value", ["false", 0, None])
def test_a_flag_is_true_or_false(kind, name, value):
    refused(lambda: kind(**{name: value}), f"{name} must be True or False, got {value!r}; ")


@pytest.mark.parametrize("kind", [TemporalDataModule, SnapshotDataModule])
def test_a_flag_that_may_be_left_open(kind):
    refused(lambda: kind(bipartite="yes"), "bipartite must be True, False or None, got 'yes'; None is usual")


@pytest.mark.parametrize("kind", [TemporalDataModule, FullGraphDataModule, SnapshotDataModule])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("root", 3, "root must be a path, got 3; give a string, or a pathlib.Path"),
        ("synthetic", "x", "synthetic must be settings by name, got 'x'; write synthetic={'seed': 1}"),
        ("synthetic", [1], "synthetic must be settings by name, got [1]"),
        ("seed", 2**63, "seed must be an integer below 2^63, got 9223372036854775808; give a smaller one"),
        ("seed", -1, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_settings_of_every_datamodule(kind, name, value, message):
    refused(lambda: kind(**{name: value}), message)


@pytest.mark.parametrize("kind", [SvenStrategy, CDFGNNStrategy, VertexPartitionStrategy])
@pytest.mark.parametrize("value", [None, [0, 1], 3])
def test_a_partition_of_a_wrong_type(kind, value):
    refused(lambda: kind(partition=value), f"partition must be a name, a path or a tensor, got {value!r}; give a list")


IN_TURN = "edge_counts must be a number for each snapshot, got"
LEFT_OUT = "edge_counts must be given for a static graph, got None; say how many"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CDFGNNStrategy(bits=8.0), "bits must be one of 2, 4, 8, 16, or None, got 8.0"),
        (lambda: BLADStrategy(processes_per_device=2.0), "processes_per_device must be 1, 2 or 'auto', got 2.0"),
        (lambda: BLADStrategy(processes_per_device=True), "processes_per_device must be 1, 2 or 'auto', got True"),
        (lambda: SnapshotLinkPrediction(cell="gru"), "cell must be an import path, got 'gru'; give the import path"),
        (lambda: TemporalDataModule(presample_dir=3), "presample_dir must be a path, got 3"),
        (lambda: Predictor.from_checkpoint(3), "path must be a path, got 3"),
        (lambda: Predictor.load(None), "path must be a path, got None"),
        (
            lambda: TemporalDataModule(STORE, bipartite=True).store,
            "bipartite must be left out for an EventStore, got True",
        ),
        (
            lambda: TemporalDataModule(STORE, columns={"src": 1}).store,
            "columns must be left out for an EventStore, got {'src': 1}",
        ),
        (
            lambda: TemporalDataModule(synthetic={"num_events": 10**12}).store,
            "the synthetic stream must be small enough for memory, got '1,000,000,000,000 events of 1,500 nodes",
        ),
        (
            lambda: TemporalDataModule(synthetic={"num_events": 10**7, "edge_feature_dim": 10**6}).store,
            "with 10,000,000,000,000 features: 100,000.9 GB",
        ),
        (
            lambda: FullGraphDataModule(synthetic={"num_edges": 10**13}).graph,
            "the synthetic graph must be small enough for memory, got '1,000 vertices with 16 features each, 10,000,",
        ),
        (
            lambda: TemporalDataModule(random_store(30, 6), held_out_nodes=0.99).split,
            "held_out_nodes must be a share that leaves events to train on, got 0.99; 0.1 is usual",
        ),
        (lambda: SnapshotDataModule(GRAPH, edge_counts=5).sequence, f"{IN_TURN} 5; say"),
        (lambda: SnapshotDataModule(GRAPH, edge_counts=[]).sequence, f"{IN_TURN} []; say"),
        (lambda: SnapshotDataModule(GRAPH, edge_counts=torch.tensor(5)).sequence, f"{IN_TURN} tensor(5); say"),
        (lambda: SnapshotDataModule(synthetic={"seed": 2**70}).sequence, "seed must be an integer below 2^63, got"),
        (
            lambda: TemporalDataModule(root="~nobody-at-all/a"),
            "root must be of a user with a home, got '~nobody-at-all",
        ),
        (lambda: SnapshotDataModule(GRAPH), LEFT_OUT),
        (lambda: SnapshotDataModule("cora"), LEFT_OUT),
        (lambda: SnapshotDataModule("my.npz"), LEFT_OUT),
    ],
)
def test_a_single_value(make, message):
    refused(make, message)


def test_a_store_that_takes_the_place_of_a_file_says_what_it_does_not_read(tmp_path):
    STORE.save(tmp_path / "store")
    columns = {"src": 0, "dst": 1, "time": 2}
    with pytest.warns(UserWarning, match="store: a store says itself what it holds; nothing reads columns, bipartite"):
        store = TemporalDataModule(tmp_path / "store", bipartite=False, columns=columns).store
    assert store.fingerprint == STORE.fingerprint


def test_a_stream_is_no_graph(tmp_path):
    (tmp_path / "events.csv").write_text("src,dst,time\n1,2,3\n")
    STORE.save(tmp_path / "store")
    assert len(SnapshotDataModule(tmp_path / "store", num_snapshots=3).sequence) == 3
    cure = "events are read by TemporalDataModule, or by SnapshotDataModule without edge_counts"
    for name in ("events.csv", "store"):
        refused(lambda name=name: FullGraphDataModule(tmp_path / name).graph, f"{tmp_path / name}'; {cure}")
        refused(lambda name=name: SnapshotDataModule(tmp_path / name, edge_counts=[1, 2]).sequence, cure)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"src": None}, "src must be a column of ids, got 'NoneType'; give a list or an array, an iterator as list"),
        ({"src": iter([1])}, "src must be a column of ids, got 'list_iterator'"),
        ({"src": np.array(1)}, "src must be a column of ids, got 'ndarray'"),
        ({"time": np.array([float("nan")], object)}, "time[0] must be finite, got 'nan'"),
        ({"time": ["nan"]}, "time[0] must be finite, got 'nan'"),
        ({"src": ["a\0"], "dst": ["a"]}, "src[0] must be a node id without NUL, got 'a\\x00'; drop or repair"),
        ({"src": np.array(["a\0"], object), "dst": ["a"]}, "src[0] must be a node id without NUL"),
        (
            {"edge_features": [[1e39]]},
            "edge_features[0] must be at most 3.403e+38 in size, as float32 holds it, got",
        ),
        ({"src": [0, 1], "dst": [1, 0], "time": [0, 1], "node_ids": ["a", "a"]}, "node_ids must be distinct, got 'a'"),
        (
            {"src": [0, 1], "dst": [2, 2], "time": [0, 1], "node_ids": [7, 7, 8]},
            "node_ids must be distinct, got 7; give",
        ),
    ],
)
def test_columns_of_a_store(columns, message):
    refused(lambda: EventStore.from_arrays(**(ONE | columns)), message)


def test_a_source_and_a_destination_may_share_an_id():
    store = EventStore.from_arrays([0, 1], [2, 3], [0, 1], node_ids=["a", "b", "a", "b"])
    assert store.node_ids.tolist() == ["a", "b", "a", "b"]
    part = EventStore.from_arrays([0], [2], [0], node_ids=["a", "b", "a", "b"])
    assert (part.num_nodes, part.first_destination) == (4, 2)


def test_numbers_that_a_column_cannot_hold(tmp_path):
    (tmp_path / "a.csv").write_text("src,dst,time,w\n1,2,1,1e39\n1,2,2,3\n")
    columns = {"src": "src", "dst": "dst", "time": "time", "edge_features": ["w"]}
    refused(lambda: read_events(tmp_path / "a.csv", columns=columns), "must be at most 3.403e+38 in size, got '1e39'")
    refused(
        lambda: TemporalDataModule(pd.read_csv(tmp_path / "a.csv"), columns=columns).store,
        "(column 'w') must be at most 3.403e+38",
    )
    frame = pl.DataFrame({"src": pl.Series([1, 2], dtype=pl.Int128), "dst": [1, 2], "time": [1, 2]})
    refused(lambda: TemporalDataModule(frame).store, "must be numbers of up to 64 bits, got 'Int128'; cast it")


@pytest.mark.parametrize("text", ["hello world", "a,b,c\n1,2,3"])
def test_a_text_is_no_checkpoint(tmp_path, text):
    (tmp_path / "a.ckpt").write_text(text)
    for read in (LinkPrediction.load_from_checkpoint, Predictor.load, Predictor.from_checkpoint):
        refused(lambda read=read: read(tmp_path / "a.ckpt"), "got 'something else than a file of torch.save'; give a")


def test_what_is_wrong_with_an_archive_is_not_hidden(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "a.ckpt")
    refused(lambda: LinkPrediction.load_from_checkpoint(tmp_path / "a.ckpt", map_location=3.5), "'float' object is not")


def test_places_of_sources(tmp_path):
    assert place_of("reddit", tmp_path) == tmp_path / "streams" / "reddit"
    assert place_of("TGBL-Wiki", tmp_path) == tmp_path / "tgb" / "tgbl_wiki"
    assert place_of("./reddit", tmp_path) == Path("reddit")
    assert [place_of(source, tmp_path) for source in ("synthetic", STORE)] == [None, None]


def snapshots(labels):
    graph, counts = generate_graph(20, 60, 3, 5, seed=1), [40, 50, 60, 50, 40, 30]
    return SnapshotDataModule(graph, edge_counts=counts, target="vertices", labels=labels, group_size=2)


def test_labels_of_vertices_that_are_no_classes():
    message = "labels must be classes numbered from 0, below 1,000, got 19000000000; number the classes, for example"
    refused(lambda: snapshots(torch.arange(20) * 10**9).info, message)


def test_labels_of_a_single_class_are_classes():
    info = snapshots(torch.zeros(20, dtype=torch.int64)).info
    assert info.num_classes == 2
    task = SnapshotNodeClassification("tgcn", hidden_dim=4)
    refused(lambda: task.build(info), "the labels for SnapshotNodeClassification must be of at least two classes")
    task = SnapshotNodeRegression("tgcn", hidden_dim=4)
    refused(lambda: task.build(info), "the labels for SnapshotNodeRegression must be real numbers, got '2 classes'")
    assert snapshots(torch.zeros(20)).info.num_classes == 1


def test_no_batch_size_is_asked_for_that_these_ranks_cannot_have():
    with pytest.raises(CheckpointError, match="resume on a number of ranks that divides 100, or"):
        check_global_batch_size(100, 40, 3)
