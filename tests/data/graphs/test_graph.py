"""Static graphs: what is refused, what options add, every form of source."""

import os
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_tgnn import FullGraphDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data import Graph, open_graph, save_graph
from lightning_tgnn.data.graphs.sources.graph_objects import features_of, read_graph
from tests.data.example_graphs import MASKS, edges, parts, same

DATA = Path(os.environ.get("LIGHTNING_TGNN_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))


def test_options_add_what_they_say():
    graph = Graph(**parts())
    assert edges(graph.with_options(undirected=False, self_loops=False)) == [(0, 1), (0, 2), (1, 0), (2, 2)]
    both = graph.with_options(undirected=True, self_loops=False)
    assert edges(both) == [(0, 1), (0, 2), (1, 0), (2, 0), (2, 2)]
    looped = graph.with_options(undirected=True, self_loops=True)
    assert edges(looped) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 2), (3, 3)]


def test_weights_are_those_worked_out_by_hand():
    graph = Graph(**parts())
    # In-degrees 1, 1, 2, 0; out-degrees 2, 1, 1, 0.
    wanted = [1 / np.sqrt(1 * 2), 1.0, 1 / np.sqrt(2 * 2), 1 / np.sqrt(2 * 1)]
    np.testing.assert_allclose(graph.weights("symmetric").numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(graph.weights("row").numpy(), [1.0, 1.0, 0.5, 0.5])
    assert graph.weights("none").tolist() == [1.0] * 4
    some = torch.tensor([2, 0, 2])
    for normalization in ("symmetric", "row", "none"):
        assert torch.equal(graph.weights(normalization, some), graph.weights(normalization)[some])


def test_weights_have_the_same_type_whatever_torch_makes_by_default():
    graph = Graph(**parts())
    expected = {normalization: graph.weights(normalization) for normalization in ("symmetric", "row", "none")}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        found = {normalization: graph.weights(normalization) for normalization in expected}
    finally:
        torch.set_default_dtype(before)
    for normalization, weights in expected.items():
        assert found[normalization].dtype == torch.float32
        assert torch.equal(found[normalization], weights)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("src", torch.tensor([0, 1, 0, 4]), r"src must be vertices 0 .. 3, the rows of the features, got 4"),
        ("dst", torch.tensor([0, 1, 0, -1]), r"dst must be vertices 0 .. 3"),
        ("dst", torch.tensor([0, 1]), "edges must be as many sources as destinations"),
        ("features", torch.full((4, 2), float("nan")), "features must be finite, got 'NaN or infinity at vertex 0'"),
        ("features", torch.zeros(4), "features must be a matrix"),
        ("labels", torch.tensor([0, -2, 0, 0]), "labels must be classes from 0, or -1, got -2"),
        ("labels", torch.tensor([0, 4, 0, 0]), "labels must be classes below the number of vertices, 4, got 4"),
        ("labels", torch.zeros(3, dtype=torch.int64), "labels must be one for each of 4 vertices"),
        ("train", torch.zeros(4, dtype=torch.bool), "train mask must be at least one vertex, got 0"),
        ("val", torch.tensor([True, True, False, False]), "train and val mask must be without a vertex in both, got 1"),
        ("test", torch.tensor([False, False, True, True]), "test mask must be vertices with a label, got 'vertex 3'"),
    ],
)
def test_what_must_not_be_trained_on_is_refused(name, value, message):
    with pytest.raises(DataError, match=message):
        Graph(**(parts() | {name: value}))


def test_a_graph_without_edges_is_refused():
    none = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(DataError, match="edges must be at least one, got 0"):
        Graph(**(parts() | {"src": none, "dst": none}))


def compressed(prefix, matrix):
    rows, columns = matrix.nonzero()
    starts = np.concatenate([[0], np.bincount(rows, minlength=len(matrix)).cumsum()])
    return {
        f"{prefix}_data": matrix[rows, columns],
        f"{prefix}_indices": columns,
        f"{prefix}_indptr": starts,
        f"{prefix}_shape": np.array(matrix.shape),
    }


