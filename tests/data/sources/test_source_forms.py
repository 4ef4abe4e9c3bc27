"""Every form of a source: the same stream gives the same events, split and metrics; bad forms are refused."""

import datetime
import decimal
import pickle
import warnings

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lightning_tgnn import EventStore, FullGraphDataModule, LinkPrediction, SnapshotDataModule, TemporalDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data import generate_graph, read_events, save_graph
from lightning_tgnn.data.readers.frame import frame_table

EVENTS = 120
ZONES = [datetime.timezone(datetime.timedelta(hours=hours)) for hours in range(3)]
dgl = pytest.importorskip("dgl")
TemporalData = pytest.importorskip("torch_geometric.data").TemporalData


@pytest.fixture(scope="module")
def table():
    """Users 0 .. 9 and items 10 .. 14, each of them in an event, sorted by time, with ties."""
    random = np.random.default_rng(5)
    ends = {"src": np.arange(EVENTS) * 7 % 10, "dst": random.permutation(np.arange(EVENTS) % 5) + 10}
    time = np.sort(random.integers(0, 60, EVENTS)) * 0.5
    return pd.DataFrame(ends | {"time": time, "f0": random.normal(size=EVENTS), "f1": random.normal(size=EVENTS)})


def features(table):
    return table[["f0", "f1"]].to_numpy(np.float32)


def tgl(table, folder, nodes=15):
    folder.mkdir()
    table[["src", "dst", "time"]].assign(ext_roll=0).to_csv(folder / "edges.csv")
    torch.save(torch.from_numpy(features(table)), folder / "edge_features.pt")
    if nodes:
        torch.save(torch.ones(nodes, 3, dtype=torch.bool), folder / "node_features.pt")
    return folder


def temporal_data(table):
    columns = {
        name: torch.from_numpy(table[key].to_numpy()) for name, key in (("src", "src"), ("dst", "dst"), ("t", "time"))
    }
    return TemporalData(**columns, msg=torch.from_numpy(features(table)))


def dgl_graph(table, **edata):
    ends = torch.from_numpy(table["src"].to_numpy()), torch.from_numpy(table["dst"].to_numpy())
    graph = dgl.graph(ends, num_nodes=15)
    graph.edata["feat"] = torch.from_numpy(features(table))
    for name, column in (edata or {"t": "time"}).items():
        graph.edata[name] = torch.from_numpy(table[column].to_numpy())
    return graph


def forms(table, folder):
    """Return source and options of every form."""
    named = {"columns": {"src": "src", "dst": "dst", "time": "time", "edge_features": ["f0", "f1"]}}
    table.to_csv(folder / "events.csv", index=False)
    table[["src", "dst", "time", "f0", "f1"]].to_csv(folder / "events.txt", sep=" ", header=False, index=False)
    table.to_parquet(folder / "events.parquet")
    rest = {"columns": {"src": "src", "dst": "dst", "time": "time", "edge_features": "rest"}}
    table.set_index(table.index + 5).to_parquet(folder / "indexed.parquet")
    jodie = table.assign(dst=table["dst"] - 10, state_label=0)[["src", "dst", "time", "state_label", "f0", "f1"]]
    jodie.columns = ["user_id", "item_id", "timestamp", "state_label", "f0", "f1"]
    jodie.to_csv(folder / "jodie.csv", index=False)
    store = EventStore.from_arrays(table["src"], table["dst"], table["time"], features(table))
    return {
        "EventStore": (store, {}),
        "saved": (store.save(folder / "saved"), {}),
        "CSV": (folder / "events.csv", named),
        "SNAP": (folder / "events.txt", {"format": "snap"}),
        "JODIE": (folder / "jodie.csv", {}),
        "pandas": (table, named),
        "pandas, nullable": (table.convert_dtypes(), named),
        "pandas, JODIE's names": (jodie, {}),
        "pandas, by position": (table, {"columns": {"src": 0, "dst": 1, "time": 2, "edge_features": [3, 4]}}),
        "pandas, the rest": (table, rest),
        "polars": (polars.DataFrame(dict(table.items())), named),
        "Arrow": (pa.Table.from_pandas(table), named),
        "Arrow, of an index without a name, the rest": (pa.Table.from_pandas(table.set_index(table.index + 5)), rest),
        "Arrow, of an index with a name": (pa.Table.from_pandas(table.set_index("time")), named),
        "Parquet": (str(folder / "events.parquet"), named),
        "Parquet, of an index without a name, the rest": (str(folder / "indexed.parquet"), rest),
        "TGL": (tgl(table, folder / "tgl", nodes=0), {}),
        "TemporalData": (temporal_data(table), {}),
        "DGLGraph": (dgl_graph(table), {}),
        "DGLGraph, by name": (dgl_graph(table, when="time"), {"columns": {"time": "when", "edge_features": ["feat"]}}),
    }


