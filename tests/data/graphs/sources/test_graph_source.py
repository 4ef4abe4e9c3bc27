"""Graphs by name: downloads from a local server, DGL's sets from small files of its form, misspelt names."""

import http.server
import pickle
import sys
import threading
import time
import warnings
import zipfile
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from lightning_tgnn import FullGraphDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data import generate_graph, save_graph
from lightning_tgnn.data.graphs.sources import names as graph_names
from lightning_tgnn.files.download import download, unpack
from tests.data.example_graphs import same, write_ogb
from tests.multiprocess.ranks import free_port

ALONE = {"undirected": False, "self_loops": False}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, counts what it is asked for, and says of ``short.zip`` that it is longer than it is."""

    def do_GET(self):
        self.server.asked.append(self.path)
        super().do_GET()

    def send_header(self, name, value):
        if self.path.endswith("short.zip") and name == "Content-Length":
            value = str(int(value) + 100)
        super().send_header(name, value)

    def log_message(self, *_):
        """Keep quiet."""


@pytest.fixture
def served(tmp_path):
    """A folder that is served, its address, and what was asked for."""
    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}", server.asked
        server.shutdown()
        thread.join()


def zipped(folder, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in folder.rglob("*"):
            archive.write(file, file.relative_to(folder.parent))
    return path


@pytest.mark.parametrize(
    ("name", "archives"), [("ogbn-arxiv", False), ("ogbn-products", False), ("ogbn-papers100M", True)]
)
def test_a_set_of_ogb_is_downloaded_and_converted_once(tmp_path, served, monkeypatch, name, archives):
    folder, address, asked = served
    graph = generate_graph(100, 400, seed=2)
    zipped(write_ogb(tmp_path / "products", graph, archives=archives), folder / "products.zip")
    monkeypatch.setitem(graph_names.OGB_URLS, name.lower(), f"{address}/products.zip")
    for _ in range(2):
        same(FullGraphDataModule(name, root=tmp_path / "root", **ALONE).graph, graph)
    assert asked == ["/products.zip"]
    kept = tmp_path / "root" / name.replace("-", "_")
    assert list((tmp_path / "root").iterdir()) == [kept]
    assert sorted(path.name for path in kept.iterdir()) == ["graph", "raw", "split"]


def test_a_zip_that_is_there_is_taken(tmp_path, monkeypatch):
    graph = generate_graph(100, 400, seed=2)
    given = zipped(write_ogb(tmp_path / "products", graph), tmp_path / "root" / "products.zip")
    monkeypatch.setitem(graph_names.OGB_URLS, "ogbn-products", f"http://127.0.0.1:{free_port()}/products.zip")
    same(FullGraphDataModule("ogbn-products", root=tmp_path / "root", **ALONE).graph, graph)
    assert given.exists()


def test_what_cannot_be_downloaded_is_refused(tmp_path, served, monkeypatch):
    folder, address, _ = served
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the tries
    (folder / "short.zip").write_bytes(b"x" * 1000)
    nobody = f"http://127.0.0.1:{free_port()}"
    for url, cause in (
        (f"{nobody}/products.zip", "Connection refused"),
        (f"{address}/nowhere.zip", "HTTP Error 404"),
        (f"{address}/short.zip", "1,000 of 1,100 bytes|IncompleteRead"),
    ):
        monkeypatch.setitem(graph_names.OGB_URLS, "ogbn-products", url)
        message = (
            rf"{url} must be reachable, got .*({cause}).*; connect this machine, or download it elsewhere and put it"
        )
        with pytest.raises(DataError, match=message):
            FullGraphDataModule("ogbn-products", root=tmp_path / "root").prepare_data()
        assert not list((tmp_path / "root").iterdir()), "nothing half done is left"


def test_a_corrupt_zip_is_refused(tmp_path, served, monkeypatch):
    folder, address, _ = served
    whole = zipped(write_ogb(tmp_path / "products", generate_graph(100, 400)), folder / "products.zip").read_bytes()
    monkeypatch.setitem(graph_names.OGB_URLS, "ogbn-products", f"{address}/products.zip")
    middle = len(whole) // 2
    for content in (b"no zip", whole[:middle], whole[:middle] + bytes(64) + whole[middle + 64 :]):
        (folder / "products.zip").write_bytes(content)
        with pytest.raises(DataError, match=r"products.zip must be a complete zip file, got .*; delete it, so that"):
            FullGraphDataModule("ogbn-products", root=tmp_path / "root").prepare_data()
        assert [path.name for path in (tmp_path / "root").iterdir()] == ["products.zip"]
        (tmp_path / "root" / "products.zip").unlink()


def packed(path, *members, kind=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", kind) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in members:
            archive.writestr(name, b"content")
    return path


def test_an_archive_writes_nothing_outside(tmp_path):
    archive = packed(tmp_path / "a.zip", "../outside", "/outside", "x/../../outside2", "set/inside")
    unpack(archive, tmp_path / "made" / "set")
    held = [path for path in tmp_path.rglob("*") if path.is_file() and path != archive]
    assert sorted(path.relative_to(tmp_path / "made" / "set").parts[-1] for path in held) == [
        "inside",
        "outside",
        "outside2",
    ]


@pytest.mark.parametrize("names", [("..",), ("a", "a")])
def test_an_archive_of_names_that_are_none_is_refused(tmp_path, names):
    with pytest.raises(DataError, match="must be a complete zip file"):
        unpack(packed(tmp_path / "a.zip", *names), tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_an_archive_that_is_packed_in_an_unknown_way_is_refused(tmp_path):
    path = packed(tmp_path / "a.zip", "name")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 10] = content[8] = 77
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"must be a complete zip file, got .*not supported"):
        unpack(path, tmp_path / "made")


def test_a_download_replaces_what_was_there(tmp_path, served):
    folder, address, _ = served
    (folder / "a").write_bytes(b"new")
    (tmp_path / "a").write_bytes(b"old")
    download(f"{address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["coar", "ogbn-product", "papers100M"])
def test_a_misspelt_name_is_refused(name):
    names = "cora, citeseer, pubmed, reddit, ogbn-arxiv, ogbn-products, ogbn-papers100m, synthetic"
    with pytest.raises(InvalidArgumentError, match=f"source must be .* one of {names}, got '{name}'; correct"):
        FullGraphDataModule(name).setup()


def test_a_path_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = generate_graph(50, 100)
    save_graph("cora", graph)
    same(FullGraphDataModule("./cora", **ALONE).graph, graph)


def planetoid(folder, name, random):
    """The files of a citation set as DGL unpacks them: 20 vertices for training, 500 for validation, 30 for test."""
    folder.mkdir(parents=True)
    features = (random.random((550, 8)) < 0.4).astype(np.float32)
    features[:, 0] = 1  # rows are divided by their sums
    labels = random.integers(0, 3, 550)
    onehot = np.eye(3)[labels]
    neighbours = defaultdict(list)
    for one in range(550):
        for other in {(one + 1) % 550, (one * 7) % 550} - {one}:
            neighbours[one].append(other)
            neighbours[other].append(one)
    test = random.permutation(np.arange(520, 550))
    rows = sp.csr_matrix(features)
    pieces = {"x": rows[:20], "allx": rows[:520], "tx": rows[test], "graph": neighbours}
    pieces |= {"y": onehot[:20], "ally": onehot[:520], "ty": onehot[test]}
    for piece, held in pieces.items():
        (folder / f"ind.{name}.{piece}").write_bytes(pickle.dumps(held))
    (folder / f"ind.{name}.test.index").write_text("\n".join(map(str, test)))
    return features / features.sum(1, keepdims=True), labels, neighbours


@pytest.mark.parametrize(("name", "of_dgl"), [("cora", "cora_v2"), ("citeseer", "citeseer"), ("pubmed", "pubmed")])
def test_a_citation_set_is_that_of_dgl(tmp_path, served, monkeypatch, name, of_dgl):
    pytest.importorskip("dgl")
    folder, address, asked = served
    monkeypatch.setenv("DGL_REPO", address)
    features, labels, neighbours = planetoid(tmp_path / "raw", of_dgl, np.random.default_rng(3))
    with zipfile.ZipFile(zip_path(folder / "dataset" / f"{of_dgl}.zip"), "w") as archive:
        for file in (tmp_path / "raw").iterdir():
            archive.write(file, file.name)
    for _ in range(2):
        graph = FullGraphDataModule(name, root=tmp_path / "root", **ALONE).graph
    assert asked == [f"/dataset/{of_dgl}.zip"]
    np.testing.assert_allclose(graph.features.numpy(), features, rtol=1e-6)
    assert graph.labels.tolist() == labels.tolist()
    wanted = {(one, other) for one, others in neighbours.items() for other in others}
    assert set(zip(graph.src.tolist(), graph.dst.tolist(), strict=True)) == wanted
    splits = [torch.arange(550)[getattr(graph, split)].tolist() for split in ("train", "val", "test")]
    assert splits == [list(range(20)), list(range(20, 520)), list(range(520, 550))]


def zip_path(path):
    path.parent.mkdir(parents=True)
    return path


def test_reddit_is_that_of_dgl(tmp_path, served, monkeypatch):
    pytest.importorskip("dgl")
    folder, address, asked = served
    monkeypatch.setenv("DGL_REPO", address)
    graph = generate_graph(60, 300, 3, 4, seed=1)
    kinds = graph.train.int() + 2 * graph.val.int() + 3 * graph.test.int()
    np.savez(tmp_path / "reddit_data.npz", feature=graph.features, label=graph.labels, node_types=kinds)
    ends = graph.src.numpy(), graph.dst.numpy()
    adjacency = sp.coo_matrix((np.ones(300), ends), shape=(60, 60))
    adjacency = (adjacency + adjacency.T).tocoo()  # as the original; DGL numbers the vertices anew
    sp.save_npz(tmp_path / "reddit_graph.npz", adjacency)
    with zipfile.ZipFile(zip_path(folder / "dataset" / "reddit.zip"), "w") as archive:
        for file in ("reddit_data.npz", "reddit_graph.npz"):
            archive.write(tmp_path / file, file)
    found = FullGraphDataModule("reddit", root=tmp_path / "root", **ALONE).graph
    assert asked == ["/dataset/reddit.zip"]
    # Vertices are told apart by their features, so the numbering can be undone.
    number = torch.cdist(found.features, graph.features).argmin(1)
    assert torch.equal(found.features, graph.features[number])
    for name in ("labels", "train", "val", "test"):
        assert torch.equal(getattr(found, name), getattr(graph, name)[number]), name
    ours = set(zip(number[found.src.long()].tolist(), number[found.dst.long()].tolist(), strict=True))
    assert ours == set(zip(adjacency.row.tolist(), adjacency.col.tolist(), strict=True))


def test_a_set_of_dgl_that_cannot_be_reached_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("dgl")
    monkeypatch.setenv("DGL_REPO", f"http://127.0.0.1:{free_port()}")
    message = (
        "source must be a set that dgl can download and read, got 'cora: .*Connection refused.*; connect this machine"
    )
    with pytest.raises(DataError, match=message):
        FullGraphDataModule("cora", root=tmp_path).prepare_data()


def test_without_dgl_its_sets_are_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(InvalidArgumentError, match="source must be other than a set of dgl without dgl, got 'cora'"):
        FullGraphDataModule("cora", root=tmp_path).prepare_data()


@pytest.mark.parametrize("form", ["npz", "pyg"])
def test_one_of_several_splits_is_chosen(tmp_path, form):
    from torch_geometric.data import Data

    graph = generate_graph(60, 200, seed=5)
    splits = {f"{name}_mask": getattr(graph, name) for name in ("train", "val", "test")}
    turned = {name: torch.stack([mask, mask.flip(0)], dim=1) for name, mask in splits.items()}
    edges = torch.stack([graph.src, graph.dst])
    if form == "npz":
        source = tmp_path / "graph.npz"
        np.savez(source, edge_index=edges, features=graph.features, labels=graph.labels, **turned)
    else:
        source = Data(graph.features, edges.long(), y=graph.labels, **turned)
    same(FullGraphDataModule(source, split=0, **ALONE).graph, graph)
    second = FullGraphDataModule(source, split=1, **ALONE).graph
    assert torch.equal(second.train, graph.train.flip(0))
    for wrong in (None, 2):
        message = f"train_mask must be one of 2 splits, got 'split={wrong}'; give FullGraphDataModule"
        with pytest.raises(DataError, match=message):
            FullGraphDataModule(source, split=wrong).setup()


def test_a_split_of_a_source_that_has_one_is_refused(tmp_path):
    graph = generate_graph(60, 200, seed=5)
    save_graph(tmp_path / "folder", graph)
    for source in (graph, tmp_path / "folder", "synthetic"):
        with pytest.raises(InvalidArgumentError, match="split must be left out with names, folders and Graphs, got 1"):
            FullGraphDataModule(source, split=1).setup()
    with pytest.raises(InvalidArgumentError, match="split must be an integer of at least 0, got -1"):
        FullGraphDataModule(graph, split=-1)
