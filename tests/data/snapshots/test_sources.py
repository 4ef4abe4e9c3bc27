"""Snapshots from lists of graphs, signals, static graphs, the generator and recorded streams."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_tgnn import SnapshotDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data import Graph, SnapshotSequence
from tests.data.example_streams import random_store
from tests.data.snapshots.dense import dense_matrix, normalized

DATA = Path(os.environ.get("LIGHTNING_TGNN_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
QUIET = {
    "standardize_features": False,
    "num_workers": 0,
    "prefetch_batches": 0,
    "group_size": 2,
    "val_ratio": 0.25,
    "test_ratio": 0.25,
}
EDGES = [[(0, 1, 0.5), (1, 2, 2.0)], [(2, 3, 1.0)], [], [(3, 3, 1.0), (0, 3, 4.0), (0, 3, 1.0)]]
FEATURES = np.arange(4 * 4 * 2).reshape(4, 4, 2).astype(np.float32)
LABELS = np.array([[0, 1, 2, -1]] * 3 + [[1, 1, 1, 1]])


def ends(edges):
    return np.array([edge[:2] for edge in edges], np.int64).reshape(-1, 2).T


def weights(edges):
    return np.array([edge[2] for edge in edges], np.float32)


def pyg():
    data = pytest.importorskip("torch_geometric.data")
    return [
        data.Data(
            x=torch.from_numpy(FEATURES[number]),
            edge_index=torch.from_numpy(ends(edges)),
            edge_weight=torch.from_numpy(weights(edges)),
            y=torch.from_numpy(LABELS[number]),
            time=float(number),
        )
        for number, edges in enumerate(EDGES)
    ]


def dgl():
    dgl = pytest.importorskip("dgl", exc_type=ImportError)
    graphs = []
    for number, edges in enumerate(EDGES):
        graph = dgl.graph(tuple(torch.from_numpy(ends(edges))), num_nodes=4)
        graph.ndata["feat"], graph.ndata["label"] = (torch.from_numpy(table[number]) for table in (FEATURES, LABELS))
        graph.edata["weight"] = torch.from_numpy(weights(edges))
        graphs.append(graph)
    return graphs


def dynamic_signal(**changed):
    """Return what a ``DynamicGraphTemporalSignal`` of PyTorch Geometric Temporal holds."""
    held = {
        "edge_indices": [ends(edges) for edges in EDGES],
        "edge_weights": [weights(edges) for edges in EDGES],
        "features": list(FEATURES),
        "targets": list(LABELS),
    }
    return SimpleNamespace(**(held | changed))


def static_signal(**changed):
    """Return what a ``StaticGraphTemporalSignal`` of PyTorch Geometric Temporal holds."""
    held = {
        "edge_index": ends(EDGES[3]),
        "edge_weight": weights(EDGES[3]),
        "features": list(FEATURES),
        "targets": [row.astype(np.float64) / 2 for row in LABELS],
    }
    return SimpleNamespace(**(held | changed))


@pytest.mark.parametrize("make", [pyg, dgl, dynamic_signal])
def test_every_graph_is_a_snapshot(make):
    data = SnapshotDataModule(make(), vertices="all", target="vertices", **QUIET)
    assert (data.info.num_snapshots, data.info.num_nodes, data.info.feature_dim, data.info.num_classes) == (4, 4, 2, 3)
    for number, snapshot in enumerate(data.snapshots):
        assert torch.equal(snapshot.features, torch.from_numpy(FEATURES[number]))
        assert torch.allclose(dense_matrix(snapshot.layers[0][0]), normalized(EDGES[number], 4), atol=1e-6)
    for batch in data.train_dataloader():
        (group,) = batch.groups
        there = LABELS[group.number] >= 0
        assert group.targets.rows.flatten().tolist() == np.flatnonzero(there).tolist()
        assert group.targets.labels.tolist() == LABELS[group.number][there].tolist()


def test_all_forms_of_the_same_snapshots_are_the_same():
    found = {SnapshotDataModule(make(), **QUIET).info.fingerprint for make in (pyg, dynamic_signal)}
    assert len(found) == 1


def renamed(old, new, change=lambda values: values):
    """Return the snapshots of PyG with a column under another name."""
    graphs = pyg()
    for graph in graphs:
        graph[new] = change(graph[old])
        del graph[old]
    return graphs


def test_weights_of_pyg_may_be_attributes_of_one_column(recwarn):
    known = SnapshotDataModule(pyg(), **QUIET).info.fingerprint
    for change in (lambda values: values, lambda values: values.unsqueeze(1)):
        assert SnapshotDataModule(renamed("edge_weight", "edge_attr", change), **QUIET).info.fingerprint == known
    assert not [one for one in recwarn if "edge_attr" in str(one.message)]
    for change in (lambda values: torch.stack([values, values], 1), lambda values: values.long()):
        others = renamed("edge_weight", "edge_attr", change)
        with pytest.warns(UserWarning, match="nothing reads the edge_attr of its snapshots; give one column of"):
            assert SnapshotDataModule(others, **QUIET).sequence.weights is None


def test_a_label_of_pyg_is_of_edges_or_of_vertices_by_its_length():
    known = SnapshotDataModule(pyg(), target="vertices", **QUIET).sequence
    found = SnapshotDataModule(renamed("y", "label"), target="vertices", **QUIET).sequence
    assert found.fingerprint == known.fingerprint
    per_edge = pyg()
    for graph in per_edge:
        graph.label = torch.arange(graph.num_edges) % 2
    found = SnapshotDataModule(per_edge, target="edges", **QUIET).sequence
    assert torch.equal(found.edge_labels, torch.cat([graph.label for graph in per_edge]))
    assert torch.equal(found.vertex_labels, known.vertex_labels)
    # Beside `y`, and beside graphs that tell, it does not matter that one has as many edges as vertices.
    per_edge[1].edge_index, per_edge[1].edge_weight = torch.zeros(2, 4, dtype=torch.int64), torch.ones(4)
    per_edge[1].label = torch.zeros(4, dtype=torch.int64)
    for has_y in (True, False):
        found = SnapshotDataModule(per_edge, target="edges", **QUIET).sequence
        assert torch.equal(found.edge_labels, torch.cat([graph.label for graph in per_edge]))
        assert (found.vertex_labels is not None) == has_y
        for graph in per_edge:
            graph.y = None
    # The name says it.
    for graph in per_edge:
        graph.edge_label, graph.label = graph.label, torch.arange(4)
    found = SnapshotDataModule(per_edge, target="edges", **QUIET).sequence
    assert torch.equal(found.edge_labels, torch.cat([graph.edge_label for graph in per_edge]))
    assert torch.equal(found.vertex_labels, torch.arange(4).repeat(4, 1))


def test_edges_of_a_static_signal_are_those_of_every_snapshot():
    data = SnapshotDataModule(static_signal(), vertices="all", target="vertices", **QUIET)
    assert data.info.num_classes == 1
    assert len(data.sequence.src) == 3
    for number, snapshot in enumerate(data.snapshots):
        assert torch.equal(snapshot.features, torch.from_numpy(FEATURES[number]))
        assert snapshot.layers is not None
        assert snapshot.layers[0] is data.snapshots[0].layers[0]
        assert torch.allclose(dense_matrix(snapshot.layers[0][0]), normalized(EDGES[3], 4), atol=1e-6)
    assert data.targets.for_group(1, 0).labels.tolist() == (LABELS[1] / 2).tolist()


def test_features_of_a_signal_may_be_of_all_snapshots():
    signal = dynamic_signal(feature=FEATURES[0])  # a ``DynamicGraphStaticSignal``
    del signal.features
    signal.edge_indices[2] = None
    signal.edge_weights[2] = np.zeros(0)
    data = SnapshotDataModule(signal, vertices="all", **QUIET)
    assert torch.equal(data.snapshots[3].features, torch.from_numpy(FEATURES[0]))
    assert data.info == replace(data.info, num_nodes=4, num_snapshots=4, feature_dim=2)
    assert torch.equal(dense_matrix(data.snapshots[2].layers[0][0]), torch.eye(4))


def missing_features():
    graphs = pyg()
    graphs[2].x, graphs[2].num_nodes = None, 4
    return graphs


def narrow_features():
    graphs = pyg()
    graphs[1].x = graphs[1].x[:, :1]
    return graphs


def nan_features():
    graphs = pyg()
    graphs[1].x = graphs[1].x / 0
    return graphs


def few_rows():
    graphs = pyg()
    graphs[1].x = graphs[1].x[:3]
    return graphs


def short_weights():
    graphs = pyg()
    graphs[0].edge_weight = torch.ones(5)
    return graphs


def unsorted():
    graphs = pyg()
    graphs[3].time = 0.5
    return graphs


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (
            list,
            InvalidArgumentError,
            "source must be a list of DGLGraphs or of PyG Data, got 'an empty list'; give a g",
        ),
        (lambda: [1, 2], InvalidArgumentError, r"source must be a list of DGLGraphs or of PyG Data, got \['int'\]"),
        (missing_features, DataError, "features must be given for all snapshots, got 'none for snapshot 2'; give it"),
        (narrow_features, DataError, r"features of snapshot 1 must be a matrix \[4, 2\], got \[4, 1\]; give a row"),
        (nan_features, DataError, "features of snapshot 1 must be finite, got 'NaN or infinity at vertex 0'; clean"),
        (few_rows, DataError, r"features of snapshot 1 must be a matrix \[4, 2\], got \[3, 2\]; give a row"),
        (short_weights, DataError, r"weights of snapshot 0 must be \[2\], got \[5\]; give a value for every edge"),
        (unsorted, DataError, "times must be ascending, got '0.5 for snapshot 3 after 2.0'; sort the snapshots"),
        (lambda: dynamic_signal(features=list(FEATURES[:3])), DataError, "source must be a signal of at least one s"),
        (lambda: dynamic_signal(edge_indices={}), DataError, "source must be a homogeneous signal, got"),
        (lambda: dynamic_signal(features=None), DataError, "source must be a signal with features, got None"),
        (
            lambda: static_signal(edge_index=np.zeros(3)),
            DataError,
            r"edges of a snapshot must be of shape .*got \[3\]",
        ),
        (lambda: static_signal(targets=[row[:2] for row in LABELS]), DataError, "labels of vertices of snapshot 0 mu"),
    ],
)
def test_graphs_that_must_not_be_trained_on_are_refused(make, error, told):
    with pytest.raises(error, match=told):
        SnapshotDataModule(make(), **QUIET).setup()


def test_what_is_in_snapshots_is_not_cut():
    with pytest.raises(
        InvalidArgumentError, match="num_snapshots must be left out where the source is in snapshots al"
    ):
        SnapshotDataModule(dynamic_signal(), num_snapshots=4)
    with pytest.raises(
        InvalidArgumentError, match="weights must be a tensor, or left out, where no column of an event"
    ):
        SnapshotDataModule(dynamic_signal(), weights="rating").setup()


def test_deletion_follows_the_trend_and_turns_over_edges():
    rng = np.random.default_rng(0)
    src, dst = torch.from_numpy(rng.integers(0, 30, (2, 200)))
    counts = [200, 50, 0, 120, 120]
    made = SnapshotSequence.by_deletion(src, dst, counts, num_nodes=30, turnover=0.25, seed=3)
    assert (made.ends - made.begins).tolist() == counts
    everything = sorted(zip(src.tolist(), dst.tolist(), strict=True))
    edges = [made.edges(number) for number in range(5)]
    held = [sorted(zip(one.src.tolist(), one.dst.tolist(), strict=True)) for one in edges]
    assert held[0] == everything
    for some in held:
        rest = list(everything)
        for edge in some:
            rest.remove(edge)
    assert (made.begins[4] - made.begins[3]) == 30
    again = SnapshotSequence.by_deletion(src, dst, counts, num_nodes=30, turnover=0.25, seed=4)
    assert made.fingerprint != again.fingerprint
    with pytest.raises(InvalidArgumentError, match=r"edge_counts\[1\] must be at most 200, got 201; the graph has 200"):
        SnapshotSequence.by_deletion(src, dst, [1, 201], num_nodes=30)
    for turnover in (2, "a", None, True, float("nan")):
        with pytest.raises(InvalidArgumentError, match=rf"turnover must be a number in \[0, 1\], got '?{turnover}"):
            SnapshotSequence.by_deletion(src, dst, [1], num_nodes=30, turnover=turnover)


def test_a_static_graph_is_a_source_with_a_trend():
    rng = np.random.default_rng(0)
    masks = torch.arange(30) % 3
    graph = Graph(
        *torch.from_numpy(rng.integers(0, 30, (2, 200))),
        torch.randn(30, 4),
        torch.arange(30) % 5,
        *(masks == split for split in range(3)),
    )
    data = SnapshotDataModule(graph, edge_counts=[100, 50, 20, 80, 60, 50], target="vertices", **QUIET)
    assert (data.info.num_snapshots, data.info.num_classes, data.info.feature_dim) == (6, 5, 4)
    assert (data.sequence.ends - data.sequence.begins).tolist() == [100, 50, 20, 80, 60, 50]
    again = SnapshotDataModule(graph, edge_counts=np.array([100, 50, 20, 80, 60, 50]), target="vertices", **QUIET)
    assert again.sequence.fingerprint == data.sequence.fingerprint
    with pytest.raises(InvalidArgumentError, match=r"turnover must be left out without edge_counts, got 0\.3; give ed"):
        SnapshotDataModule(turnover=0.3)


def test_edges_that_would_count_twice_are_told(caplog):
    one = torch.tensor([0, 1, 2, 3, 3]), torch.tensor([1, 2, 0, 1, 3])
    both = torch.cat(one), torch.cat(one[::-1])
    for (src, dst), undirected, told in ((one, True, False), (both, True, True), (both, False, False)):
        sequence = SnapshotSequence(torch.zeros(9, dtype=torch.int64), torch.full((9,), len(src)), src, dst, 4)
        with caplog.at_level("INFO", "lightning.pytorch"):
            SnapshotDataModule(sequence, group_size=1, undirected=undirected, features="degree").setup()
        assert ("every edge is there in both directions and undirected" in caplog.text) is told
        caplog.clear()


def test_the_load_of_generated_snapshots_varies_as_much_as_asked_for():
    data = SnapshotDataModule("synthetic_snapshots", group_size=4)
    edges = data.sequence.ends - data.sequence.begins
    assert (len(edges), int(edges.max())) == (40, 10_000)
    assert float(edges.max() / edges.min()) == pytest.approx(7, rel=1e-3)
    assert (data.info.num_classes, data.info.feature_dim) == (0, 16)
    small = {"num_nodes": 60, "num_edges": 300, "num_snapshots": 8, "load_ratio": 2.0}
    made = [SnapshotDataModule("synthetic_snapshots", synthetic=small | more) for more in ({}, {}, {"seed": 1})]
    prints = [one.info.fingerprint for one in made]
    assert prints[0] == prints[1] != prints[2]
    with pytest.raises(
        InvalidArgumentError, match=r"load_ratio must be at least 1, got 0.5; 1 keeps the number of edg"
    ):
        SnapshotDataModule("synthetic_snapshots", synthetic={"load_ratio": 0.5}).setup()


def test_features_may_be_files(tmp_path):
    table = np.random.default_rng(0).normal(size=(10, 15, 3)).astype(np.float32)
    paths = []
    for number, matrix in enumerate(table):
        paths.append(str(tmp_path / f"{number}.npy"))
        np.save(paths[-1], matrix)
    np.save(tmp_path / "all.npy", table)
    options = {"num_snapshots": 10, "vertices": "all", **QUIET}
    for features in (paths, str(tmp_path / "all.npy"), table, torch.from_numpy(table), list(table)):
        data = SnapshotDataModule(random_store(), features=features, **options)
        assert all(np.array_equal(one.features, matrix) for one, matrix in zip(data.snapshots, table, strict=True))
    with pytest.raises(DataError, match=r"none\.npy must be a complete \.npy file, got 'no such file'"):
        SnapshotDataModule(random_store(), features=str(tmp_path / "none.npy"), **options).setup()


@pytest.mark.parametrize(
    ("file", "options", "nodes"),
    [
        (
            "soc-sign-bitcoinotc.csv.gz",
            {"columns": {"src": 0, "dst": 1, "time": 3, "edge_features": [2]}, "weights": 0, "labels": "sign"}
            | {"target": "edges", "num_snapshots": 50, "format": "csv"},
            5881,
        ),
        ("CollegeMsg.txt.gz", {"window": 7 * 86400.0, "lifetime": 14 * 86400.0}, 1899),
    ],
)
@pytest.mark.skipif(not DATA.is_dir(), reason="no real data: set LIGHTNING_TGNN_DATA to its folder")
def test_recorded_streams_make_snapshots(file, options, nodes):
    data = SnapshotDataModule(DATA / file, **QUIET, **options)
    assert data.info.num_nodes == nodes
    assert data.info.num_classes == (2 if "target" in options else 0)
    edges = sum(len(data.sequence.edges(number).src) for number in range(len(data.snapshots)))
    assert edges == (35_592 if "target" in options else edges)
    vertices, _ = data.train_dataloader().sizes
    assert vertices[-1] == nodes, "all have been seen"
    group = next(iter(data.train_dataloader())).groups[0]
    last = group.snapshots[-1]
    some = torch.randperm(len(last.vertices), generator=torch.Generator().manual_seed(0))[:20]
    read = data.sequence.edges(last.number)
    matrix = last.layers[0][0]
    for place in some.tolist():
        own = (read.src == last.vertices[place]) | (read.dst == last.vertices[place])
        others = torch.cat([read.src[own], read.dst[own]]).unique()
        columns = matrix.columns[matrix.starts[place] : matrix.starts[place + 1]]
        assert set(last.vertices[columns].tolist()) == {*others.tolist(), int(last.vertices[place])}
