"""Conversion piece by piece gives what reading at once gives; what goes wrong in the middle leaves nothing behind."""

import gzip
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_tgnn import EventStore
from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data import generate_stream, read_events
from lightning_tgnn.data.readers import parse as parse_module
from lightning_tgnn.data.readers.frame import frame_table
from lightning_tgnn.data.sources import convert as convert_module
from lightning_tgnn.data.sources.convert import convert_events, write_csv
from lightning_tgnn.data.streams.kept_adjacency import save_with_adjacency
from tests.data.disks import files_below, nobody
from tests.data.small_pieces import in_pieces

COLUMNS = {"src": "s", "dst": "d", "time": "t", "label": "l", "edge_features": ["f"]}
INTEGERS = st.integers(-5, 20).map(str)
IDS = {
    "integers": INTEGERS,
    "unsigned": st.sampled_from(["0", "7", str(2**64 - 1)]),
    "text": st.sampled_from(["a", "ü", "Zoë B", "long name " * 3, "7"]),
    "late text": INTEGERS | st.just("x"),
    "around the width of bytes": st.sampled_from(
        ["x", "y" * 39, "ü" * 19 + "y", "y" * 40, "ü" * 20, "y" * 41, "y" * 90]
    ),
    "late long text": INTEGERS | st.sampled_from(["x", "x ", "\u00a0x", "y" * 50]),
}
LABELS = st.integers(0, 3).map(str) | st.sampled_from(["0.5", "2.0"])


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(parse_module, "_cells", in_pieces(3))
    monkeypatch.setattr(convert_module, "_ORDERED_AT_ONCE", 3)


def assert_same(store, expected):
    for name in ("src", "dst", "time", "edge_features", "labels"):
        torch.testing.assert_close(getattr(store, name), getattr(expected, name), rtol=0, atol=0)
    assert store.node_ids.tolist() == expected.node_ids.tolist()
    assert store.node_ids.dtype == expected.node_ids.dtype
    assert (store.fingerprint, store.num_nodes) == (expected.fingerprint, expected.num_nodes)


@pytest.mark.filterwarnings("ignore:events were not sorted")
@pytest.mark.parametrize("kind", IDS)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), apart=st.booleans(), is_sorted=st.booleans())
def test_conversion_is_reading(small_pieces, kind, data, apart, is_sorted):
    row = st.tuples(IDS[kind], IDS[kind], st.integers(0, 9), LABELS, st.integers(0, 99))
    rows = data.draw(st.lists(row, min_size=1, max_size=30))
    rows = sorted(rows, key=lambda row: row[2]) if is_sorted else rows
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.csv"
        path.write_text("s,d,t,l,f\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
        reading = {"columns": COLUMNS, "bipartite": apart}
        assert_same(convert_events(path, Path(folder) / "store", **reading), read_events(path, **reading))


def test_names_with_blanks_and_other_letters_and_gzip(tmp_path):
    path = tmp_path / "Ereignisse größer.csv.gz"
    path.write_bytes(gzip.compress(b"src,dst,time\n1,2,3\n2,3,4\n"))
    folder = tmp_path / "ein Ordner" / "店 ströme"
    store = convert_events(path, folder)
    assert_same(store, read_events(path))
    assert sorted(file.name for file in folder.iterdir()) == [
        "adjacency",
        "dst.npy",
        "manifest.json",
        "node_ids.npy",
        "src.npy",
        "time.npy",
    ]
    assert sorted(tmp_path.iterdir()) == sorted([path, folder.parent])


def test_unsorted_rows_are_told(tmp_path):
    (tmp_path / "e").write_text("1 2 5\n1 2 3\n")
    with pytest.warns(UserWarning, match="events were not sorted by time; sorted them"):
        store = convert_events(tmp_path / "e", tmp_path / "store")
    assert store.time.tolist() == [3.0, 5.0]


@pytest.mark.parametrize("read", [read_events, lambda path: convert_events(path, path.with_suffix(".store"))])
def test_times_that_float64_makes_equal_are_told(tmp_path, read, recwarn):
    path, other = tmp_path / "e.csv", tmp_path / "other.csv"
    path.write_text("src,dst,time\n1,2,1700000000000000000\n1,3,1700000000000000001\n")
    with pytest.warns(UserWarning, match=r"1.7e\+18 apart that differ by less than 256: some may have become equal; s"):
        assert read(path).time.unique().numel() == 1
    seconds = (1700000000, 1700000000, 1700000001)  # two were equal before
    other.write_text("src,dst,time\n" + "".join(f"1,{node},{time}000000000\n" for node, time in enumerate(seconds)))
    recwarn.clear()
    assert read(other).time.unique().numel() == 2
    assert not recwarn.list


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("src,dst,time\n1,2,3\n1,2,NaN\n", r"line 3: time .*must be a finite number, got 'NaN'"),
        ("src,dst,time\n1,2,3\n1,2\n", r"line 3 must be a row of 3 columns, got '2 column"),
        ("src,dst,time\n,2,3\n", "src .*must be a node id"),
        ("src,dst,time\n1,2,3\n1.0,2,3\n", "must be an integer or a name, got '1.0'"),
        ("src,dst,time\n", "must be a file with a row per event, got 'a header only'"),
    ],
)
def test_bad_files_leave_nothing(tmp_path, text, message):
    path = tmp_path / "events.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        convert_events(path, tmp_path / "store")
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_there_stays(tmp_path):
    (tmp_path / "e").write_text("1 2 3\n")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidArgumentError, match=r"folder must be new or empty, got .*choose another or remove it"):
        convert_events(tmp_path / "e", tmp_path / "store")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["thesis.txt"]


