"""Snapshots with all their vertices, held against filters and dense matrices worked out edge by edge."""

import numpy as np
import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn import EventStore, SnapshotDataModule
from lightning_tgnn.data import SnapshotSequence
from lightning_tgnn.data.snapshots.adjacency import Adjacency
from lightning_tgnn.data.snapshots.sequence import Edges
from tests.data.example_streams import random_store
from tests.data.snapshots.dense import dense_matrix, normalized

QUIET = {"num_workers": 0, "prefetch_batches": 0}
edge_lists = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from([1.0, 2.0, -3.0, 0.5])), max_size=20
)


def data_of(store, **options):
    return SnapshotDataModule(store, **QUIET, **{"group_size": 3, "val_ratio": 0.2, "test_ratio": 0.2, **options})


def columns(edges):
    src, dst, weights = ([edge[place] for edge in edges] for place in range(3))
    return Edges(torch.tensor(src).long(), torch.tensor(dst).long(), torch.tensor(weights).float(), None, None)


@seed(3)
@settings(max_examples=60)
@given(edge_lists, st.booleans(), st.booleans(), st.sampled_from(["symmetric", "row", "none"]))
def test_matrices_are_those_written_out(edges, undirected, self_loops, normalization):
    options = {"undirected": undirected, "self_loops": self_loops, "normalization": normalization}
    (matrix,) = Adjacency(**options).matrices(columns(edges), 6)
    expected = normalized(edges, 6, **options)
    assert torch.allclose(dense_matrix(matrix), expected, atol=1e-6)
    pairs = matrix.rows * 6 + matrix.columns
    assert len(pairs.unique()) == len(pairs), "parallel edges are one"


@seed(4)
@settings(max_examples=20)
@given(edge_lists, st.booleans())
def test_every_relation_has_its_matrix_and_loops_one_more(edges, self_loops):
    relations = torch.arange(len(edges)) % 3
    adjacency = Adjacency(undirected=False, self_loops=self_loops, normalization="row", num_relations=3)
    matrices = adjacency.matrices(columns(edges)._replace(relations=relations), 6)
    assert len(matrices) == adjacency.num_matrices == 3 + self_loops
    for relation in range(3):
        own = [edge for edge, kind in zip(edges, relations.tolist(), strict=True) if kind == relation]
        expected = normalized(own, 6, undirected=False, self_loops=False, normalization="row")
        assert torch.allclose(dense_matrix(matrices[relation]), expected, atol=1e-6)
    if self_loops:
        assert torch.equal(dense_matrix(matrices[3]), torch.eye(6))


@pytest.mark.parametrize("present", ["seen", "active", "all"])
@pytest.mark.parametrize("options", [{"num_snapshots": 9}, {"events_per_snapshot": 20, "overlap": 0.5}])
def test_snapshots_have_the_vertices_and_edges_of_their_time(present, options):
    store = random_store(120, num_nodes=30, seed=5, node_dim=4)
    data = data_of(store, vertices=present, **options)
    src, dst = store.src.tolist(), store.dst.tolist()
    begins, ends = data.sequence.begins.tolist(), data.sequence.ends.tolist()
    known = set()
    for number, snapshot in enumerate(data.snapshots):
        events = range(begins[number], ends[number])
        active = {node for event in events for node in (src[event], dst[event])}
        known |= active
        expected = {"seen": known, "active": active, "all": set(range(30))}[present]
        assert snapshot.vertices.tolist() == sorted(expected)
        assert torch.equal(snapshot.features, store.node_features[sorted(expected)])
        place = {vertex: at for at, vertex in enumerate(sorted(expected))}
        edges = [(place[src[event]], place[dst[event]], 1.0) for event in events]
        assert torch.allclose(dense_matrix(snapshot.layers[0][0]), normalized(edges, len(place)), atol=1e-6)
        assert snapshot.layers[0] is snapshot.layers[1]
        assert snapshot.rows_after(1) == len(place)
    vertices, edges = data.train_dataloader().sizes
    assert vertices.tolist() == [len(snapshot.vertices) for snapshot in data.snapshots]
    assert edges.tolist() == [len(snapshot.layers[0][0].columns) for snapshot in data.snapshots]


def test_degrees_are_features():
    store = EventStore.from_arrays([0, 0, 1, 2], [1, 1, 2, 2], [0.0, 1.0, 2.0, 9.0], num_nodes=4)
    data = data_of(store, num_snapshots=3, features="degree", vertices="all")
    assert data.info.feature_dim == 2
    expected = torch.tensor([[0, 2], [2, 1], [1, 0], [0, 0]]).float().log1p()
    assert torch.equal(data.snapshots[0].features, expected)
    marked = data_of(store, num_snapshots=3, features="one_hot_degree", vertices="all")
    assert marked.info.feature_dim == 6
    assert marked.snapshots[0].features.argmax(1).tolist() == [0, 2, 1, 0]
    assert marked.snapshots[0].features[:, 3:].argmax(1).tolist() == [2, 1, 0, 0]
    assert (marked.snapshots[0].features.sum(1) == 2).all()


