import json
import warnings
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn import EventStore, TemporalDataModule
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.serving.node_numbers import NodeNumbers
from tests.data.disks import files_below
from tests.data.example_streams import random_store


def small(**columns):
    arrays = {"src": [0, 1, 2], "dst": [1, 2, 0], "time": [1.0, 2.0, 2.0], **columns}
    return EventStore.from_arrays(**arrays)


def test_columns_and_types():
    store = small(edge_features=[[1.0], [2.0], [3.0]], node_features=np.ones((4, 2)), labels=[0, 1, 0])
    assert store.src.dtype == store.dst.dtype == torch.int64
    assert store.time.dtype == torch.float64
    assert store.edge_features.dtype == store.node_features.dtype == torch.float32
    assert (len(store), store.num_nodes, store.edge_feature_dim, store.node_feature_dim) == (3, 4, 1, 2)


@pytest.mark.filterwarnings("ignore:events were not sorted")
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=30))
def test_sorting_is_stable(events):
    src, dst, time = (np.array(column) for column in zip(*events, strict=True))
    store = EventStore.from_arrays(src, dst, time, labels=np.arange(len(src)), num_nodes=6)
    expected = sorted(range(len(events)), key=lambda i: events[i][2])
    assert store.labels.tolist() == expected
    assert list(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True)) == [
        events[i] for i in expected
    ]


IDS = (
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 3)),
    st.integers(0, 2**64 - 1),
    st.text("aü 7", min_size=1),
)


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("form", [list, np.array, pd.Series, lambda ids: pl.Series("ids", ids)])
@given(data=st.data(), apart=st.booleans())
def test_ids_are_numbered_as_those_of_a_file(tmp_path_factory, kind, form, data, apart):
    ids = data.draw(st.lists(IDS[kind].filter(lambda i: str(i).strip()), min_size=1, max_size=5))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids)), min_size=1, max_size=10))
    src, dst = (list(column) for column in zip(*pairs, strict=True))
    columns = (form(column) for column in (src, dst))
    if form is np.array and kind < 2:  # numpy makes floats of a list with numbers of both ends of 64 bits
        columns = (np.array(column, (np.int64, np.uint64)[kind]) for column in (src, dst))
    store = EventStore.from_arrays(*columns, np.arange(len(src)), bipartite=apart)
    if kind == 2:
        src, dst = ([text.strip() for text in column] for column in (src, dst))
    expected = sorted(set(src)) + sorted(set(dst)) if apart else sorted({*src, *dst})
    kept = list(range(store.num_nodes)) if store.node_ids is None else store.node_ids.tolist()
    assert kept == expected
    assert [kept[node] for node in store.src] == src
    assert [kept[node] for node in store.dst] == dst
    assert not apart or int(store.src.max()) < int(store.dst.min())


def test_node_numbers_stay_as_they_are():
    assert small().node_ids is None
    assert small(src=[0, 1, 5]).node_ids.tolist() == [0, 1, 2, 5]
    assert small(src=[0, 1, 5]).src.tolist() == [0, 1, 3]
    for columns, num_nodes in (({"num_nodes": 7}, 7), ({"node_features": np.ones((8, 1))}, 8)):
        store = small(src=[0, 1, 5], **columns)
        assert (store.src.tolist(), store.num_nodes, store.node_ids) == ([0, 1, 5], num_nodes, None)
    named = small(src=[0, 1, 5], node_ids=list("abcdef"))
    assert (named.src.tolist(), named.num_nodes) == ([0, 1, 5], 6)


def test_names_of_edge_features_are_saved_and_old_stores_open(tmp_path):
    features = {"edge_features": [[1.0, 2.0]] * 3}
    store = small(**features, edge_feature_names=["b", "a"])
    folder = store.save(tmp_path / "store")
    assert EventStore.open(folder).edge_feature_names == store.edge_feature_names == ("b", "a")
    damage_manifest(folder, edge_feature_names=["b"])
    with pytest.raises(DataError, match=r"edge_feature_names must be 2 strings, got \['b'\]"):
        EventStore.open(folder)
    old = json.loads((folder / "manifest.json").read_text())
    del old["edge_feature_names"]
    (folder / "manifest.json").write_text(json.dumps(old))
    assert EventStore.open(folder).edge_feature_names is None
    for names in (["a", "a"], ["a", ""]):  # which tell nothing apart
        assert small(**features, edge_feature_names=names).edge_feature_names is None