def run(source, options):
    data = TemporalDataModule(
        source, batch_size=30, num_neighbors=3, num_eval_negatives=5, held_out_nodes=0.2, **options
    )
    torch.manual_seed(3)
    task = LinkPrediction("tgn", memory_dim=4, embedding_dim=4, time_dim=4, dropout=0.0)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    trainer.fit(task, datamodule=data)
    return data, trainer.test(task, datamodule=data, verbose=False)[0]


def test_all_forms_give_the_same_events_split_and_metrics(table, tmp_path):
    sources = forms(table, tmp_path)
    expected, metrics = run(*sources.pop("EventStore"))
    assert 0 < metrics["test/ap"] <= 1
    for form, (source, options) in sources.items():
        data, found = run(source, options)
        assert data.store.fingerprint == expected.store.fingerprint, form
        assert torch.equal(data.store.edge_features, expected.store.edge_features), form
        for part in ("train", "val", "test", "unseen", "held_out"):
            assert torch.equal(getattr(data.split, part), getattr(expected.split, part)), (form, part)
        assert found == metrics, form


def test_events_out_of_order_keep_their_features(table, tmp_path):
    shuffled = table.sample(frac=1, random_state=1)
    ordered = shuffled.sort_values("time", kind="stable").reset_index(drop=True)
    sources = forms(shuffled.reset_index(drop=True), tmp_path)
    sources.pop("saved")
    for form, (source, options) in sources.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that they were sorted
            store = TemporalDataModule(source, **options).store
        assert torch.equal(store.edge_features, torch.from_numpy(features(ordered))), form
        assert store.src.tolist() == ordered["src"].tolist(), form


def test_node_features_come_with_tgl_folders_and_dgl_graphs(table, tmp_path):
    store = TemporalDataModule(tgl(table, tmp_path / "tgl", nodes=17)).store
    assert (store.num_nodes, store.node_feature_dim) == (17, 3)
    graph = dgl_graph(table)
    graph.ndata["feat"] = torch.arange(30.0).view(15, 2)
    held = TemporalDataModule(graph, standardize_features=False).store.node_features
    assert torch.equal(held, graph.ndata["feat"])


def test_a_dgl_graph_between_two_types_is_numbered_apart():
    graph = dgl.heterograph({("user", "buys", "item"): ([0, 1, 1], [0, 0, 1])}, num_nodes_dict={"user": 2, "item": 3})
    graph.edata["timestamp"] = torch.tensor([[1.0], [2.0], [3.0]])
    graph.edata["label"] = torch.tensor([0, 1, 0])
    store = TemporalDataModule(graph, val_ratio=0.3, test_ratio=0.3).store
    assert (store.src.tolist(), store.dst.tolist(), store.num_nodes) == ([0, 1, 1], [2, 2, 3], 5)
    assert (store.time.tolist(), store.labels.tolist()) == ([1, 2, 3], [0, 1, 0])


@pytest.mark.parametrize("make", [pd.DataFrame, polars.DataFrame, pa.table])
def test_ids_dates_and_labels_keep_what_they_are(make):
    moments = [datetime.datetime(2024, 1, 1, 0, 0, second, 250_000) for second in (0, 1, 2)]
    frame = make({"from": ["b", "a", "b"], "to": ["x", "a", "x"], "ts": moments, "y": [True, False, True]})
    columns = {"src": "from", "dst": "to", "time": "ts", "label": "y"}
    store = TemporalDataModule(frame, columns=columns, val_ratio=0.3, test_ratio=0.3).store
    assert store.node_ids.tolist() == ["a", "b", "x"]
    assert store.src.tolist() == [1, 0, 1]
    assert store.time.tolist() == [1704067200.25, 1704067201.25, 1704067202.25]
    assert store.labels.tolist() == [1, 0, 1]


