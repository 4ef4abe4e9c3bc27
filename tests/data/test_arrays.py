"""What users give as columns: taken as it is, or refused where NumPy or torch would change it without a word."""

import datetime
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data, TemporalData

from lightning_tgnn import EventStore
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.arrays import as_array, as_numbers, as_whole, digest_of_some
from lightning_tgnn.data.graphs.sources.graph_objects import read_graph
from lightning_tgnn.data.snapshots.sources.graph_lists import from_graphs
from lightning_tgnn.data.sources.open_events import read_source

SRC, DST, TIME = [7, 9, 7], [9, 8, 10], [1.0, 2.0, 3.0]
IMAGINARY = 1j * torch.ones(3, 2)
MASKED = np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0])
ENDS = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
VERTICES = {
    "x": torch.ones(6, 2),
    "y": torch.arange(6) % 2,
    "train_mask": torch.arange(6) < 2,
    "val_mask": torch.arange(6) == 2,
    "test_mask": torch.arange(6) > 3,
}


def test_values_are_those_that_were_given():
    given = torch.tensor([[1.0, -2.0], [3.0, 4.5]])
    for values in (
        given.tolist(),
        given.numpy(),
        given.numpy().astype(">f4"),
        given.clone().requires_grad_(),
        given.bfloat16(),
        torch.complex(torch.zeros(2, 2), -given).conj().imag,  # a view that is negated when it is read
        np.ma.masked_array(given.numpy(), mask=False),
        given.t().contiguous().t(),
        given.flip(0).numpy()[::-1],  # of negative strides
        pd.DataFrame(given.numpy()),
    ):
        np.testing.assert_array_equal(as_array("it", values), given.numpy())
        assert torch.equal(as_numbers("it", values).float(), given)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (IMAGINARY, "it must be real numbers, got 'complex ones'"),
        (np.array([1j]), "it must be real numbers"),
        (MASKED, "it must be without masked values"),
        (torch.ones(3).to_sparse(), r"it must be dense, got 'torch.sparse_coo'; call .to_dense\(\)"),
        (torch.ones(3, device="meta"), "it must be a tensor with values"),
        ([[1], [2, 3]], "it must be numbers or ids, every row as long"),
        (["a", float("nan")], r"it\[1\] must be a text as others are, got nan; convert all of them, or drop that row"),
        ((1, "a"), r"it\[0\] must be a text as others are, got 1"),
        (["a", b"b"], r"it\[1\] must be a text as others are, got b'b'"),
        (["a", np.array(3)], r"it\[1\] must be a text as others are, got array\(3\)"),
        (torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "it must be numbers or ids"),
    ],
)
def test_what_would_change_is_refused(values, message):
    with pytest.raises(DataError, match=message):
        as_array("it", values)


def test_fields_of_records_are_numbers():
    records = np.zeros(3, [("a", "i4"), ("x", "f8")])
    records["x"] = TIME
    assert as_numbers("it", records["x"]).tolist() == TIME
    assert as_numbers("it", torch.tensor(TIME).to(torch.float8_e4m3fn)).tolist() == TIME


def test_whole_numbers_have_no_fraction():
    assert as_whole("it", [1.0, 2.0]).tolist() == [1, 2]
    with pytest.raises(DataError, match=r"it must be of whole numbers, got 1.5; give integers"):
        as_whole("it", [1.0, 1.5])
    with pytest.raises(DataError, match="it must be of whole numbers"):
        as_whole("it", np.array([2**63], np.uint64))
    with pytest.raises(DataError, match="it must be of numbers, got '<U1'"):
        as_numbers("it", ["a"])