def write_many(path, count):
    path.write_text("".join(f"{i % 50} {i % 60} {i}\n" for i in range(count)))


@pytest.mark.parametrize("size", [2_000, 90_000])  # the columns of 8 bytes do not fit, or those of the adjacency
def test_a_full_disk_leaves_nothing(tmp_path, size):
    path = tmp_path / "events"
    write_many(path, 10_000)
    message = r"store must be where it fits, got .*File too large.*; free space or choose another place; what was"
    with pytest.raises(InvalidArgumentError, match=message), files_below(size):
        convert_events(path, tmp_path / "store")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", [save_with_adjacency, write_csv])
def test_a_full_disk_while_generating(tmp_path, write):
    store = generate_stream(num_events=3000)
    with pytest.raises(InvalidArgumentError, match="out must be where it fits"), files_below(30_000):
        write(store, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [save_with_adjacency, write_csv])
def test_a_folder_that_cannot_be_written(read_only, write):
    store = generate_stream(num_events=100, edge_feature_dim=2)
    read_only.chmod(0o555)
    message = "out must be where files can be written, got .*Permission denied.*; choose another place"
    with pytest.raises(InvalidArgumentError, match=message), nobody():
        write(store, read_only / "out")
    assert list(read_only.iterdir()) == []


def test_two_runs_at_once(tmp_path):
    """One makes the folder, the other says so; neither leaves anything else."""
    write_many(tmp_path / "events", 5000)
    together, outcomes = threading.Barrier(2), []

    def run():
        def report(events):
            together.wait(timeout=60)

        try:
            outcomes.append(convert_events(tmp_path / "events", tmp_path / "store", report=report))
        except InvalidArgumentError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    stores, messages = [o for o in outcomes if isinstance(o, EventStore)], [o for o in outcomes if isinstance(o, str)]
    assert len(stores) == len(messages) == 1
    assert "which another process has just made" in messages[0]
    assert_same(stores[0], read_events(tmp_path / "events"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events", "store"]


def test_a_csv_is_read_as_it_was_written(tmp_path):
    store = generate_stream(num_events=500, edge_feature_dim=2, with_labels=True, num_sources=20, num_destinations=30)
    columns = {"src": "src", "dst": "dst", "time": "time", "label": "label", "edge_features": "rest"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = read_events(write_csv(store, tmp_path / "ä b.csv"), columns=columns)
    assert np.array_equal(read.node_ids[read.src], store.node_ids[store.src])
    assert np.array_equal(read.node_ids[read.dst], store.node_ids[store.dst])
    for name in ("time", "edge_features", "labels"):
        torch.testing.assert_close(getattr(read, name), getattr(store, name), rtol=0, atol=0)


def test_what_a_csv_cannot_hold(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"output must be a folder for such a stream.*drop .csv"):
        write_csv(generate_stream(num_events=100, node_feature_dim=2), tmp_path / "e.csv")
    (tmp_path / "e.csv").write_text("years of work")
    with pytest.raises(InvalidArgumentError, match="output must be a new file"):
        write_csv(generate_stream(num_events=100), tmp_path / "e.csv")
    assert (tmp_path / "e.csv").read_text() == "years of work"


def test_parquet_is_converted_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_tgnn.data.readers.frame._ROWS_AT_ONCE", 3)
    ids = [["a", "b", "c", "d", "a"] * 4, list(range(20))]
    when = pd.date_range("2024-01-01", periods=20, tz="Europe/Berlin")[::-1]
    frame = pd.DataFrame(
        {"user": ids[0], "item": ids[1], "ts": when, "kind": [0, 1] * 10, "how": ["x", "y", "x", "z"] * 5}
    )
    frame.to_parquet(tmp_path / "events")
    columns = {"src": "user", "dst": "item", "time": "ts", "label": "kind", "categories": ["how"]}
    with pytest.warns(UserWarning, match="not sorted"):
        store = convert_events(tmp_path / "events", tmp_path / "store", columns=columns)
    with pytest.warns(UserWarning, match="not sorted"):
        assert_same(store, frame_table(frame, columns=columns).store())
    assert store.edge_feature_names == ("how=x", "how=y", "how=z")