def test_an_index_without_a_name_may_be_a_column():
    times = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"])
    table = pa.Table.from_pandas(pd.DataFrame({"src": [1, 2, 3], "dst": [4, 5, 6]}, index=times))
    columns = {"src": "src", "dst": "dst", "time": "__index_level_0__"}
    assert np.diff(frame_table(table, columns=columns).store().time).tolist() == [86400.0, 86400.0]
    numbered = pa.Table.from_pandas(pd.DataFrame({"src": [1, 2], "dst": [4, 5], "time": [1, 2]}, index=[7, 8]))
    columns = {"src": "src", "dst": "dst", "time": "time", "edge_features": ["__index_level_0__"]}
    assert frame_table(numbered, columns=columns).store().edge_features.tolist() == [[7], [8]]


def test_texts_in_views_are_texts():
    frame = polars.DataFrame({"src": ["a", "b", "a"], "dst": ["x", "y", "x"], "time": [3.0, 1.0, 2.0]})
    table = frame.to_arrow(compat_level=polars.CompatLevel.newest())
    assert "string_view" in str(table.schema)
    with pytest.warns(UserWarning, match="sorted"):
        assert frame_table(table).store().node_ids.tolist() == ["a", "b", "x", "y"]


def test_a_zone_counts_and_categories_are_texts():
    moments = pd.date_range("2024-01-01", periods=3, tz="Europe/Berlin")
    frame = pd.DataFrame(
        {"src": pd.Categorical(["b", "a", "b"]), "dst": pd.Categorical(["a", "b", "a"]), "time": moments}
    )
    store = TemporalDataModule(frame, val_ratio=0.3, test_ratio=0.3).store
    assert (store.node_ids.tolist(), store.src.tolist()) == (["a", "b"], [1, 0, 1])
    assert store.time[0].item() == 1704067200 - 3600


def test_large_ids_are_kept():
    big = 2**63 + 5
    frame = pd.DataFrame({"src": np.array([big, 1, 2], np.uint64), "dst": np.array([4, 5, 6]), "time": [1, 2, 3]})
    assert TemporalDataModule(frame, val_ratio=0.3, test_ratio=0.3).store.node_ids.tolist() == [1, 2, 4, 5, 6, big]


FRAME = {"src": [1, 2, 3], "dst": [4, 5, 6], "time": [1.0, 2.0, 3.0], "x": [0.5, 1.5, 2.5]}
FEATURES = {"columns": {"src": "src", "dst": "dst", "time": "time", "edge_features": ["x"]}}


