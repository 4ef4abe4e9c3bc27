"""OGB's node-property folders, in both of their forms."""

import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lightning_tgnn import FullGraphDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data import Graph, generate_graph
from lightning_tgnn.data.graphs.sources.ogb_folder import convert_ogb
from lightning_tgnn.files.npz_stream import npz_stream
from tests.data.example_graphs import parts, same, write_ogb, write_table

FORMS = {"tables": {}, "archives": {"archives": True}, "archives by columns": {"archives": True, "order": "F"}}


def opened(folder):
    return FullGraphDataModule(folder, undirected=False, self_loops=False).graph


@pytest.fixture
def graph():
    """With vertices in no split and without a label."""
    made = generate_graph(200, 1500, 4, 6, seed=1)
    made.labels[torch.arange(200)[made.test][:5]] = -1
    made.test[made.labels < 0] = False
    return made


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("piece", [1 << 22, 96])
def test_both_forms_give_the_graph(tmp_path, graph, form, piece, monkeypatch):
    monkeypatch.setattr("lightning_tgnn.data.graphs.sources.ogb_folder._VALUES_PER_PIECE", piece)
    found = opened(write_ogb(tmp_path / "set", graph, **FORMS[form]))
    same(found, graph)
    assert torch.equal(found.src.long(), graph.src)
    assert found.src.dtype == torch.int32
    assert int((found.train | found.val | found.test).sum()) == 195
    assert found.info() == graph.info()


def test_a_folder_is_converted_once(tmp_path, graph):
    folder = write_ogb(tmp_path / "set", graph)
    converted = convert_ogb(folder)
    assert converted == folder / "graph"
    before = (converted / "src.npy").stat()
    (folder / "raw" / "edge.csv.gz").unlink()
    assert convert_ogb(folder) == converted
    same(opened(folder), graph)
    assert (converted / "src.npy").stat().st_mtime_ns == before.st_mtime_ns
    assert sorted(path.name for path in folder.iterdir()) == ["graph", "raw", "split"]