def test_read_only_columns_are_taken_without_a_word():
    """A Series of pandas 3 gives such a column."""
    columns = [np.arange(3), np.arange(3, 6), np.arange(3.0), np.ones((3, 2), np.float32), np.ones((6, 1), np.float32)]
    for column in columns:
        column.flags.writeable = False
    told = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch would tell it but once in a process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store = EventStore.from_arrays(*columns)
    finally:
        torch.set_warn_always(told)
    assert store.time.tolist() == columns[2].tolist()


def test_unsorted_input_is_told():
    with pytest.warns(UserWarning, match="not sorted by time"):
        small(time=[3.0, 2.0, 1.0])


def test_saved_store_opens_the_same(tmp_path):
    store = small(edge_features=np.eye(3), labels=[0, 1, 0])
    store = EventStore.from_arrays(
        store.src.numpy(), store.dst.numpy(), store.time.numpy(), np.eye(3), labels=[0, 1, 0], node_ids=["a", "b", "ü"]
    )
    opened = EventStore.open(store.save(tmp_path / "a folder" / "ströme"))
    for name in ("src", "dst", "time", "edge_features", "labels"):
        torch.testing.assert_close(getattr(opened, name), getattr(store, name), rtol=0, atol=0)
    assert opened.node_ids.tolist() == ["a", "b", "ü"]
    assert opened.fingerprint == store.fingerprint
    assert opened.node_features is None


def test_open_store_never_changes_its_files(tmp_path):
    folder = small().save(tmp_path / "store")
    EventStore.open(folder).src[0] = 2
    assert EventStore.open(folder).src.tolist() == [0, 1, 2]


def test_fingerprint_tells_streams_apart():
    assert small().fingerprint == small().fingerprint
    assert small().fingerprint != small(time=[1.0, 2.0, 3.0]).fingerprint
    assert small().fingerprint != small(node_features=np.ones((9, 1))).fingerprint


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"src": [], "dst": [], "time": []}, r"at least one event"),
        ({"src": np.array([], dtype=int), "dst": np.array([], dtype=int), "time": []}, "at least one event"),
        ({"src": 3, "dst": 4, "time": []}, "src must be a column of ids, got 'int'"),
        ({"src": [0, -3, 1], "num_nodes": 3}, r"src\[1\] must be at least 0, got -3"),
        ({"dst": [0, 1, -1], "num_nodes": 3}, r"dst\[2\] must be at least 0, got -1"),
        ({"src": [0.5, 1.0, 2.0]}, "src must be integers or strings"),
        ({"src": [[0], [1], [2]]}, "src must be integers or strings of shape"),
        ({"src": [True, False, True]}, "src must be integers or strings of shape"),
        ({"src": np.array(["a", None, "b"], object)}, "src must be integers or strings of shape"),
        ({"src": ["a", " ", "b"]}, r"src\[1\] must be a node id, got ' '; drop or repair"),
        ({"src": ["a", "b", "c"]}, "dst must be of the type of src, got 'object and int64'"),
        ({"src": list("abc"), "dst": ["a", "b", "x" * 5000]}, r"dst\[2\] must be a node id of at most 4,096 bytes"),
        ({"src": list("abc"), "num_nodes": 3}, "src must be integers of shape .* leave out num_nodes, node_features"),
        ({"src": [0, 1, 7], "num_nodes": 7}, "num_nodes must be above the highest node, 7, got 7; give N"),
        ({"num_nodes": 3.0}, "num_nodes must be an integer of at least 1"),
        ({"num_nodes": 4, "node_ids": ["a", "b", "c"]}, r"node_ids and num_nodes must be .*, got \[3, 4\]"),
        ({"num_nodes": 3, "bipartite": True}, "bipartite must be left out for node numbers"),
        ({"edge_features": [[1.0]] * 3, "edge_feature_names": ["a", "b"]}, "edge_feature_names must be 1 strings"),
        ({"edge_feature_names": ["a"]}, "edge_feature_names must be 0 strings"),
        ({"time": [0.0, float("nan"), 1.0]}, r"time\[1\] must be finite, got 'nan'"),
        ({"time": [0.0, float("inf"), 1.0]}, r"time\[1\] must be finite, got 'inf'"),
        ({"time": [0.0, 1.0]}, "time must be of the length of src, 3, got 2"),
        ({"time": ["x", "y", "z"]}, "time must be numbers"),
        (
            {"time": np.arange(3).astype("datetime64[s]")},
            r"got 'datetime64\[s\]; give .*the dates to read_events, in a",
        ),
        ({"edge_features": [[1.0], [float("nan")], [2.0]]}, r"edge_features\[1\] must be finite"),
        ({"edge_features": [[1.0], [1.0, 2.0], [2.0]]}, "edge_features must be numbers or ids, every row as long"),
        ({"edge_features": [1.0, 2.0, 3.0]}, r"edge_features must be of shape \[rows, width\]"),
        ({"edge_features": [[1.0]]}, "edge_features must be of the length of src, 3, got 1"),
        ({"node_features": [[1.0], [2.0]]}, "node_features must be a row for every node up to 2"),
        ({"labels": [1, 2]}, "labels must be of the length of src"),
        ({"labels": ["a", "b", "c"]}, "labels must be numeric"),
        ({"node_ids": ["a", "b"]}, "node_ids must be a row for every node up to 2"),
        ({"src": [0, 1, 1], "num_nodes": 10**12}, "num_nodes must be in proportion to the 3 events"),
    ],
)
def test_bad_columns_are_refused(columns, message):
    with pytest.raises((DataError, InvalidArgumentError), match=message):
        small(**columns)


