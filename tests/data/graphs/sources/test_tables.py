"""Static graphs of two tables, of the edges and of the vertices."""

import pandas as pd
import pytest
import torch

from lightning_tgnn import FullGraphDataModule
from lightning_tgnn.checks import DataError
from lightning_tgnn.commands.shared.kinds import kind_of

EDGES = {"src": ["a", "b", "a", "c"], "dst": ["b", "a", "c", "c"]}
VERTICES = {
    "id": ["a", "b", "c", "d"],
    "label": [0, 1, 1, None],
    "split": ["train", "val", "test", None],
    "age": [1.0, 2.0, 3.0, 4.0],
    "size": [5, 6, 7, 8],
}


def written(folder, edges, vertices, ending=".csv"):
    folder.mkdir()
    for name, columns in (("edges", edges), ("vertices", vertices)):
        table, path = pd.DataFrame(columns), folder / f"{name}{ending}"
        table.to_parquet(path) if ending == ".parquet" else table.to_csv(path, index=False)
    return folder


def read(folder):
    return FullGraphDataModule(folder, undirected=False, self_loops=False, standardize_features=False).graph


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_tables_are_read(tmp_path, ending):
    graph = read(written(tmp_path / "graph", EDGES | {"weight": [0.5, 1.5, 2.5, 3.5]}, VERTICES, ending))
    assert [graph.src.tolist(), graph.dst.tolist()] == [[0, 1, 0, 2], [1, 0, 2, 2]]
    assert graph.features.tolist() == [[1, 5], [2, 6], [3, 7], [4, 8]]
    assert graph.labels.tolist() == [0, 1, 1, -1]
    assert [mask.nonzero().tolist() for mask in (graph.train, graph.val, graph.test)] == [[[0]], [[1]], [[2]]]
    assert graph.edge_weights.tolist() == [0.5, 1.5, 2.5, 3.5]


def test_without_ids_edges_name_rows_and_several_labels_are_columns(tmp_path):
    several = {"label_0": [1, 0, 1, None], "label_1": [1, 1, 0, None]}
    vertices = {name: column for name, column in VERTICES.items() if name not in ("id", "label")} | several
    with pytest.warns(UserWarning, match="nothing reads the column"):
        graph = read(written(tmp_path / "graph", {"src": [0, 3], "dst": [1, 2], "when": [5, 6]}, vertices))
    assert [graph.src.tolist(), graph.dst.tolist()] == [[0, 3], [1, 2]]
    assert graph.labels.tolist() == [[1, 1], [0, 1], [1, 0], [-1, -1]]
    assert graph.edge_weights is None