def test_every_form_gives_the_same_graph(tmp_path):
    graph = Graph(**parts())
    masks = {f"{name}_mask": getattr(graph, name).numpy() for name in ("train", "val", "test")}
    index, dense = np.stack([graph.src, graph.dst]), graph.features.numpy()
    adjacency = np.zeros((4, 4))
    adjacency[graph.src, graph.dst] = 1
    forms = {
        "dense": {"edge_index": index, "features": dense, "labels": graph.labels, **masks},
        "rows": {"edge_index": index, "label": graph.labels, **compressed("feat", dense), **masks},
        "adjacency": {"labels": graph.labels, **compressed("adj", adjacency), **compressed("attr", dense), **masks},
    }
    for name, arrays in forms.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        same(read_graph(tmp_path / f"{name}.npz"), graph)
    tensors = {name: torch.from_numpy(mask) for name, mask in masks.items()}
    like_pyg = SimpleNamespace(edge_index=torch.from_numpy(index), x=graph.features, y=graph.labels, **tensors)
    same(read_graph(like_pyg), graph)


def test_a_dgl_graph_gives_the_same(tmp_path):
    dgl = pytest.importorskip("dgl")
    graph = Graph(**parts())
    made = dgl.graph((graph.src, graph.dst), num_nodes=4)
    made.ndata.update(feat=graph.features, label=graph.labels)
    made.ndata.update({f"{name}_mask": getattr(graph, name) for name in ("train", "val", "test")})
    same(read_graph(made), graph)


def columns():
    """Return sources, destinations, features, labels and masks of a small graph, the masks by the names of files."""
    given = parts()
    masks = {name: given[split] for split, name in MASKS.items()}
    return given["src"], given["dst"], given["features"], given["labels"], masks


def like_pyg(**held):
    """Return what a PyG Data is to us."""
    src, dst, features, labels, masks = columns()
    return SimpleNamespace(**{"edge_index": torch.stack([src, dst]), "x": features, "y": labels, **masks, **held})


class LikeDGL:
    """What a DGLGraph is to us."""

    canonical_etypes, ntypes, is_block = [("_N", "_E", "_N")], ["_N"], False

    def __init__(self, **edata):
        *self.ends, features, labels, masks = columns()
        self.edata, self.ndata = edata, {"feat": features, "label": labels, **masks}

    def formats(self, formats):
        return self

    def edges(self, *, order):
        return tuple(self.ends)


def as_file(path, **held):
    src, dst, features, labels, masks = columns()
    np.savez(path, edge_index=np.stack([src, dst]), features=features, labels=labels, **masks, **held)
    return path


@pytest.mark.parametrize("name", ["edge_weight", "weight", "w"])
def test_weights_of_edges_are_read_under_every_name(tmp_path, name):
    ones, others = torch.ones(4), torch.tensor([1.0, 1.0, 2.0, 1.0])
    forms = {
        "SimpleNamespace": lambda values: like_pyg(**{name: values}),
        "LikeDGL": lambda values: LikeDGL(**{name: values}),
        "graph.npz": lambda values: as_file(tmp_path / "graph.npz", **{name: values}),
    }
    for source, made in forms.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert read_graph(made(ones)).edge_weights is None
            for values in (others, others.unsqueeze(1)):
                graph = read_graph(made(values))
                same(graph, Graph(**parts()))
                assert torch.equal(graph.edge_weights, others)
        for unfit in (others.expand(2, 4).T, others[1:3], torch.tensor(2.0)):
            with pytest.warns(
                UserWarning, match=rf"{source}: nothing reads the column\(s\) '{name}'; weights of edges"
            ):
                assert read_graph(made(unfit)).edge_weights is None
        with pytest.raises(DataError, match=f"{name} must be finite and above 0, got -1"):
            read_graph(made(others - 2))


def test_features_of_edges_are_no_weights():
    with pytest.warns(UserWarning, match=r"nothing reads the column\(s\) 'edge_attr'; weights of edges are"):
        assert read_graph(like_pyg(edge_attr=torch.tensor([[1.0], [2.0], [3.0], [1.0]]))).edge_weights is None


def test_degrees_of_hubs_are_exact():
    count = 3_000_000
    src, split = torch.arange(count) % 4, torch.eye(4, dtype=torch.bool)
    plain = torch.zeros(count, dtype=torch.int64), torch.ones(4, 1), torch.tensor([0, 1, 0, 1])
    weights = torch.full((count,), 0.1)
    graph = Graph(src, *plain, split[0], split[1], split[2], edge_weights=weights)
    assert float(graph.weights("row").double().sum()) == pytest.approx(1, rel=1e-5)