def damaged(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = b""
    path.write_bytes(data)


def flipped(path):
    """One byte of the first member's values is another: only the checksum tells."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:  # not compressed, so that the byte can be found
        for name, data in held.items():
            archive.writestr(name, data)
    data = bytearray(path.read_bytes())
    data[data.index(held["edge_index.npy"]) + 140] ^= 1
    path.write_bytes(data)


TABLES = [
    (lambda f: (f / "raw/edge.csv.gz").unlink(), "edge.csv.gz must be a table, got 'no such file'; take the folder"),
    (lambda f: damaged(f / "raw/edge.csv.gz"), "edge.csv.gz must be a table of int64, got .*; download it again"),
    (lambda f: write_table(f / "raw/edge.csv.gz", [(0, 1, 2)]), "edge.csv.gz must be a table of 2 columns, got 3"),
    (lambda f: write_table(f / "raw/edge.csv.gz", [(0, "x")]), "edge.csv.gz must be a table of int64, got .*x"),
    (lambda f: write_table(f / "raw/edge.csv.gz", []), "edge.csv.gz must be a table of int64, got 'No columns"),
    (lambda f: write_table(f / "raw/edge.csv.gz", [(0, 4)]), "dst must be vertices 0 .. 3, the rows of the features"),
    (lambda f: write_table(f / "raw/edge.csv.gz", [(2**32, 1)]), "src must be vertices 0 .. 3, .* got 4294967296"),
    (
        lambda f: write_table(f / "raw/node-feat.csv.gz", [(0, 1)] * 2),
        "src must be vertices 0 .. 1, the rows of the fe",
    ),
    (lambda f: write_table(f / "raw/node-feat.csv.gz", [(0, "nan")] * 4), "features must be finite, got 'NaN or inf"),
    (
        lambda f: write_table(f / "raw/node-label.csv.gz", [(0, 1)] * 4),
        "label.csv.gz must be a table of 1 columns, got 2",
    ),
    (lambda f: write_table(f / "raw/node-label.csv.gz", [0.5] * 4), "label.csv.gz must be of whole numbers, got 0.5"),
    (lambda f: write_table(f / "raw/node-label.csv.gz", ["inf"] * 4), "label.csv.gz must be of whole numbers, got inf"),
    (lambda f: write_table(f / "raw/node-label.csv.gz", [0] * 3), r"labels must be one for each of 4 .* got \[3\]"),
    (
        lambda f: write_table(f / "raw/num-node-list.csv.gz", [4, 4]),
        "num-node-list.csv.gz must be of one graph, got '2 g",
    ),
    (lambda f: write_table(f / "split/time/valid.csv.gz", [4]), "valid.csv.gz must be vertices 0 .. 3, got 4"),
    (lambda f: write_table(f / "split/time/valid.csv.gz", [0]), "train and val mask must be without a vertex in both"),
    (
        lambda f: write_table(f / "split/time/valid.csv.gz", []),
        "valid.csv.gz must be a table of int64, got 'No columns",
    ),
    (lambda f: (f / "split/time/test.csv.gz").unlink(), "test.csv.gz must be a table, got 'no such file'"),
    (lambda f: (f / "split/time/train.csv.gz").unlink(), "a folder with one split/<name>/train.csv.gz, got 'none'"),
    (
        lambda f: write_table(f / "split/more/train.csv.gz", [0]),
        r"with one split/.*, got \['split/more', 'split/time'\]",
    ),
]
ARCHIVES = [
    (lambda f: (f / "raw/node-label.npz").unlink(), "node-label.npz must be an archive, got 'no such file'"),
    (lambda f: damaged(f / "raw/data.npz"), "data.npz must be a complete archive of numbers, got .*; download"),
    (lambda f: damaged(f / "raw/node-label.npz"), "node-label.npz must be a complete archive of numbers, got"),
    (lambda f: flipped(f / "raw/data.npz"), "data.npz must be a complete archive of numbers, got .Bad CRC-32"),
    (lambda f: save(f, edge_index=None), "data.npz must be an archive with edge_index, got 'node_feat'"),
    (
        lambda f: save(f, edge_index=np.zeros((3, 4), int)),
        r"edge_index of .* must be integers \[2, E\], got 'int64 \[3, 4\]'",
    ),
    (
        lambda f: save(f, edge_index=np.zeros((2, 4))),
        r"edge_index of .* must be integers \[2, E\], got 'float64 \[2, 4\]'",
    ),
    (lambda f: save(f, edge_index=np.zeros((2, 0), int)), "edges must be at least one, got 0"),
    (
        lambda f: save(f, edge_index=np.array([["a"], ["b"]])),
        "complete archive of numbers, got 'edge_index.npy holds <U1",
    ),
    (lambda f: save(f, node_feat=np.zeros(4)), r"node_feat of .* must be \[N, F\], by rows, got '\[4\]'"),
    (lambda f: save(f, node_feat=np.zeros((4, 2), order="F")), r"node_feat of .* by rows, got '\[4, 2\], by columns'"),
    (
        lambda f: save(f, node_feat=np.full((4, 2), np.nan)),
        "features must be finite, got 'NaN or infinity at vertex 0'",
    ),
    (lambda f: save(f, node_feat=np.zeros((2, 2))), "must be vertices 0 .. 1, the rows of the features, got 2"),
    (lambda f: save_labels(f, np.zeros((4, 2))), r"node-label.npz must be one label for each vertex, got \[4, 2\]"),
    (lambda f: save_labels(f, np.full((4, 1), -2.0)), "labels must be classes from 0, or -1, got -2"),
]


def save(folder, **changed):
    index = np.stack([parts()["src"], parts()["dst"]])
    held = {"edge_index": index, "node_feat": parts()["features"].numpy()} | changed
    np.savez(folder / "raw/data.npz", **{name: value for name, value in held.items() if value is not None})


def save_labels(folder, labels):
    np.savez(folder / "raw/node-label.npz", node_label=labels)


CASES = [(False, *case) for case in TABLES] + [(True, *case) for case in ARCHIVES]


@pytest.mark.parametrize(("archives", "spoil", "message"), CASES, ids=[case[2][:40] for case in CASES])
def test_folders_that_must_not_be_trained_on_are_refused(tmp_path, archives, spoil, message):
    folder = write_ogb(tmp_path / "set", Graph(**parts()), archives=archives)
    spoil(folder)
    with pytest.raises(DataError, match=message):
        convert_ogb(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["raw", "split"], "nothing half done is left"


def test_a_folder_without_split_and_one_of_something_else_are_refused(tmp_path):
    (tmp_path / "raw").mkdir()
    with pytest.raises(DataError, match=r"a folder with one split/<name>/train.csv.gz, got 'none'; take the folder"):
        opened(tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(
        DataError, match=r"source must be a graph folder, a folder of tables or an OGB folder, got '.*other'; give the"
    ):
        opened(tmp_path / "other")


def test_setup_only_reads(tmp_path, graph):
    """Under a trainer it is prepare_data that converts, on one process."""
    folder = write_ogb(tmp_path / "set", graph)
    data = FullGraphDataModule(folder)
    data.trainer = object()
    with pytest.raises(
        InvalidArgumentError, match=r"source must be prepared in .*set/graph, got .*; call the DataModule's"
    ):
        data.setup()
    data.prepare_data()
    data.setup()


@given(
    values=arrays.arrays(np.float32, arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9)),
    count=st.integers(1, 20),
    by_columns=st.booleans(),
)
def test_streamed_values_are_those_of_the_array(tmp_path_factory, values, count, by_columns):
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    order = "F" if by_columns else "C"
    np.savez_compressed(path, a=np.asarray(values, order=order))
    with npz_stream(path, "a") as stream:
        found = np.concatenate([np.zeros(0, np.float32), *stream.values(count)])
    order = "F" if stream.fortran_order else "C"
    np.testing.assert_array_equal(found.reshape(stream.shape, order=order), values)