@given(
    st.lists(st.integers(0, 6), min_size=8, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=4),
)
def test_ids_that_repeat_are_those_of_sources_and_of_destinations_behind_them(ids, events):
    src, dst = (list(column) for column in zip(*events, strict=True))
    cuts = [
        cut
        for cut in range(max(src) + 1, min(dst) + 1)
        if len(set(ids[:cut])) == cut and len(set(ids[cut:])) == len(ids) - cut
    ]
    distinct = len(set(ids)) == len(ids)

    def make():
        return EventStore.from_arrays(src, dst, np.arange(float(len(src))), node_ids=np.array(ids))

    if not cuts and not distinct:
        with pytest.raises(DataError, match=r"node_ids must be distinct, .* number the sources first"):
            make()
        return
    store = make()
    assert store.first_destination == (None if distinct else cuts[0])
    numbers = NodeNumbers.from_stream(store)
    for side, nodes in (("source", src), ("destination", dst)):
        assert numbers.find(side, np.array(ids)[nodes], side).tolist() == nodes


def test_save_keeps_what_is_there(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidArgumentError, match="folder must be new or empty"):
        small().save(tmp_path / "store")
    assert (tmp_path / "store" / "thesis.txt").read_text() == "years of work"


def test_failed_save_leaves_nothing(tmp_path, monkeypatch):
    def full_disk(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "save", full_disk)
    with pytest.raises(OSError, match="no space"):
        small().save(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def damage_manifest(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def replace_column(folder, name, column):
    """Another column, and a manifest that says so."""
    np.save(folder / f"{name}.npy", column)
    columns = json.loads((folder / "manifest.json").read_text())["columns"]
    columns[name] = {"dtype": column.dtype.str, "shape": list(column.shape)}
    damage_manifest(folder, columns=columns)


def claim_rows(path):
    array = np.load(path)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (10**15,)})
        file.write(array.tobytes())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "must be a folder with manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "must be the manifest of an EventStore"),
        (lambda folder: damage_manifest(folder, version=99), "version in .* must be 1, got 99"),
        (lambda folder: damage_manifest(folder, columns={"../evil": {}}), "must be the manifest of an EventStore"),
        (lambda folder: damage_manifest(folder, columns={}), "with src, dst and time"),
        (lambda folder: damage_manifest(folder, columns=["src"]), "must be the manifest of an EventStore"),
        (lambda folder: damage_manifest(folder, num_nodes=True), "must be the manifest of an EventStore"),
        (
            lambda folder: damage_manifest(folder, num_nodes=10**15),
            r"must be of nodes without gaps, got '10{15} nodes",
        ),
        (
            lambda folder: replace_column(folder, "time", np.arange(3)),
            "time.npy must be <f8 of 1 dim",
        ),
        (
            lambda folder: replace_column(folder, "dst", np.arange(2)),
            r"dst.npy must be <i8 .* 3 row\(s\), got",
        ),
        (
            lambda folder: claim_rows(folder / "src.npy"),
            r"src.npy must be a .*, got '80{15} bytes",
        ),
        (lambda folder: (folder / "time.npy").unlink(), r"time.npy must be a complete .npy file"),
        (lambda folder: (folder / "dst.npy").write_bytes(b""), r"dst.npy must be a complete .npy file"),
        (lambda folder: np.save(folder / "src.npy", np.arange(2)), r"src.npy must be what the manifest says"),
        (
            lambda folder: (folder / "src.npy").write_bytes((folder / "src.npy").read_bytes()[:-8]),
            r"src.npy must be a complete .npy file",
        ),
    ],
)
def test_damaged_stores_are_refused(tmp_path, damage, message):
    folder = small().save(tmp_path / "store")
    damage(folder)
    with pytest.raises(DataError, match=message):
        EventStore.open(folder)