def test_weighted_edges_are_normalised_as_in_pyg():
    pytest.importorskip("torch_geometric")
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import to_undirected

    rng = torch.Generator().manual_seed(1)
    places = torch.randperm(20 * 20, generator=rng)[:70]
    places = places[places // 20 != places % 20]
    index, weights = torch.stack([places // 20, places % 20]), torch.rand(len(places), generator=rng) + 0.1
    split = torch.eye(20, dtype=torch.bool)
    plain = torch.randn(20, 3), torch.arange(20) % 2
    graph = Graph(*index, *plain, split[0], split[1], split[2], edge_weights=weights)
    graph = graph.with_options(undirected=True, self_loops=True)
    index, weights = to_undirected(index, weights, num_nodes=20, reduce="mean")
    theirs = torch.sparse_coo_tensor(*gcn_norm(index, weights, 20), (20, 20)).to_dense()
    found = torch.sparse_coo_tensor(torch.stack([graph.src, graph.dst]), graph.weights("symmetric"), (20, 20))
    torch.testing.assert_close(found.to_dense(), theirs)
    some = torch.tensor([3, 1, 5])
    torch.testing.assert_close(graph.weights("symmetric", some), graph.weights("symmetric")[some])


def test_other_weights_are_another_graph_and_a_folder_keeps_them(tmp_path):
    plain = Graph(**parts())
    weighted = replace(plain, edge_weights=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    others = replace(plain, edge_weights=torch.tensor([1.0, 2.0, 3.0, 5.0]))
    assert len({graph.info().fingerprint for graph in (plain, weighted, others)}) == 3
    kept = open_graph(save_graph(tmp_path / "graph", weighted))
    assert torch.equal(kept.edge_weights, weighted.edge_weights)
    assert kept.info() == weighted.info()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], r"edge_weights must be one for each of 4 edges, got \[2\]"),
        ([1.0, 2.0, torch.nan, 1.0], "edge_weights must be finite and above 0, got nan"),
        ([1.0, 2.0, -1.0, 1.0], "edge_weights must be finite and above 0, got -1.0"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, message):
    with pytest.raises(DataError, match=message):
        Graph(**parts(), edge_weights=torch.tensor(weights))


def test_vertices_of_several_classes_are_kept(tmp_path):
    several = Graph(**parts() | {"labels": torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [-1, -1, -1]])})
    info = several.info()
    assert (info.num_classes, info.multi_label, info.class_counts) == (3, True, (1, 0, 1))
    kept = open_graph(save_graph(tmp_path / "graph", several))
    assert torch.equal(kept.labels, several.labels)
    assert kept.info() == info
    for wrong in ([[1, 2], [0, 1], [1, 1], [-1, -1]], [[1, -1], [0, 1], [1, 1], [-1, -1]]):
        with pytest.raises(DataError, match="labels must be rows of 0 and 1, or -1 in a whole row"):
            Graph(**parts() | {"labels": torch.tensor(wrong)})


def test_an_adjacency_has_a_row_for_each_vertex(tmp_path):
    *_, features, labels, masks = columns()
    for rows in (2, 6):
        adjacency = compressed("adj", np.ones((rows, len(labels))))
        np.savez(tmp_path / "graph.npz", features=features, labels=labels, **adjacency, **masks)
        with pytest.raises(DataError, match=f"adj_indptr must be of a row for each of 4 vertices, got '{rows} rows'"):
            read_graph(tmp_path / "graph.npz")


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (2, 2), (4, 2, 2)])
def test_labels_are_one_for_each_vertex(shape):
    labels = parts()["labels"]
    if 1 in shape:
        assert torch.equal(read_graph(like_pyg(y=labels.view(shape))).labels, labels)
    else:
        with pytest.raises(DataError, match=rf"labels must be one for each of 4 vertices, got \{list(shape)}"):
            read_graph(like_pyg(y=torch.zeros(shape, dtype=torch.int64)))


def test_labels_go_before_label(tmp_path):
    path = as_file(tmp_path / "graph.npz", label=np.zeros(len(parts()["labels"]), int))
    assert torch.equal(read_graph(path).labels, parts()["labels"])