@pytest.mark.parametrize("column", ["src", "dst", "time", "edge_features", "labels", "node_ids"])
@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.ma.masked_array([1, 2, 0], mask=[0, 1, 0]), "without masked values"),
        ([np.ma.masked_array([1], mask=[1]), [2], [0]], "without masked values"),
        (torch.tensor([1, 2, 0]).to_sparse(), "dense"),
        (torch.empty(3, device="meta"), "a tensor with values"),
        ([[1], [2, 3], [4]], "numbers or ids, every row as long"),
        (1j * torch.ones(3), "real numbers"),
        ((1j * torch.ones(3)).conj(), "real numbers"),
    ],
)
def test_no_column_of_a_stream_is_changed(column, values, why):
    columns = {"src": [0, 1, 2], "dst": [1, 2, 0], "time": TIME}
    with pytest.raises(DataError, match=f"{column} must be {why}"):
        EventStore.from_arrays(**columns | {column: values})


def test_labels_are_those_of_tensors():
    of = partial(EventStore.from_arrays, SRC, DST, TIME)
    for labels in (torch.tensor(TIME, requires_grad=True), torch.tensor(TIME, dtype=torch.bfloat16)):
        assert of(labels=labels).labels.tolist() == TIME
    with pytest.raises(DataError, match=r"labels\[1\] must be finite, got 'inf'"):
        of(labels=np.array([0, np.longdouble("1e400"), 0], np.longdouble))


def test_missing_texts_are_no_ids():
    texts = np.array(["a", None, "c"], np.dtypes.StringDType(na_object=None))
    with pytest.raises(DataError, match="src must be integers or strings"):
        EventStore.from_arrays(texts, ["a", "b", "c"], TIME)
    for node_ids in ((str(number) for number in range(3)), [[1], [2, 3], [4]]):
        with pytest.raises(DataError, match="node_ids must be"):
            EventStore.from_arrays([0, 1, 2], [1, 2, 0], TIME, node_ids=node_ids)
    for missing in (float("nan"), np.float32("nan"), None):
        with pytest.raises(DataError, match=r"src(\[1\])? must be (a text|integers or strings)"):
            EventStore.from_arrays(["a", missing, "c"], ["a", "b", "c"], TIME)


NAMES = {"src": "s", "dst": "d", "time": "t"}


@pytest.mark.parametrize("form", ["pandas", "arrow", "pandas of arrow"])
def test_categories_keep_their_type(form):
    def table(src, dst):
        if form == "pandas of arrow":
            value_type = pa.array(src).type
            kind = pd.ArrowDtype(pa.dictionary(pa.int32(), value_type))
            columns = {"s": pd.Series(src, dtype=kind), "d": pd.Series(dst, dtype=kind)}
            return pd.DataFrame(columns | {"t": TIME[: len(src)]})
        if form == "pandas":
            return pd.DataFrame({"s": pd.Categorical(src), "d": pd.Categorical(dst), "t": TIME[: len(src)]})
        columns = {"s": pa.array(src).dictionary_encode(), "d": pa.array(dst).dictionary_encode()}
        return pa.table(columns | {"t": TIME[: len(src)]})

    numbers = read_source(table([10, 9, 10], [9, 10, 9]), columns=NAMES, bipartite=False)
    assert (numbers.node_ids.tolist(), numbers.src.tolist()) == ([9, 10], [1, 0, 1])
    texts = read_source(table(["b", "a", "b"], ["a", "c", "a"]), columns=NAMES, bipartite=False)
    assert (texts.node_ids.tolist(), texts.src.tolist()) == (["a", "b", "c"], [1, 0, 1])
    assert read_source(table([10, 9], [9, 10]), columns=NAMES, bipartite=False).node_ids.tolist() == [9, 10]
    dates = [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2)]
    for values in ([1.5, 2.5], dates) if form != "pandas of arrow" else ([1.5, 2.5],):
        with pytest.raises(DataError, match="must be integers or strings"):
            read_source(table(values, values), columns=NAMES, bipartite=False)


def test_dates_of_arrow_are_seconds_whatever_their_width():
    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]
    for kind in (pa.date32(), pa.date64()):
        table = pa.table({"s": [1, 2], "d": [2, 1], "t": pa.array(days, kind)})
        assert read_source(table, columns=NAMES, bipartite=False).time.tolist() == [1704067200, 1704153600]
    noon = pa.array([43_200_000, 43_200_500]).cast(pa.date64(), safe=False)
    assert read_source(
        pa.table({"s": [1, 2], "d": [2, 1], "t": noon}), columns=NAMES, bipartite=False
    ).time.tolist() == [43200, 43200.5]