@pytest.mark.parametrize("missing", [pd.array([1, None, 0], "Int64"), [1.0, np.nan, 0.0]])
def test_an_event_without_a_label_is_to_have_the_label_minus_1(missing, tmp_path):
    """To drop it would change the stream."""
    frame, columns = pd.DataFrame(FRAME | {"y": missing}), {"src": "src", "dst": "dst", "time": "time", "label": "y"}
    frame.to_csv(tmp_path / "events.csv", index=False)
    for source in (frame, tmp_path / "events.csv"):
        with pytest.raises(DataError, match=r"label \(column 'y'\) must be a .*; .*write -1 where an event has none$"):
            TemporalDataModule(source, columns=columns).setup()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"src": [1, None, 3]},
            r"src \(column 'src'\) must be a value in every row, got 'none in row 1, counted from 0'",
        ),
        ({"time": [1.0, 2.0, None]}, r"time \(column 'time'\) must be a value in every row, got 'none in row 2"),
        ({"x": [None, 1.5, 2.5]}, r"edge feature \(column 'x'\) must be a value in every row, got 'none in row 0"),
        (
            {"src": [1.0, 2.0, 3.5]},
            r"src \(column 'src'\) must be integers or strings, got 'Float64'; convert it; in pa",
        ),
        ({"src": ["a", " ", "c"], "dst": list("abc")}, "must be a node id .* in every row, got 'a blank text in row 1"),
        (
            {"src": ["a", "b", "b\0"], "dst": list("abc")},
            "must be a node id without NUL .*, got 'one with NUL in row 2",
        ),
        (
            {"time": ["1", "2", "3"]},
            r"time \(column 'time'\) must be numbers or dates, got '\w+'; convert it; in pandas, pd.to_dat",
        ),
        (
            {"time": [True, False, True]},
            r"time \(column 'time'\) must be numbers or dates, got 'Boolean'; give the time",
        ),
        ({"time": [1.0, float("inf"), 3.0]}, r"time\[1\] must be finite, got 'inf'"),
        ({"x": [1.0, float("inf"), 3.0]}, r"edge_features\[1\] must be finite"),
        (
            {"x": [1.0, 1e39, 3.0]},
            r"edge feature \(column 'x'\) must be at most 3.403e\+38 in size, .* '1e\+39 in row 1",
        ),
        ({"x": [[1.0], [2.0], [3.0]]}, r"edge feature \(column 'x'\) must be numbers, got 'List\(Float64\)'"),
        ({"src": [-1, 2, 3]}, None),
    ],
)
@pytest.mark.parametrize("form", ["polars", "Parquet"])
def test_bad_columns_are_refused(tmp_path, changes, message, form):
    source = polars.DataFrame(FRAME | changes)
    if form == "Parquet":
        source.write_parquet(tmp_path / "events.parquet")
        source = tmp_path / "events.parquet"
    data = TemporalDataModule(source, val_ratio=0.3, test_ratio=0.3, **FEATURES)
    if message is None:  # any integer is an id
        assert data.store.node_ids.tolist() == [-1, 2, 3, 4, 5, 6]
        return
    with pytest.raises(DataError, match=message) as caught:
        data.setup()
    if form == "Parquet" and "column" in message:
        assert str(source) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"src": [1, "b", 3]},
            r"src \(column 'src'\) must be of one type, got 'int in row 0 and str in row 1'; convert",
        ),
        ({"time": [1, "2", 3]}, r"time \(column 'time'\) must be of one type, got 'int in row 0 and str in row 1'"),
        (
            {"x": np.array([1, 2, 3], object)},
            r"edge feature \(column 'x'\) must be a typed column, got .*of type int'; in pandas, column.co",
        ),
        (
            {"time": np.array([datetime.datetime(2024, 1, 1, tzinfo=zone) for zone in ZONES], object)},
            r"typed column, got 'Objects? of type datetime'; in pandas, pd.to_datetime\(column, utc=True\)",
        ),
        ({"time": [decimal.Decimal(n) for n in range(3)]}, r"of type Decimal'; in pandas, column.astype\(float\)"),
        ({"src": [b"a", b"b", b"c"]}, r"of type bytes'; in pandas, column.str.decode\('utf-8'\)"),
        ({"src": [1, np.nan, 3]}, r"src \(column 'src'\) must be a value in every row, got 'none in row 1"),
        ({"time": pd.to_datetime(["2024", None, "2025"])}, r"time \(column 'time'\) must be a value in every row"),
        *(
            ({"time": column}, r"numbers or dates, got .*; convert it; in pandas, pd.to_datetime\(column, utc=True\)")
            for column in (pd.Categorical(["2024", "2025", "2026"]), pd.to_timedelta([1, 2, 3], "s"))
        ),
    ],
)
def test_bad_pandas_columns_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        TemporalDataModule(pd.DataFrame(FRAME | changes), **FEATURES).setup()


@pytest.mark.parametrize("late", [3, 2.5, True, b"c"])
def test_a_column_whose_type_changes_in_late_rows_is_refused(late):
    frame = pd.DataFrame({"src": ["a", "b"] * 600 + [late], "dst": ["c"] * 1201, "time": range(1201)})
    message = f"src .column 'src'. must be of one type, got 'str in row 0 and {type(late).__name__} in row 1200'"
    with pytest.raises(DataError, match=message):
        TemporalDataModule(frame).setup()


