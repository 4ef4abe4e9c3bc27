"""Graphs in folders of mapped files."""

import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn import FullGraphDataModule
from lightning_tgnn.algorithms.partitions.vertex_cut import CUT_METHODS, vertex_cut
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data import Graph, generate_graph, open_graph, save_graph
from lightning_tgnn.data.graphs.loader import subgraphs
from lightning_tgnn.files.new_folder import new_folder
from lightning_tgnn.files.npy_file import pieces
from lightning_tgnn.types import SparseRows
from tests.data.example_graphs import MASKS, parts, same, write_folder


def as_int32(graph):
    kept = {name: getattr(graph, name) for name in ("features", "labels", "train", "val", "test")}
    return Graph(graph.src.int(), graph.dst.int(), **kept)


def test_a_folder_gives_back_the_graph(tmp_path):
    graph = generate_graph(300, 2000, 4, 6, seed=1)
    found = open_graph(save_graph(tmp_path / "new" / "graph", graph))
    assert found.src.dtype == found.dst.dtype == torch.int32
    assert torch.equal(found.src.long(), graph.src)
    assert torch.equal(found.dst.long(), graph.dst)
    same(found, graph)
    assert found.info() == graph.info()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["graph"]


def mapped_files():
    with open("/proc/self/maps") as maps:
        return [[*line.split()[0].split("-"), line.split()[1], line.split()[-1]] for line in maps if ".npy" in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs the list of mappings of Linux")
@pytest.mark.parametrize("added", [False, True])
def test_columns_are_mapped_and_torch_does_not_warn(tmp_path, request, added):
    save_graph(tmp_path / "graph", generate_graph(300, 2000, seed=1))
    request.addfinalizer(partial(torch.set_warn_always, torch.is_warn_always_enabled()))
    torch.set_warn_always(True)  # else once in a process
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = FullGraphDataModule(tmp_path / "graph", undirected=added, self_loops=added)
        graph = data.graph
    for name in ("src", "dst", "features", "labels", "train", "val", "test"):
        address = getattr(graph, name).data_ptr()
        (access,) = [
            access
            for first, last, access, path in mapped_files()
            if int(first, 16) <= address < int(last, 16) and path.endswith(f"/{MASKS.get(name, name)}.npy")
        ]
        assert access[:2] == "r-", "one that may be written counts as memory"
    # On one rank, which has every vertex, no copy of the features either.
    assert data.train_dataloader().subgraph.features.data_ptr() == graph.features.data_ptr()


def test_a_mapped_graph_gives_the_part_of_one_in_memory(tmp_path):
    graph = generate_graph(200, 1000, seed=3)
    options = {"undirected": False, "self_loops": False}
    here = FullGraphDataModule(graph, **options).train_dataloader().subgraph
    there = FullGraphDataModule(save_graph(tmp_path / "graph", graph), **options).train_dataloader().subgraph
    for name in ("nodes", "features", "labels", "scored"):
        assert torch.equal(getattr(here, name), getattr(there, name)), name
    equal_rows(here.edges, there.edges)


def equal_rows(ours, theirs):
    for name in SparseRows.__dataclass_fields__:
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
        assert getattr(ours, name).dtype == getattr(theirs, name).dtype, name


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 100), undirected=st.booleans(), self_loops=st.booleans(), ranks=st.integers(1, 3))
def test_int32_ends_are_the_same_graph(seed, undirected, self_loops, ranks):
    wide = generate_graph(70_000, 300, 3, 2, seed=seed)  # the square of the number of vertices does not fit 32 bits
    narrow = as_int32(wide)
    assert narrow.info() == wide.info()
    wide, narrow = (graph.with_options(undirected=undirected, self_loops=self_loops) for graph in (wide, narrow))
    assert narrow.src.dtype == narrow.dst.dtype == torch.int32
    assert narrow.info() == wide.info()
    hosts = torch.zeros(ranks, dtype=torch.int64)
    for normalization in ("symmetric", "row", "none"):
        weights = wide.weights(normalization)
        assert torch.equal(narrow.weights(normalization), weights)
    part = vertex_cut(wide.src, wide.dst, wide.num_nodes, hosts, "random")
    for rank in range(ranks):
        ours, theirs = (subgraphs(graph, weights.__getitem__, part, hosts, rank)["val"] for graph in (narrow, wide))
        assert torch.equal(ours.scored, theirs.scored)
        equal_rows(ours.edges, theirs.edges)


@pytest.mark.parametrize("method", sorted(set(CUT_METHODS) - {"metis"}))  # that one does not repeat itself
def test_int32_ends_are_cut_like_int64(method):
    graph = generate_graph(500, 3000, seed=4)
    hosts = torch.tensor([0, 0, 1])
    cuts = [vertex_cut(g.src, g.dst, g.num_nodes, hosts, method) for g in (graph, as_int32(graph))]
    assert torch.equal(*cuts)


def test_metis_takes_int32_ends():
    pytest.importorskip("dgl")
    graph = as_int32(generate_graph(500, 3000, seed=4))
    part = vertex_cut(graph.src, graph.dst, graph.num_nodes, torch.zeros(2, dtype=torch.int64), "metis")
    assert sorted(part.unique().tolist()) == [0, 1]


def test_a_graph_without_options_is_itself():
    graph = Graph(**parts())
    assert graph.with_options(undirected=False, self_loops=False) is graph