def temporal(**columns):
    return TemporalData(**{"src": torch.tensor(SRC), "dst": torch.tensor(DST), "t": torch.tensor(TIME), **columns})


def test_a_temporal_data_may_hold_arrays_of_numpy():
    store = read_source(temporal(src=np.array(SRC), msg=np.full((3, 2), 7.0), y=np.array([1, 0, 1])))
    assert store.edge_features.tolist() == [[7, 7]] * 3
    assert store.labels.tolist() == [1, 0, 1]
    assert read_source(temporal(t=torch.tensor(TIME, dtype=torch.bfloat16))).time.tolist() == TIME
    wrong = {"msg": IMAGINARY, "y": MASKED, "t": torch.ones(3).to_sparse(), "src": np.array(["a", "b", "c"])}
    for name, values in [*wrong.items(), ("msg", 3), ("src", np.array([1, None, 2]))]:
        with pytest.raises(DataError, match=f"{name} must be"):
            read_source(temporal(**{name: values}))


def test_the_edge_index_of_a_graph_has_two_rows():
    assert read_graph(Data(edge_index=ENDS, **VERTICES)).dst.tolist() == [1, 2, 3, 4]
    for ends in (ENDS.t().contiguous(), torch.cat([ENDS, ENDS]), ENDS[0]):
        with pytest.raises(DataError, match=r"edge_index must be of shape \[2, E\]"):
            read_graph(Data(edge_index=ends, **VERTICES))
        with pytest.raises(DataError, match=r"edge_index of snapshot 0 must be of shape \[2, E\]"):
            from_graphs([Data(edge_index=ends, num_nodes=6)])
    with pytest.raises(DataError, match="edge_index must be of numbers, got '<U1'; convert them"):
        read_graph(Data(edge_index=np.array([["a"], ["b"]]), **VERTICES))
    with pytest.raises(DataError, match="edge_index must be of integers, got 'bool'"):
        read_graph(Data(edge_index=torch.ones(2, 2).bool(), **VERTICES))
    with pytest.raises(DataError, match="edge_index must be a tensor with values"):
        read_graph(Data(edge_index=ENDS.to("meta"), **VERTICES))


def snapshots(**columns):
    return [Data(**{"edge_index": ENDS, "num_nodes": 6, **columns})] * 2


def test_snapshots_may_hold_arrays_of_numpy():
    columns = {"x": np.full((6, 2), 7.0), "edge_weight": np.arange(4.0), "edge_type": np.arange(4), "y": np.arange(6)}
    columns["x"].flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = from_graphs(snapshots(edge_index=ENDS.numpy(), label="fraud", w=2.0, **columns))
    assert read.features[0].tolist() == [[7, 7]] * 6
    assert read.weights.tolist() == [0, 1, 2, 3] * 2
    assert read.relations.tolist() == [0, 1, 2, 3] * 2
    assert read.vertex_labels.tolist() == [list(range(6))] * 2
    assert read.dst.tolist() == ENDS[1].tolist() * 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"edge_index": ENDS + 0.5}, "edge_index of snapshot 0 must be of whole numbers, got 0.5"),
        ({"edge_type": [0.7, 1.9, 0.0, 1.0]}, "types of edges must be of whole numbers, got 0.7"),
        ({"edge_weight": 1j * torch.ones(4)}, "weights of edges must be real numbers"),
        ({"x": torch.ones(6, 2).to_sparse()}, "features of vertices must be dense"),
        ({"time": torch.arange(4)}, r"time of snapshot 0 must be one number, got \[4\]"),
        ({"time": "noon"}, "time of snapshot 0 must be of numbers"),
        ({"time": datetime.datetime(2024, 1, 1)}, "time of snapshot 0 must be of numbers"),
    ],
)
def test_what_a_snapshot_would_lose_is_refused(columns, message):
    with pytest.raises(DataError, match=message):
        from_graphs(snapshots(**columns))