def test_missing_and_doubled_columns_are_refused():
    frame = pd.DataFrame(FRAME)
    doubled = pd.concat([frame, frame[["x"]]], axis=1)
    for source, columns, message in (
        (
            frame.drop(columns="time"),
            None,
            r"the DataFrame must be a header with one usual name for time .*got \"none in",
        ),
        (
            frame.drop(columns="x"),
            FEATURES["columns"],
            r"columns\['edge_features'\] must be a column of the file, got 'x'",
        ),
        (  # 'dst' is near, but has a role
            frame,
            {"src": "src", "dst": "dst", "time": "dt"},
            r"columns\['time'\] must be a column of the file, got 'dt'; the DataFrame has",
        ),
        (doubled, FEATURES["columns"], r"must be a name that occurs once in the header, got 'x'; .*positions \[3, 4\]"),
        (
            frame,
            FRAME_COLUMNS | {"dst": "src"},
            r"columns must be a mapping to distinct columns, got .*'src' for src and",
        ),
        (frame.iloc[:0], None, "the DataFrame must be a table with a row per event, got 'no row'"),
    ):
        with pytest.raises(DataError, match=message):
            TemporalDataModule(source, columns=columns).setup()
    assert len(TemporalDataModule(doubled, val_ratio=0.3, test_ratio=0.3).store) == 3, (
        "nobody asked for the doubled one"
    )


FRAME_COLUMNS = {"src": "src", "dst": "dst", "time": "time"}


def test_damaged_parquet_is_refused(tmp_path):
    path = tmp_path / "events.parquet"
    pq.write_table(pa.table(FRAME), path)
    whole = path.read_bytes()
    for content in (whole[:-20], whole[:4] + b"\xff" * 40 + whole[44:], b"PAR1"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"events.parquet.* must be .*; "):
            TemporalDataModule(path, val_ratio=0.3, test_ratio=0.3).setup()


class Evil:
    def __reduce__(self):
        return (open, ("evil", "w"))