@given(rows=st.integers(0, 1 << 24), width=st.integers(0, 5000))
def test_pieces_cover_all_rows_once_and_are_small(rows, width):
    cut = list(pieces(rows, width))
    covered = [min(piece.stop, rows) - piece.start for piece in cut]
    assert sum(covered) == rows
    assert [piece.start for piece in cut[1:]] == [piece.stop for piece in cut[:-1]]
    assert max(covered, default=0) * max(width, 1) <= 1 << 22


def test_what_lies_behind_the_first_piece_is_checked(monkeypatch):
    monkeypatch.setattr("lightning_tgnn.files.npy_file._VALUES_PER_PIECE", 2)
    same(Graph(**parts()), Graph(**parts()))
    wrong = {
        "features must be finite, got 'NaN or infinity at vertex 3'": ("features", (3, 1), float("nan")),
        "test mask must be vertices with a label, got 'vertex 3'": ("test", 3, True),
        "train and test mask must be without a vertex in both, got 1": ("train", 2, True),
        "labels must be classes from 0, or -1, got -2": ("labels", 3, -2),
    }
    for message, (name, place, value) in wrong.items():
        columns = parts()
        columns[name] = columns[name].clone()
        columns[name][place] = value
        with pytest.raises(DataError, match=message):
            Graph(**columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"features": None, "val": None}, r"with src.npy.*, got 'none of the name features.npy, val_mask.npy'; add"),
        ({"features": np.zeros((4, 2))}, "features must be float32, got 'float64'; convert"),
        ({"features": np.zeros((2, 2), np.float32)}, "src must be vertices 0 .. 1, the rows of the features, got 2"),
        ({"features": np.full((4, 2), np.inf, np.float32)}, "features must be finite"),
        ({"features": np.zeros((4, 0), np.float32)}, r"features must be a matrix \[N, F\], got \[4, 0\]"),
        ({"src": np.zeros((2, 2), int)}, r"edges must be as many sources as .*, got '\[2, 2\] and \[4\]'"),
        ({"src": np.zeros(0, int), "dst": np.zeros(0, int)}, "edges must be at least one, got 0"),
        ({"src": np.zeros(4)}, "src must be int64 or int32, got 'float64'"),
        ({"labels": np.array([0, 1, 4, 0], np.int32)}, "labels must be classes below the number of vertices, 4, got 4"),
        ({"labels": np.zeros(4)}, "labels must be int64, got 'float64'; number the classes"),
        ({"labels": np.array(["a"] * 4)}, r"labels.npy must be of numbers, got '<U1'"),
        ({"train": np.zeros(4, bool)}, "train mask must be at least one vertex"),
        ({"train": np.eye(4)[0]}, "train mask must be bool, got 'float64'"),
        ({"test": np.zeros(3, bool)}, r"test mask must be one for each of 4 vertices, got \[3\]"),
        ({"val": np.array([True, True, False, False])}, "train and val mask must be without a vertex in both, got 1"),
    ],
)
def test_folders_that_must_not_be_trained_on_are_refused(tmp_path, columns, message):
    with pytest.raises(DataError, match=message):
        FullGraphDataModule(write_folder(tmp_path / "graph", **columns)).setup()


def test_small_integers_are_labels(tmp_path):
    folder = write_folder(tmp_path / "graph", labels=np.array([0, 1, 1, -1], np.int8))
    same(open_graph(folder), Graph(**parts()))


def test_labels_beyond_int64_are_refused(tmp_path):
    folder = write_folder(tmp_path / "graph", labels=np.array([0, 1, 1, 2**64 - 1], np.uint64))
    with pytest.raises(DataError, match="labels must be int64, got 'uint64'"):
        open_graph(folder)


def test_damaged_files_are_refused(tmp_path):
    folder = write_folder(tmp_path / "graph")
    whole = (folder / "src.npy").read_bytes()
    foreign = (whole.replace(b"shape", b"shap("), whole.replace(b"}", b" "), whole.replace(b"\x01\x00", b"\x09\x00", 1))
    for content in (whole[:-8], whole + b"\0", whole[:20], b"", b"PK\x03\x04 no array", *foreign):
        (folder / "src.npy").write_bytes(content)
        with pytest.raises(DataError, match=r"src.npy must be a complete .npy file, got .*; save it again"):
            open_graph(folder)


def test_save_refuses_a_folder_in_use(tmp_path):
    graph = Graph(**parts())
    save_graph(tmp_path / "graph", graph)
    with pytest.raises(InvalidArgumentError, match=r"folder must be new or empty, got .*graph'; choose another"):
        save_graph(tmp_path / "graph", graph)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match=r"file/graph must be where files can be written, got .*; choose"):
        save_graph(tmp_path / "file" / "graph", graph)


def test_of_two_processes_that_make_a_folder_the_first_wins(tmp_path):
    with new_folder(tmp_path / "made") as ours:
        (ours / "file").write_text("second")
        with new_folder(tmp_path / "made") as theirs:
            (theirs / "file").write_text("first")
    assert (tmp_path / "made" / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    (tmp_path / "in the way").write_text("")
    with pytest.raises(NotADirectoryError), new_folder(tmp_path / "in the way"):
        pass


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    def failing(rows, width=1):
        raise OSError("disk full")

    monkeypatch.setattr("lightning_tgnn.data.graphs.sources.folder.pieces", failing)
    with pytest.raises(OSError, match="disk full"):
        save_graph(tmp_path / "graph", Graph(**parts()))
    assert not list(tmp_path.iterdir())