def test_sparse_columns_are_refused():
    for name, called in {"x": "features", "y": "labels", "train_mask": "train_mask"}.items():
        sparse = getattr(like_pyg(), name).to_sparse()
        with pytest.raises(DataError, match=rf"{called} must be dense, got 'torch.sparse_coo'; call .to_dense\(\)"):
            read_graph(like_pyg(**{name: sparse}))


def test_other_sources_are_refused(tmp_path):
    with pytest.raises(
        InvalidArgumentError, match=r"source must be a file or folder that is there, got .*nowhere.npz'"
    ):
        read_graph(tmp_path / "nowhere.npz")
    with pytest.raises(InvalidArgumentError, match=r"source must be an .npz file.*got 'dict'"):
        read_graph({})
    with pytest.raises(
        DataError, match=r"source must be a PyG Data with an edge_index, got 'none'; give it one; after"
    ):
        read_graph(like_pyg(edge_index=None))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match="must be a complete archive of numbers"):
        read_graph(tmp_path / "text.npz")
    np.savez(tmp_path / "part.npz", edge_index=np.zeros((2, 1), int))
    with pytest.raises(DataError, match="source must be with features, got 'edge_index'; add it, or"):
        read_graph(tmp_path / "part.npz")
    np.savez(tmp_path / "part.npz", features=np.zeros((2, 1)))
    with pytest.raises(DataError, match="source must be with edge_index, got 'features'"):
        read_graph(tmp_path / "part.npz")
    np.savez(tmp_path / "part.npz", features=np.zeros((2, 1)), edge_index=np.zeros((2, 1), int))
    with pytest.raises(DataError, match="source must be with labels, got 'edge_index, features'"):
        read_graph(tmp_path / "part.npz")
    np.savez(tmp_path / "pickled.npz", edge_index=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="must be a complete archive of numbers"):
        read_graph(tmp_path / "pickled.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": np.zeros((4, 2), int)}, r"edge_index must be of shape \[2, E\], got \[4, 2\]"),
        ({"edge_index": np.eye(2, dtype=bool)}, r"edge_index must be of integers, got 'bool'; give the numbers of the"),
        ({"edge_index": np.array([[0.0], [0.7]])}, r"edge_index must be of whole numbers, got 0\.7"),
        ({"labels": np.array([0, 1.9, 1])}, r"labels must be of whole numbers, got 1\.9"),
        ({"labels": np.array([0, np.nan, 1])}, "labels must be of whole numbers, got nan"),
        (
            {"labels": np.array([0, 2**64 - 1, 1], np.uint64)},
            "labels must be of whole numbers, got 18446744073709551615",
        ),
        ({"labels": np.array(["a", "b", "c"])}, "labels must be of numbers, got '<U1'"),
        ({"train_mask": np.array([17, 0, 0])}, "train_mask must be of truth values, or of 0 and 1, got 17"),
        (
            {"feat_indptr": np.array([0, 2, 1, 2])},
            "feat_indptr must be ascending from 0 to the num",
        ),
        ({"feat_indptr": np.array(3)}, r"feat_indptr must be a vector of integers, got 'int64 \[\]'"),
        ({"feat_data": np.ones(1)}, r"feat_indptr must be of 3 rows and all indices, got .* 2 indices, values"),
        ({"feat_shape": np.array([3, 2**60])}, "feat_shape must be small enough for memory, got .a matrix of 3 rows"),
        ({"feat_shape": np.array([3, -1])}, "feat_shape must be two lengths, rows and columns, got"),
        ({"feat_indices": np.array([0, 5])}, r"feat_indices must be columns 0 \.\. 1, got 5"),
        (
            {"feat_indptr": np.array([0, 1])},
            "feat_indptr must be ascending from 0 to the number of indices",
        ),
    ],
)
def test_archives_that_do_not_fit_are_refused(tmp_path, change, message):
    held = {"edge_index": np.array([[0], [1]]), "labels": np.array([0, 1, 1])}
    held |= {"feat_indptr": np.array([0, 1, 2, 2]), "feat_indices": np.array([0, 1]), "feat_data": np.ones(2)}
    held |= {"feat_shape": np.array([3, 2])}
    held |= {f"{name}_mask": np.arange(3) == place for place, name in enumerate(("train", "val", "test"))}
    np.savez(tmp_path / "good.npz", **held)
    assert read_graph(tmp_path / "good.npz").features.tolist() == [[1, 0], [0, 1], [0, 0]]
    np.savez(tmp_path / "bad.npz", **(held | change))
    with pytest.raises(DataError, match=message):
        read_graph(tmp_path / "bad.npz")