def test_ids_of_a_pandas_column_are_saved(tmp_path):
    ids = np.array(["a", "b", "c"], dtype=object)
    store = EventStore.from_arrays([0, 1], [1, 2], [0.0, 1.0], node_ids=ids)
    assert EventStore.open(store.save(tmp_path / "store")).node_ids.tolist() == ["a", "b", "c"]
    with pytest.raises(DataError, match="node_ids must be integers or strings"):
        EventStore.from_arrays([0, 1], [1, 2], [0.0, 1.0], node_ids=np.array(["a", 2, None], dtype=object))


def test_a_run_does_not_start_on_other_events_than_were_saved(tmp_path):
    store = EventStore.from_arrays([0, 1, 2], [1, 2, 0], [0.0, 1.0, 2.0], None, np.ones((3, 2)), [0.5, 1.0, 1.5])
    folder = store.save(tmp_path / "store")
    assert TemporalDataModule(folder).read().fingerprint == store.fingerprint
    for name, column, message in (
        ("src", np.array([0, 1, 1]), f"must be a store of the events {store.fingerprint}, got .*; a file of it is"),
        ("time", np.array([0.0, 2.0, 1.0]), "must be a store of the events"),
        ("node_features", np.full((3, 2), np.nan, np.float32), "node_features of .* must be finite"),
        ("labels", np.array([0.5, np.inf, 1.5]), "labels of .* must be finite"),
    ):
        before = (folder / f"{name}.npy").read_bytes()
        np.save(folder / f"{name}.npy", column)
        with pytest.raises(DataError, match=message):
            TemporalDataModule(folder).read()
        (folder / f"{name}.npy").write_bytes(before)


def test_labels_and_times_of_other_kinds():
    store = EventStore.from_arrays([0, 1], [1, 0], [0.0, 1.0], labels=np.array([1, 2], np.uint32))
    assert store.labels.dtype == torch.int64
    for labels in ([0.0, np.nan], np.array([0, 2**63], np.uint64), [[[1]], [[2]]], ["a", "b"]):
        with pytest.raises(DataError, match=r"labels(\[1\])? must be"):
            EventStore.from_arrays([0, 1], [1, 0], [0.0, 1.0], labels=labels)
    for time in (np.array(["2020-01-01", "2020-01-02"], "M8[ns]"), np.array([1j, 2j]), [10**400, 1]):
        with pytest.raises(DataError, match=r"time must be (real )?numbers"):
            EventStore.from_arrays([0, 1], [1, 0], time)


def test_a_store_that_does_not_fit_is_refused_and_leaves_nothing(tmp_path):
    store = random_store(3000, num_nodes=20)
    message = r"store must be where it fits, got '3000 requested and .* written'; free space or choose another place"
    with pytest.raises(InvalidArgumentError, match=message), files_below(20_000):
        store.save(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_columns_may_be_tensors_that_require_a_gradient():
    features = torch.arange(6.0).reshape(3, 2).requires_grad_()
    assert small(edge_features=features).edge_features.tolist() == features.tolist()


@pytest.mark.parametrize(
    ("kind", "first", "step", "told"),
    [
        (torch.float32, 1.7e9, 128, "float32 .* by less than 128: .*; give float64 or integers"),
        (np.float32, 1.7e9, 128, "float32 .* by less than 128: .*; give float64 or integers"),
        (np.float64, 1.7e18, 256, "float64 .* by less than 256: .*; subtract the first time, or give a coarser unit"),
    ],
)
def test_times_that_have_become_equal_are_told(kind, first, step, told):
    column = partial(torch.tensor if isinstance(kind, torch.dtype) else np.array, dtype=kind)
    with pytest.warns(UserWarning, match=told.replace(" ", " does not tell times ", 1)):
        small(time=column([first, first + 1, first + step]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small(time=column([first, first + 10 * step, first + 20 * step]))  # rounded, and all apart
        small(time=column([0, 0, 2**24 - 1]))
        small(time=np.array([1_700_000_000, 1_700_000_001, 1_700_000_001]))