@pytest.mark.parametrize(
    ("edges", "vertices", "message"),
    [
        ({"dst": None}, {}, "edges must be with dst, got 'src'; add or rename a column"),
        ({}, {"label": None}, "vertices must be with label, got 'id, split, age, size'"),
        ({}, {"age": None, "size": None}, "vertices must be with features, got 'id, label, split'"),
        ({}, {"label_0": [1, 0, 1, 0]}, "columns of labels must be label alone, or label_0, label_1 and so on"),
        ({}, {"label": None, "label_1": [1, 0, 1, 0]}, "columns of labels must be label alone, or label_0, label_1"),
        ({}, {"split": ["train", "val", "exam", None]}, "split must be train, val, test or empty, got 'exam'"),
        ({}, {"id": ["a", "b", "c", "a"]}, "id must be different for each vertex, got 'a'"),
        ({}, {"id": ["a", "b", "c", None]}, "id must be different for each vertex, got 'none'"),
        ({"src": ["a", "b", None, "c"]}, {}, "src must be of ids of vertices, got 'none'; give every vertex a row"),
        ({"dst": ["b", "a", "c", "e"]}, {}, "dst must be of ids of vertices, got 'e'; give every vertex a row"),
        ({}, {"label": [0.5, 1, 1, None]}, "label must be of whole numbers, got 0.5"),
        ({}, {"age": ["old", "new", "new", "new"]}, 'age must be of numbers, got "could not convert'),
        ({"weight": [1, 0, 1, 1]}, {}, "edge_weights must be finite and above 0, got 0"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, edges, vertices, message):
    tables = [
        {name: column for name, column in (given | other).items() if column is not None}
        for given, other in ((EDGES, edges), (VERTICES, vertices))
    ]
    with pytest.raises(DataError) as refused:
        read(written(tmp_path / "graph", *tables))
    assert message in str(refused.value)


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("per_edge", "per_vertex"),
    [(["1", "2"], ["1", "2", "x3"]), (["007", "NA"], ["007", "NA", "7"]), ([5, 6], [5, 6, 7])],
)
def test_ids_are_compared_as_texts(tmp_path, ending, per_edge, per_vertex):
    vertices = {"id": per_vertex, "split": ["train", "val", "test"], "label": [0, 1, 0], "age": [1.0, 2.0, 3.0]}
    graph = read(written(tmp_path / "graph", {"src": per_edge[:1], "dst": per_edge[1:]}, vertices, ending))
    assert [graph.src.tolist(), graph.dst.tolist()] == [[0], [1]]


def test_an_index_of_pandas_is_a_column(tmp_path):
    folder = written(tmp_path / "graph", {"src": [0, 1], "dst": [1, 2]}, VERTICES, ".parquet")
    table = pd.DataFrame(VERTICES | {"id": [2, 1, 0, 3]}).set_index("id")
    table["split"] = table["split"].astype("category")
    table.to_parquet(folder / "vertices.parquet")
    graph = read(folder)
    assert [graph.src.tolist(), graph.dst.tolist()] == [[2, 1], [1, 0]]


def test_many_labels_come_in_the_order_of_their_numbers(tmp_path):
    labels = {f"label_{number}": pd.array([number == 10, True, True, None], "boolean") for number in (0, 1, 10, 2, 3)}
    labels |= {f"label_{number}": [0, 1, 1, None] for number in range(4, 10)} | {"label_checked": [1, 2, 3, 4]}
    vertices = {"split": ["train", "val", "test", None]} | labels
    graph = read(written(tmp_path / "graph", {"src": [0], "dst": [1]}, vertices, ".parquet"))
    assert graph.labels[0].tolist() == [0] * 10 + [1]
    assert graph.labels[3].tolist() == [-1] * 11
    assert graph.features.tolist() == [[1], [2], [3], [4]]


@pytest.mark.parametrize("header", ["id,,split,x", "id,label,label,split"])
def test_columns_without_a_name_of_their_own_are_refused(tmp_path, header):
    folder = written(tmp_path / "graph", EDGES, VERTICES)
    (folder / "vertices.csv").write_text(f"{header}\na,1,train,3\n")
    with pytest.raises(DataError, match="must be a table with a different name for each column, got"):
        read(folder)


def test_the_commands_take_tables_for_a_graph(tmp_path):
    folder = written(tmp_path / "graph", EDGES | {"time": [1, 2, 3, 4]}, VERTICES)
    assert kind_of(str(folder)) == "graph"


def test_one_table_for_each_is_needed(tmp_path):
    folder = written(tmp_path / "graph", EDGES, VERTICES)
    (folder / "vertices.csv").rename(folder / "nodes.csv")
    with pytest.raises(DataError, match="must be a folder with one table of the vertices, got 'none'"):
        read(folder)
    (folder / "vertices.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match="must be a table of Parquet"):
        read(folder)


def test_edges_of_tables_take_the_options(tmp_path):
    folder = written(tmp_path / "graph", EDGES | {"weight": [0.5, 1.5, 2.5, 3.5]}, VERTICES)
    graph = FullGraphDataModule(folder).graph
    weights = dict(zip(zip(graph.src.tolist(), graph.dst.tolist(), strict=True), graph.edge_weights, strict=True))
    # Both directions of 0 - 1 were there, 0 - 2 in one; the loop of 2 had a weight.
    wanted = {(0, 1): 1.0, (1, 0): 1.0, (0, 2): 2.5, (2, 0): 2.5, (0, 0): 1.0, (1, 1): 1.0, (2, 2): 3.5, (3, 3): 1.0}
    assert weights == pytest.approx(wanted)
    torch.testing.assert_close(graph.weights("row")[graph.dst == 2].sum(), torch.tensor(1.0))