def test_a_damaged_archive_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "bad.npz", edge_index=np.arange(20000).reshape(2, -1))
    data = bytearray((tmp_path / "bad.npz").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    (tmp_path / "bad.npz").write_bytes(data)
    with pytest.raises(DataError, match="must be a complete archive of numbers"):
        read_graph(tmp_path / "bad.npz")


def test_what_epochs_and_splits_share_is_moved_once():
    data = FullGraphDataModule(Graph(**parts()), seed=1)
    loaders = [data.train_dataloader(), data.val_dataloader()]
    loaders[0].set_epoch(1)
    given = [next(iter(loader)) for loader in loaders]
    for device in ("cpu", "meta"):
        moved = [data.transfer_batch_to_device(part, torch.device(device), 0) for part in given]
        assert moved[0].edges is moved[1].edges
        for ours, theirs in zip(moved, given, strict=True):
            assert ours.scored.shape == theirs.scored.shape
            assert (ours.seed, ours.share) == (theirs.seed, theirs.share)
            tensors = [ours.nodes, ours.features, ours.labels, ours.scored, ours.edges.columns, ours.hops[0].mirrors]
            assert {tensor.device.type for tensor in tensors} == {device}
    assert given[0].seed != given[1].seed


@pytest.mark.skipif(not (DATA / "cora.npz").exists(), reason="needs cora.npz in LIGHTNING_TGNN_DATA")
def test_cora_is_read():
    info = FullGraphDataModule(DATA / "cora.npz", undirected=False, self_loops=False).info
    assert (info.num_nodes, info.num_edges, info.feature_dim, info.num_classes) == (2708, 10556, 1433, 7)


def test_values_of_one_place_add_up(tmp_path):
    held = {"edge_index": np.array([[0], [1]]), "labels": np.array([0, 1, 1]), "feat_shape": np.array([3, 2])}
    held |= {"feat_indptr": np.array([0, 2, 2, 2]), "feat_indices": np.array([1, 1]), "feat_data": np.array([1, 2])}
    held |= {f"{name}_mask": np.arange(3) == place for place, name in enumerate(("train", "val", "test"))}
    np.savez(tmp_path / "graph.npz", **held)
    assert read_graph(tmp_path / "graph.npz").features.tolist() == [[0, 3], [0, 0], [0, 0]]


@pytest.mark.parametrize("shape", [(10**15,), (2, 1), (2, 3), (-1,), (True, 2), "x"])
def test_a_header_that_claims_another_size_is_refused_before_anything_is_allocated(tmp_path, shape):
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(32)
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
        archive.writestr("edge_index.npy", content)
    with pytest.raises(DataError, match="must be a complete archive of numbers, got '"):
        read_graph(tmp_path / "bad.npz")


def test_an_archive_with_a_name_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            archive.writestr("edge_index.npy", b"")
    with pytest.raises(DataError, match="must be a complete archive of numbers, got 'an archive with a name twice'"):
        read_graph(tmp_path / "bad.npz")


def test_an_archive_that_unpacks_past_memory_is_refused_by_its_size(tmp_path):
    path = tmp_path / "graph.npz"
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1 << 20)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("features.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match=r"complete archive of numbers"):
        read_graph(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_tgnn.files.memory.available_memory", lambda: 10_000_000)
        with pytest.raises(
            DataError, match=r"graph.npz must be small enough for memory, got .*: 67.1 MB, 10.0 MB free"
        ):
            read_graph(path)
        with pytest.raises(DataError, match=r"feat_shape must be small enough for memory, got .a matrix of 2 rows"):
            features_of({"feat_indptr": np.arange(3), "feat_indices": np.arange(2), "feat_data": np.ones(2),
                         "feat_shape": np.array([2, 10**7])})  # fmt: skip