def test_what_is_not_said_otherwise_has_degrees_for_features():
    assert data_of(random_store(40), num_snapshots=5).info.feature_dim == 2
    assert data_of(random_store(40, node_dim=3), num_snapshots=5).info.feature_dim == 3


def test_snapshots_are_made_once_and_are_the_same_in_all_groups_epochs_and_splits():
    data = data_of(random_store(120), num_snapshots=12)
    loader, seen = data.train_dataloader(), {}
    for epoch in range(2):
        loader.set_epoch(epoch)
        for group in (group for batch in (*loader, *data.val_dataloader()) for group in batch.groups):
            assert group.nodes is data.snapshots.nodes
            for snapshot in group.snapshots:
                assert seen.setdefault(snapshot.number, snapshot) is snapshot
    assert len(seen) > 8


def test_snapshots_are_moved_to_a_device_once():
    data = data_of(random_store(120), num_snapshots=12)
    device, seen = torch.device("meta"), {}
    for _ in range(2):
        for batch in data.train_dataloader():
            moved = data.transfer_batch_to_device(batch, device, 0)
            for group in moved.groups:
                assert group.targets.rows.device == device
                assert seen.setdefault("nodes", group.nodes) is group.nodes
                for snapshot in group.snapshots:
                    assert snapshot.features.device == device
                    assert seen.setdefault(snapshot.number, snapshot) is snapshot
    assert data.transfer_batch_to_device(batch, torch.device("cpu"), 0).groups[0].nodes is batch.groups[0].nodes


def test_a_graph_that_does_not_change_has_one_matrix():
    edges = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])
    same = SnapshotSequence(torch.zeros(5, dtype=torch.int64), torch.full((5,), 3), *edges, 4)
    snapshots = data_of(same).snapshots
    assert all(snapshot.layers[0] is snapshots[0].layers[0] for snapshot in snapshots)


@pytest.mark.parametrize("present", ["seen", "all"])
@pytest.mark.parametrize("relations", [None, "label"])
def test_snapshots_of_a_folder_are_those_of_memory(tmp_path, present, relations):
    made = random_store(120, num_nodes=30, seed=5, node_dim=4, edge_dim=1)
    labels = np.arange(120) % 2
    store = EventStore.from_arrays(
        made.src, made.dst, made.time, made.edge_features, made.node_features, labels, num_nodes=30
    )
    options = {"num_snapshots": 12, "vertices": present, "relations": relations, "weights": 0}
    inside, mapped = data_of(store, **options), data_of(store, folder=tmp_path / "made", **options)
    for one, other in zip(inside.snapshots, mapped.snapshots, strict=True):
        assert torch.equal(one.vertices, other.vertices)
        assert torch.equal(one.features, other.features)
        for matrix, kept in zip(one.layers[0], other.layers[0], strict=True):
            assert all(torch.equal(getattr(matrix, name), getattr(kept, name)) for name in vars(matrix))
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "made").iterdir()}
    again = data_of(store, folder=tmp_path / "made", **options)
    again.setup()
    assert again.snapshots[3] is again.snapshots[3]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "made").iterdir()} == written
    with pytest.raises(ValueError, match=r"folder must be new, empty, or of the same snapshots, .*self_loops=True.*"):
        data_of(store, folder=tmp_path / "made", self_loops=False, **options).setup()


@pytest.mark.parametrize(
    ("name", "held", "told"),
    [
        ("starts.0", b"no array", r"starts\.0\.npy must be a complete \.npy file.*; remove the folder, and"),
        ("weights.0", np.zeros(9), r"weights\.0\.npy must be of float32, got 'float64'; remove the folder"),
        ("vertices.bounds", np.zeros((3, 2), np.int64), r"vertices\.bounds\.npy must be bounds of 12 snapshots in"),
        ("vertices.bounds", np.full((12, 2), 10**6), r"vertices\.bounds\.npy must be bounds of 12 snapshots in"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, name, held, told):
    store = random_store(120, num_nodes=30, seed=5, node_dim=4)
    data_of(store, folder=tmp_path / "made", num_snapshots=12).setup()
    path = tmp_path / "made" / f"{name}.npy"
    path.write_bytes(held) if isinstance(held, bytes) else np.save(path, held)
    with pytest.raises(ValueError, match=told):
        data_of(store, folder=tmp_path / "made", num_snapshots=12).snapshots[0]