@pytest.fixture
def dgl():
    return pytest.importorskip("dgl")


def dgl_graph(graph=None, **edges):
    import dgl

    graph = graph or dgl.graph((torch.tensor(SRC), torch.tensor(DST)))
    for name, values in ({"time": torch.tensor(TIME)} | edges).items():
        graph.edata[name] = values
    return graph


@pytest.mark.parametrize("length", [0, 1, 2, 255, 256, 257, 100_000])
def test_a_digest_reads_the_first_and_the_last_row_and_some_between(length):
    column = torch.arange(length * 2.0).view(length, 2)
    digests = {digest_of_some(column), digest_of_some(column, column[:, :1]), digest_of_some(column[:, :1])}
    rows = {0, length - 1} | (set(range(length)) if length <= 256 else set()) if length else set()
    for row in rows:
        changed = column.clone()
        changed[row, 1] += 1
        digests.add(digest_of_some(changed))
    assert len(digests) == 3 + len(rows)
    assert digest_of_some(column.clone(), None) == digest_of_some(column)
    assert digest_of_some(None) is None


def test_a_graph_of_dgl_is_read_in_every_form_and_with_any_names(dgl):
    wanted = read_source(dgl_graph())
    assert read_source(dgl_graph().formats("csc")).dst.tolist() == wanted.dst.tolist() == DST
    assert read_source(dgl_graph(time=torch.tensor(TIME).view(3, 1))).time.tolist() == TIME
    assert read_source(dgl_graph(dgl.graph(([0], [1])), time=torch.ones(1))).time.tolist() == [1]
    features = torch.ones(3, 2)
    assert read_source(dgl_graph(feat=features), columns={"edge_features": None}).edge_features is None
    assert read_source(dgl_graph(feat=features)).edge_features.tolist() == features.tolist()
    for columns in ({"time": ["time"]}, {"edge_features": "feat"}, ["time"], {"when": "time"}):
        with pytest.raises(InvalidArgumentError, match="columns must be a mapping of time, label, edge_features for a"):
            read_source(dgl_graph(feat=features), columns=columns)
    with pytest.raises(DataError, match=r"edata\['feat'\] must be real numbers"):
        read_source(dgl_graph(feat=IMAGINARY))


def test_what_nothing_reads_of_a_graph_object_is_named(dgl):
    with pytest.warns(UserWarning, match="source, a TemporalData: nothing reads n_id, x$"):
        read_source(temporal(x=torch.ones(9, 2), n_id=torch.ones(3), y=torch.ones(3)))
    graph = dgl_graph(w=torch.ones(3), feat=torch.ones(3, 2))
    graph.ndata["age"] = torch.ones(graph.num_nodes())
    graph.edata["_ID"] = torch.arange(3)
    with pytest.warns(UserWarning, match=r"source, a DGLGraph: nothing reads edata\['w'\], ndata\['age'\]$"):
        read_source(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_source(dgl_graph(feat=torch.ones(3, 2), label=torch.ones(3)))


def test_graphs_of_dgl_whose_vertices_have_several_kinds_of_numbers_are_refused(dgl):
    ends = ([0, 1, 2], [0, 0, 1])
    with pytest.raises(DataError, match="source must be a DGLGraph that is no block, got 'a block'"):
        read_source(dgl_graph(dgl.create_block(ends)))
    two = dgl.heterograph({("u", "r", "i"): ends})
    assert read_source(dgl_graph(two)).num_nodes == 5
    with pytest.raises(DataError, match="source must be a DGLGraph with one type of vertices and edges"):
        read_graph(two)
    with pytest.raises(DataError, match=r"one type of vertices and edges, got .* in snapshot 1"):
        from_graphs([dgl.graph(ends), two])
    assert from_graphs([dgl.graph(ends).formats("csc")]).src.tolist() == [0, 1, 2]