def test_tgl_folders_that_disagree_are_refused(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tgl(table, tmp_path / "tgl")
    edge, node, edges = (folder / name for name in ("edge_features.pt", "node_features.pt", "edges.csv"))
    whole, good = torch.load(edge), edge.read_bytes()
    for content, message in (
        (
            whole[:-1],
            "edge_features.pt must be of a row per event of edges.csv, which has 120, got '119 rows'; take both",
        ),
        (whole[:, 0], r"edge_features.pt must be a matrix of numbers, \[rows, width\], got 'torch.float32 \[120\]'"),
        (whole.to_sparse(), "edge_features.pt must be a matrix of numbers"),
        ({"x": whole}, "edge_features.pt must be a matrix of numbers, .*got 'dict'; save it as a dense matrix"),
        (whole * np.nan, r"edge_features\[0\] must be finite"),
        (torch.zeros(1, 1).expand(10**12, 1), "edge_features.pt must be a matrix of numbers, .*1000000000000, 1"),
        (Evil(), "edge_features.pt must be a file with one tensor, got 'something else than tensors"),
    ):
        torch.save(content, edge)
        with pytest.raises(DataError, match=message):
            TemporalDataModule(folder).setup()
    flipped = good.replace(whole.numpy().tobytes()[:4], bytes(4), 1)
    for content in (good[:100], good[:-100], flipped, b"", pickle.dumps(Evil()), b"no tensor"):
        edge.write_bytes(content)
        with pytest.raises(
            DataError, match=r"edge_features.pt must be a file with one tensor, got .*; save the matrix it"
        ):
            TemporalDataModule(folder).setup()
    assert not (tmp_path / "evil").exists(), "no pickle was run"
    edge.write_bytes(good)
    torch.save(torch.ones(14, 3), node)
    with pytest.raises(
        DataError, match=r"node_features.pt must be of a row per node of edges.csv, which has node 14, got '14"
    ):
        TemporalDataModule(folder).setup()
    torch.save(torch.ones(15, 3), node)
    text = edges.read_text()
    for content, message in (
        (text.replace("time", "when", 1), r"columns\['time'\] must be a column of the file, got 'time'"),
        (text.replace(",src,dst,", ",src,src,", 1), "must be a name that occurs once in the header, got 'src'"),
        (text.replace(",10,", ",ten,", 1), "src and dst must be integers, got .*; number the nodes as the rows"),
        (text.replace(",10,", ",-10,", 1), "dst.* must be at least 0"),
        ("", "edges.csv must be a file with a row per event, got 'an empty file'"),
    ):
        edges.write_text(content)
        with pytest.raises(DataError, match=message):
            TemporalDataModule(folder).setup()


def test_graphs_without_times_are_refused(table):
    data = temporal_data(table)
    del data.t
    two = dgl.heterograph({("a", "x", "a"): ([0], [0]), ("a", "y", "a"): ([0], [0])})
    for source, options, error, message in (
        (data, {}, DataError, "source must be a TemporalData with src, dst and t, got .*; give it t as well"),
        (two, {}, DataError, r"source must be a DGLGraph with one type of edges, got .*edge_type_subgraph"),
        (
            dgl_graph(table, when="time"),
            {},
            DataError,
            r"one of time, timestamp.* in its edata, got \['feat', 'when'\]",
        ),
        (dgl_graph(table, t="time", ts="time"), {}, DataError, "source must be a DGLGraph with one of"),
        (
            dgl_graph(table),
            {"columns": {"time": "x"}},
            DataError,
            "to names in the graph's edata, got 'x'; it has feat, t",
        ),
        (
            dgl_graph(table),
            {"columns": {"src": 0}},
            InvalidArgumentError,
            r"columns must be a mapping of time, label, ed",
        ),
        (dgl_graph(table), {"bipartite": True}, InvalidArgumentError, "bipartite must be left out for a DGLGraph"),
        (temporal_data(table), {"format": "csv"}, InvalidArgumentError, "format must be left out for a TemporalData"),
        (table, {"format": "csv"}, InvalidArgumentError, "format must be left out for a DataFrame, got 'csv'"),
        (
            3,
            {},
            InvalidArgumentError,
            "source must be a file, .* or one of wikipedia, .*synthetic, got 'int'; give one of",
        ),
    ):
        with pytest.raises(error, match=message):
            TemporalDataModule(source, **options).setup()


def test_a_tgl_folder_heeds_no_columns(table, tmp_path):
    with pytest.raises(InvalidArgumentError, match="columns must be left out for the TGL folder"):
        TemporalDataModule(tgl(table, tmp_path / "tgl"), columns={"src": 0, "dst": 1, "time": 2}).setup()


def test_dates_are_as_fine_as_they_are_given():
    nanoseconds = pd.to_datetime([36, 1_500, 1_700_000_000_123_456_000]).astype("datetime64[ns]")
    store = frame_table(pd.DataFrame({"src": [1, 2, 3], "dst": [2, 3, 1], "time": nanoseconds})).store()
    np.testing.assert_allclose(store.time, [36e-9, 1.5e-6, 1_700_000_000.123456], rtol=1e-15)
    microseconds = pd.DataFrame({"src": [1], "dst": [2], "time": nanoseconds[2:].astype("datetime64[us]")})
    assert frame_table(microseconds).store().time[0] == store.time[2]


def test_a_frame_in_which_a_label_is_a_feature_too_is_refused():
    names = ["user_id", "item_id", "timestamp", "state_label", "state_label"]
    with pytest.raises(DataError, match=r"the DataFrame must be a header with .* once each, got .*'state_label'"):
        frame_table(pd.DataFrame([[1, 2, 3.0, 0, 0]], columns=names))


def test_a_path_below_the_home_is_a_path(table, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    table.to_csv("events.csv", index=False)
    store = EventStore.open(read_events("~/events.csv").save("~/store"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.csv", "store"]
    save_graph("~/graph", generate_graph(30, 100))
    generate_graph(30, 100, folder="~/drawn")
    np.save("features.npy", np.ones((15, 2), np.float32))
    snapshots = SnapshotDataModule("~/events.csv", num_snapshots=8, features="~/features.npy")
    for data in (TemporalDataModule("~/events.csv"), snapshots, FullGraphDataModule("~/graph")):
        data.prepare_data()
        data.setup()
    assert snapshots.recipe["source"] == str(tmp_path / "events.csv")
    assert len(store) == EVENTS
