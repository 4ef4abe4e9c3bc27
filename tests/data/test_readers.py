"""Readers: what is read equals a plain reading of the file, and what must not be trained on is refused by its line."""

import csv
import gzip
import os
import random
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_tgnn.checks import DataError, InvalidArgumentError
from lightning_tgnn.data.readers import parse as parse_module
from lightning_tgnn.data.readers import read_events
from lightning_tgnn.data.readers.frame import frame_table
from lightning_tgnn.data.sources.convert import convert_events
from lightning_tgnn.data.streams.event_store import EventStore
from tests.data.small_pieces import in_pieces

DATA = Path(os.environ.get("LIGHTNING_TGNN_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="no real data: set LIGHTNING_TGNN_DATA to its folder")
JODIE_HEADER = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
POSITIONS = {"src": 0, "dst": 1, "time": 2}


@pytest.fixture
def write(tmp_path):
    def write_file(content: str | bytes, name: str = "events") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture
def small_chunks(monkeypatch):
    """Let every chunk hold one to three rows, so that what spans chunks is seen."""
    monkeypatch.setattr(parse_module, "_cells", in_pieces(2))


def edges(store: EventStore) -> list[tuple]:
    """Events with the user's own ids."""
    ids = store.node_ids
    return [
        (ids[src].item(), ids[dst].item(), time)
        for src, dst, time in zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True)
    ]


@needs_data
def test_wikipedia():
    store = read_events(DATA / "wikipedia.txt.gz")
    assert (store.num_events, store.num_nodes) == (157_474, 9_227)
    assert store.node_ids.tolist() == list(range(1, 9_228))
    assert edges(store)[:2] == [(1, 8228, 0.0), (2, 8229, 36.0)]
    assert store.src.max() == 8_226
    assert store.dst.min() == 8_227
    assert store.edge_features is None
    assert store.labels is None


@needs_data
def test_wikipedia_apart_has_the_same_numbers_as_its_ids_do_not_overlap():
    together, apart = (read_events(DATA / "wikipedia.txt.gz", bipartite=bipartite) for bipartite in (False, True))
    assert together.fingerprint == apart.fingerprint


@needs_data
def test_collegemsg():
    store = read_events(DATA / "CollegeMsg.txt.gz")
    assert (store.num_events, store.num_nodes) == (59_835, 1_899)
    with gzip.open(DATA / "CollegeMsg.txt.gz", "rt") as file:
        assert edges(store) == [tuple(int(field) for field in line.split()) for line in file]


@needs_data
def test_bitcoinotc_keeps_fractional_seconds_and_ratings():
    columns = {
        "src": "FROM_NODE",
        "dst": "TO_NODE",
        "time": "TIME_SINCE_EPOCH",
        "label": "TRUST_INDEX",
    }
    path = DATA / "soc-sign-bitcoinotc.csv.gz"
    store = read_events(path, columns=columns)
    with gzip.open(path, "rt") as file:
        rows = list(csv.reader(file))[1:]
    assert len(rows) == 35_592
    assert edges(store) == [(int(row[0]), int(row[1]), float(row[3])) for row in rows]
    assert store.time[0].item() == 1289241911.72836
    assert store.labels.dtype == torch.int64
    assert store.labels.tolist() == [int(row[2]) for row in rows]
    assert read_events(path).fingerprint == store.fingerprint


@needs_data
def test_lastfm_numbers_users_and_items_apart():
    store = read_events(DATA / "lastfm_head.csv")
    rows = [line.split(",") for line in (DATA / "lastfm_head.csv").read_text().splitlines()[1:]]
    users = sorted({int(row[0]) for row in rows})
    items = sorted({int(row[1]) for row in rows})
    assert store.node_ids.tolist() == users + items
    assert store.src.tolist() == [users.index(int(row[0])) for row in rows]
    assert store.dst.tolist() == [len(users) + items.index(int(row[1])) for row in rows]
    assert store.labels.tolist() == [0] * len(rows)
    assert torch.equal(store.edge_features, torch.zeros(len(rows), 2))


def test_snap_comments_blank_lines_tabs_and_features(write):
    text = "# src dst time\n  % more\n\n 5\t-7   1.5 0.25 1 \r\n   \r\n#6 6 6 6 6\n-7 5\t2e0\t-1 2"
    store = read_events(write(text), format="snap")
    assert edges(store) == [(5, -7, 1.5), (-7, 5, 2.0)]
    assert store.node_ids.tolist() == [-7, 5]
    assert store.edge_features.tolist() == [[0.25, 1.0], [-1.0, 2.0]]
    assert store.edge_features.dtype == torch.float32


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("text", ["# c\n1 2 3\n#c\n\n4 5 6", "src,dst,time\n1,2,3\n\n4,5,6\n"])
def test_line_ends_byte_order_mark_and_gzip(write, end, mark, pack, text):
    path = write(pack(mark + text.replace("\n", end).encode()), name="misleading.parquet")
    assert edges(read_events(path)) == [(1, 2, 3.0), (4, 5, 6.0)]


def test_one_event_is_read(write):
    assert edges(read_events(write("3 1 0"))) == [(3, 1, 0.0)]


def test_jodie(write):
    store = read_events(write(JODIE_HEADER + "3,3,0.5,0,0.25,1\n4,3,1.5,1,0,-2\n"))
    assert (store.src.tolist(), store.dst.tolist()) == ([0, 1], [2, 2])
    assert store.node_ids.tolist() == [3, 4, 3]
    assert store.time.tolist() == [0.5, 1.5]
    assert store.labels.tolist() == [0, 1]
    assert store.labels.dtype == torch.int64
    assert store.edge_features.tolist() == [[0.25, 1.0], [0.0, -2.0]]


@pytest.mark.parametrize("header", [JODIE_HEADER, "user_id,item_id,timestamp,state_label\n", "u,i,t,y\n"])
def test_jodie_without_features_and_with_other_names(write, header):
    store = read_events(write(header + "3,3,0,0\n"), format="jodie")
    assert store.node_ids.tolist() == [3, 3]
    assert store.edge_features is None


def test_bipartite_overrides_the_form(write):
    jodie = write(JODIE_HEADER + "3,3,0,0\n4,3,1,0\n", "jodie")
    assert read_events(jodie, bipartite=False).node_ids.tolist() == [3, 4]
    assert read_events(write("3 3 0\n4 3 1\n"), bipartite=True).node_ids.tolist() == [3, 4, 3]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", ", "])
@pytest.mark.parametrize("header", ["User,ITEM,ts", "from,to,UnixTime", "u,v,t", "source,target,timestamp"])
def test_csv_finds_usual_names(write, delimiter, header):
    text = f"{header}\n7,9,1\n9,8,2\n".replace(",", delimiter)
    assert edges(read_events(write(text))) == [(7, 9, 1.0), (9, 8, 2.0)]


def test_csv_by_name_with_label_and_features(write):
    path = write('when,"who, really",whom,kind,w,note\n1,a,b,0.5,2,x\n2,b,c,1,3,\n')
    columns = {"src": "who, really", "dst": "whom", "time": "when", "label": "kind"}
    store = read_events(path, columns={**columns, "edge_features": ["w"]}, bipartite=False)
    assert edges(store) == [("a", "b", 1.0), ("b", "c", 2.0)]
    assert store.labels.tolist() == [0.5, 1.0]
    assert store.edge_features.tolist() == [[2.0], [3.0]]
    rest = read_events(path, columns={**columns, "edge_features": "rest"}, bipartite=False)
    assert rest.edge_features.tolist() == [[2.0], [3.0]]


def test_csv_by_position_without_and_with_header(write):
    columns = {"src": 1, "dst": 2, "time": 0, "edge_features": "rest"}
    rows = "5,a,b,1\n6,b,a,2\n"
    for text in (rows, "t,x,y,z\n" + rows):
        store = read_events(write(text), columns=columns, bipartite=False)
        assert edges(store) == [("a", "b", 5.0), ("b", "a", 6.0)]
        assert store.edge_features.tolist() == [[1.0], [2.0]]


def test_csv_with_numbers_as_names(write):
    path = write("0,1,2\n5,6,100\n")
    assert edges(read_events(path, columns={"src": "0", "dst": "1", "time": "2"})) == [(5, 6, 100.0)]


@pytest.mark.parametrize("form", ["csv", "snap"])
@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        ("2024-02-29", 1709164800),
        ("2024-02-29T12:30:00", 1709209800),
        ("2024-02-29T12:30:00Z", 1709209800),
        ("2024-02-29T12:30:00.25", 1709209800.25),
        ("2024-02-29T12:30:00.123456789", 1709209800.123456789),
        ("2024-02-29T14:30:00+02:00", 1709209800),
        ("2024-02-29T1230", 1709209800),
        ("2024-02-29T12:30", 1709209800),
        ("1969-12-31T23:59:59.5", -0.5),
        (" 2024-02-29T12:30 ", 1709209800),
        ("2024-02-29 12:30:00", 1709209800),
    ],
)
def test_dates_are_seconds_since_1970_in_utc(write, tmp_path, form, date, seconds):
    if form == "snap" and " " in date:
        return
    text = f"src,dst,time\n1,2,{date}\n2,1,2099-12-31\n"
    text = text.replace(",", " ").partition("\n")[2] if form == "snap" else text
    store = read_events(write(text))
    assert store.time.tolist() == [seconds, 4102358400]
    assert convert_events(tmp_path / "events", tmp_path / "store").time.tolist() == store.time.tolist()


def test_a_date_without_a_zone_is_of_utc_whatever_was_before_it(write):
    """pandas before 3 takes it for one of the zone of the date before it."""
    store = read_events(
        write("src,dst,time\n1,2,2024-02-29T14:30:00+02:00\n2,1,2024-02-29T13:00:00\n1,2,2024-02-29T15Z\n")
    )
    assert store.time.tolist() == [1709209800, 1709211600, 1709218800]


@pytest.mark.usefixtures("small_chunks")
def test_dates_read_as_those_of_a_data_frame(write):
    times = pd.date_range("2020-01-01", periods=50, freq="37min17s", tz="Europe/Vienna")
    frame = pd.DataFrame({"src": "a", "dst": "b", "time": times})
    store, expected = read_events(write(frame.to_csv(index=False))), frame_table(frame).store()
    assert torch.equal(store.time, expected.time)
    by_place = read_events(write(frame.to_csv(index=False, header=False)), columns=POSITIONS)
    assert torch.equal(by_place.time, expected.time)


def test_columns_that_nothing_reads_are_named(write, tmp_path):
    path = write("src,dst,time,note,w\n1,2,3,x,4\n")
    columns = {"src": "src", "dst": "dst", "time": "time", "edge_features": ["w"]}
    for chosen, unused in ((None, "'note', 'w'"), (columns, "'note'")):
        message = rf"nothing reads the column\(s\) {unused}; to use one, name it in columns"
        with pytest.warns(UserWarning, match=message):
            read_events(path, columns=chosen)
        with pytest.warns(UserWarning, match=message):
            convert_events(path, tmp_path / f"store{len(unused)}", columns=chosen)
        with pytest.warns(UserWarning, match="the DataFrame: " + message):
            frame_table(pd.read_csv(path), columns=chosen).store()
    with pytest.warns(UserWarning, match=r"the column\(s\) 3, counted from 0; to"):
        read_events(write("1 2 3 4\n"), columns=POSITIONS)


def test_edge_features_keep_their_names(write, tmp_path):
    columns = {"src": "src", "dst": "dst", "time": "time", "edge_features": "rest"}
    path = write("src,dst,b,time,a\n1,2,5,3,4\n")
    store = convert_events(path, tmp_path / "store", columns=columns)
    assert store.edge_feature_names == read_events(path, columns=columns).edge_feature_names == ("b", "a")
    assert frame_table(pd.read_csv(path), columns=columns).store().edge_feature_names == ("b", "a")
    jodie = "user_id,item_id,timestamp,state_label,u,v\n1,2,3,0,5,6\n"
    assert read_events(write(jodie)).edge_feature_names == ("u", "v")
    for text in (JODIE_HEADER + "1,2,3,0,5,6\n", "1 2 3 4\n", jodie.replace("u,v", "u,u"), "1,2,3,0\n"):
        chosen = {**POSITIONS, "edge_features": [3]} if text[:4] in ("1,2,", "1 2 ") else None
        assert read_events(write(text), columns=chosen).edge_feature_names is None


def test_snap_by_position_and_csv_between_blanks(write):
    konect = write("% bip weighted\n% 2 1 1\n1 1 5 100\n2 1 4 200\n", "konect")
    columns = {"src": 0, "dst": 1, "edge_features": [2], "time": 3}
    store = read_events(konect, columns=columns, bipartite=True)
    assert edges(store) == [(1, 1, 100.0), (2, 1, 200.0)]
    assert store.edge_features.tolist() == [[5.0], [4.0]]
    assert edges(read_events(write("src dst time\n1 2 3\n"), format="csv")) == [(1, 2, 3.0)]


def test_a_saved_store_is_opened(write, tmp_path):
    store = read_events(write("a b 1\nb c 2\n"))
    store.save(tmp_path / "store")
    assert edges(read_events(tmp_path / "store")) == edges(store)


def test_unsorted_rows_are_sorted_with_a_notice(write):
    with pytest.warns(UserWarning, match="not sorted by time"):
        store = read_events(write("1 2 5 50\n3 4 1 10\n5 6 5 51\n"), format="snap")
    assert edges(store) == [(3, 4, 1.0), (1, 2, 5.0), (5, 6, 5.0)]
    assert store.edge_features.tolist() == [[10.0], [50.0], [51.0]]


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        ([9007199254740993, 9007199254740992, -3], np.int64),
        ([2**63 - 1, -(2**63), 0], np.int64),
        ([2**63 + 1, 2**63, 5], np.uint64),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_integer_ids_are_exact(write, small_chunks, ids, dtype, apart):
    pairs = [(a, b) for a in ids for b in ids] * 2
    path = write("".join(f"{a} {b} {time}\n" for time, (a, b) in enumerate(pairs)))
    store = read_events(path, bipartite=apart)
    assert store.node_ids.dtype == dtype
    assert store.node_ids.tolist() == sorted(ids) * (2 if apart else 1)
    assert [edge[:2] for edge in edges(store)] == pairs


@pytest.mark.parametrize("odd", ["99999999999999999999", "-1", "x", "1e3", "True", "1_0", "NA", "nan"])
def test_ids_that_are_not_all_64_bit_integers_stay_as_written(write, small_chunks, odd):
    rows = [("9223372036854775809", "007"), ("7", "7"), ("8", "8"), (odd, "7")]
    store = read_events(write("".join(f"{a},{b},{t}\n" for t, (a, b) in enumerate(rows))), columns=POSITIONS)
    assert [edge[:2] for edge in edges(store)] == rows
    assert store.node_ids.dtype.kind == "U"
    assert store.node_ids.tolist() == sorted({odd, "007", "7", "8", "9223372036854775809"})


def test_string_ids_are_no_missing_values_quotes_or_comments(write):
    rows = [
        ("NA", "null"),
        ("N/A", "None"),
        ("#tag", 'say "hi", ü'),
        ("true", "1.5"),
        ("NaN", "a b"),
    ]
    body = "".join('"{}","{}",{}\n'.format(a.replace('"', '""'), b.replace('"', '""'), 5) for a, b in rows)
    assert [edge[:2] for edge in edges(read_events(write("src,dst,time\n" + body)))] == rows


def test_quotes_are_letters_in_snap(write):
    assert edges(read_events(write('"a b" 1\n\'c d,e 2\n'))) == [('"a', 'b"', 1.0), ("'c", "d,e", 2.0)]


def test_blanks_around_fields_are_dropped(write):
    store = read_events(write('src , dst,time \n a , "b, c ",  1 \n"b, c",a\t, 2\n'))
    assert edges(store) == [("a", "b, c", 1.0), ("b, c", "a", 2.0)]


def test_numbers_do_not_depend_on_the_order_of_rows(write):
    rows = [f"{src} {dst} 1\n" for src, dst in [("b", "a"), ("c", "d"), ("e", "b")]]
    ids = [read_events(write("".join(order))).node_ids.tolist() for order in (rows, rows[::-1])]
    assert ids == [["a", "b", "c", "d", "e"]] * 2


def test_times_are_the_nearest_float64(write):
    generator = random.Random(0)
    texts = sorted((repr(generator.uniform(0, 2e9)) for _ in range(2000)), key=float)
    store = read_events(write("".join(f"1 2 {text}\n" for text in texts)))
    assert store.time.tolist() == [float(text) for text in texts]


def refused(path, *parts, error=DataError, **arguments):
    """Assert that reading is refused in one line that holds ``parts`` in this order."""
    pattern = ".*".join(re.escape(part) for part in parts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=pattern) as caught:
            read_events(path, **arguments)
    assert "\n" not in str(caught.value)


def test_unknown_format_lists_the_valid_ones(write):
    refused(
        write("1 2 3"), "format", "'auto', 'csv', 'jodie', 'snap'", "'tgl'", format="tgl", error=InvalidArgumentError
    )


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (["a", "b", "c"], ("columns must be a mapping", "['a', 'b', 'c']", "columns={'src': 0")),
        ({"src": 0, "dst": 1}, ("columns must be a mapping with src, dst, time", "['dst', 'src']")),
        ({"src": 0, "dst": 1, "time": None}, ("columns must be a mapping with src, dst, time",)),
        ({**POSITIONS, "weight": 3}, ("label, edge_features and categories", "'weight'", "for example")),
        ({**POSITIONS, "edge_features": "w"}, ("columns['edge_features']", "'rest'", "write ['w']")),
        ({**POSITIONS, "src": -1}, ("columns['src']", "position from 0", "-1")),
        ({**POSITIONS, "edge_features": [1.5]}, ("columns['edge_features']", "position from 0", "1.5")),
    ],
)
def test_columns_of_the_wrong_form(write, columns, parts):
    refused(write("1,2,3"), *parts, columns=columns, error=InvalidArgumentError)


def test_columns_where_they_cannot_apply(write):
    names = {"src": "a", "dst": "b", "time": "c"}
    refused(write("1 2 3"), "columns", "positions", "'csv'", format="snap", columns=names, error=InvalidArgumentError)
    refused(
        write("1 2 3"), "columns", "left out", "'csv'", format="jodie", columns=POSITIONS, error=InvalidArgumentError
    )
    refused(write("1 2 3"), "bipartite", "True, False or None", "'yes'", bipartite="yes", error=InvalidArgumentError)


def test_no_such_file_and_a_folder(tmp_path):
    refused(tmp_path / "none.csv", "none.csv", "an existing file", "check the path")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(tmp_path / "loop", "loop must be a readable file", "symbolic links", "check the path")
    refused(tmp_path, str(tmp_path), "no event store", "EventStore.save")


@pytest.mark.parametrize(
    ("content", "received"),
    [
        (b"", "an empty file"),
        (gzip.compress(b"", mtime=0), "an empty file"),
        (b"\xef\xbb\xbf", "an empty file"),
        (b"\n \n", "comments and blank lines only"),
        (b"# a\n% b\n", "comments and blank lines only"),
        (b"src,dst,time\n\n", "a header only"),
        (JODIE_HEADER.encode(), "a header only"),
    ],
)
def test_nothing_to_read(write, content, received):
    refused(write(content), "events must be", "a row per event", received, "check how it was written")


@pytest.mark.parametrize(
    ("text", "line", "what", "received", "arguments"),
    [
        ("# c\n\n1 2 3\n#c\n1 2 x\n", 5, "time (column 2, counted from 0)", "'x'", {}),
        ("1 2 3\n1 2 nan\n", 2, "time", "'nan'", {}),
        ("1 2 3\n\n1 2 -inf\n", 3, "time", "'-inf'", {}),
        ("1 2 3\n1 2 1e999\n", 2, "time", "'1e999'", {}),
        ("1 2 3\n1 2 True\n", 2, "time", "'True'", {}),
        ("1 2 3\n1 2 1_0\n", 2, "time", "'1_0'", {}),
        ("1 2 3 4\n1 2 4 4\n1 2 3 1e39\n", 3, "edge feature (column 3, counted from 0)", "'1e39'", {"format": "snap"}),
        ("1 2 3 a\n", 1, "edge feature", "'a'", {"format": "snap"}),
        ("src,dst,time\n1,2,3\n\n1,2,\n", 4, "time (column 'time')", "''", {}),
        ("src,dst,time\n1,2,5\n1,2,2020-01-01\n", 3, "time", "'2020-01-01'", {}),
        ("src,dst,time\n1,2,True\n", 2, "time", "'True'", {}),
        ('src,dst,time,note\n1,2,3,"two\nlines"\n1,2,x,\n', 4, "time", "'x'", {}),
        (JODIE_HEADER + "1,2,3,0,1\n1,2,3,no,1\n", 3, "label", "'no'", {}),
        (JODIE_HEADER + "1,2,3,0,1\n1,2,3,0,\n", 3, "edge feature", "''", {}),
        ("src,dst,t,w\n1,2,3,\n1,2,3,4\n", 2, "edge feature (column 'w')", "''", {"edge_features": "rest"}),
        ("src,dst,t,w\n1,2,3,4\n1,2,3,n/a\n", 3, "edge feature (column 'w')", "'n/a'", {"edge_features": "rest"}),
    ],
)
@pytest.mark.usefixtures("small_chunks")
def test_text_where_a_number_belongs(write, text, line, what, received, arguments):
    if arguments and "format" not in arguments:
        arguments = {"columns": {"src": "src", "dst": "dst", "time": "t", **arguments}}
    cure = "write times as numbers" if what.startswith("time") else ""
    requirement = "at most 3.403e+38 in size" if received == "'1e39'" else "a finite number"
    refused(write(text), f"events, line {line}: {what}", requirement, f"got {received}", cure, **arguments)


@pytest.mark.parametrize(
    ("text", "line", "received"),
    [
        ("2020-01-31\n2020-02-30", 3, "2020-02-30"),
        ("2020-01-31\n1580428800", 3, "1580428800"),
        ("2020-01-31\n2020-02-01\n2020", 4, "2020"),
        ("2020-01-31\n20200201", 3, "20200201"),
        ("2020-01-31\n", 3, ""),
        ("2020-01-31\nNaT", 3, "NaT"),
        ("2020-01-31T10:00\n2020-01-31T25:00", 3, "2020-01-31T25:00"),
        ("2020-01-31T10:00\n2020-01-31T10:00 o'clock", 3, "2020-01-31T10:00 o'clock"),
        ("2020-01-31\n31.01.2020", 3, "31.01.2020"),
    ],
)
@pytest.mark.usefixtures("small_chunks")
def test_times_that_are_no_dates_among_dates(write, text, line, received):
    rows = "".join(f"1,2,{time}\n" for time in text.split("\n"))
    where = f"events, line {line}: time (column 'time')"
    refused(write("src,dst,time\n" + rows), where, "a date, as in the first row", received, "or all as dates")


def test_a_number_of_many_digits_is_the_nearest_float64(write):
    assert edges(read_events(write("1 2 99999999999999999999\n"))) == [(1, 2, 1e20)]


def test_a_quote_that_opens_in_the_last_column_swallows_no_row(write, tmp_path):
    rows = "".join(f"1,2,{time},x\n" for time in range(5))
    for note in ('"x\nin two lines"', '"x\r\n"'):
        assert len(read_events(write(f"src,dst,time,note\n{rows}3,4,5,{note}\n"))) == 6
    refused(
        write(f'src,dst,time,note\n{rows}3,4,5,"x\n{rows}'), "line 7 must be a row", "never closed", "close the quo"
    )


def test_blanks_before_quotes_anywhere(write, small_chunks):
    text = 'src,dst,time,note\na,"b, c",1,x\n"b, c", "d ""e"" f",2, "y\nz"\n a ,b,3,"p "" q"\n\n'
    store = read_events(write(text))
    assert edges(store) == [("a", "b, c", 1.0), ("b, c", 'd "e" f', 2.0), ("a", "b", 3.0)]
    refused(write(text + "a,b,4\n"), "line 7 must be a row of 4 columns", "3 column")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_with_any_line_end(write, end):
    text = "# c\n1 2 3\n\n1 2 x\n".replace("\n", end)
    refused(write(text), "events, line 4: time", "'x'")


def test_the_line_is_right_far_into_a_packed_file(write):
    lines = ["# c", ""] + [f"{i} {i + 1} {i}" for i in range(300_000)]
    lines[250_000] = "# c"
    lines[290_000 - 1] = "1 2 soon"
    refused(write(gzip.compress("\n".join(lines).encode(), 1)), "events, line 290000: time", "'soon'")


@pytest.mark.parametrize("empty", ["", " ", '""', "\t"])
@pytest.mark.parametrize("role", ["src", "dst"])
@pytest.mark.parametrize("other", ["7", "x"])
def test_an_empty_id(write, empty, role, other):
    row = f"{empty},{other},2" if role == "src" else f"{other},{empty},2"
    where = f"events, line 3: {role} (column '{role}')"
    refused(write(f"src,dst,time\n1,2,1\n{row}\n"), where, "a node id", "drop or repair")


@pytest.mark.parametrize(
    ("text", "line", "width", "received"),
    [
        ("1 2 3\n#\n1 2\n", 3, 3, 2),
        ("1 2 3\n1 2 3 4\n", 2, 3, 4),
        ("1 2 3 4\n1 2 3 4\n\n1 2 3\n", 4, 4, 3),
        ("src,dst,time\n1,2,3\n1,2\n", 3, 3, 2),
        ("src,dst,time\n1,2,3\n1,2,3,4\n", 3, 3, 4),
        ("src,dst,time\n1,2,3\n1,2,3,\n", 3, 3, 4),
        ("src,dst,time\n1,2,3,4\n", 2, 3, 4),
        ("src,dst,time,w\n1,2,3\n", 2, 4, 3),
        ("time,src,dst\n1,a,b\n1,a\n", 3, 3, 2),
        ("src,dst,time,note\n1,2,3,\n1,2,3,x\n1,2,3\n", 4, 4, 3),
        (JODIE_HEADER + "1,2,3,0,1,2\n1,2,3,0,1\n", 3, 6, 5),
        (JODIE_HEADER + "1,2,3,0,1\n1,2,3,0,1\n1,2,3,0,1,2\n", 4, 5, 6),
        (JODIE_HEADER + "1,2,3\n", 2, 4, 3),
        (JODIE_HEADER.replace("comma_separated_list_of_features", "a,b") + "1,2,3,0,1\n", 2, 6, 5),
    ],
)
@pytest.mark.usefixtures("small_chunks")
def test_rows_of_another_width(write, text, line, width, received):
    form = {"format": "snap"} if text.startswith("1 2 3 4") else {}
    refused(write(text), f"events, line {line} must be a row of", f"{width} columns", f"{received} column", ";", **form)


@pytest.mark.parametrize("rows_between", [1, 2, 9000])
@pytest.mark.parametrize("role", ["src", "dst"])
def test_a_quote_that_is_closed_rows_later(write, rows_between, role):
    opened, closed = ('"a,b,2', 'c",b,3') if role == "src" else ('a,"b,2', 'c",3')
    between = "a,b,2\n" * (rows_between - 1)
    path = write(f"src,dst,time\na,b,1\n{opened}\n{between}{closed}\n")
    if rows_between < 9000:
        refused(path, f"events, line 3: {role} (column '{role}')", "a node id of one line", "close the quote")
    else:
        refused(path, f"events, line 3: {role}", "a node id of one line", "close the quote")


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_the_longest_id(write, letter):
    width = len(letter.encode())
    fits, long = letter * (4096 // width), letter * (4096 // width + 1)
    assert edges(read_events(write(f"a {fits} 1\n"))) == [("a", fits, 1.0)]
    received = f"{width * len(long):,} bytes: {letter * 40}..."
    refused(write(f"a b 1\na {long} 2\n"), "events, line 2: dst", "at most 4,096 bytes", received, "raise longest_id")
    assert edges(read_events(write(f"a {long} 1\n"), longest_id=5000)) == [("a", long, 1.0)]
    refused(write("a b 1\nabc b 2\n"), "line 2: src", "at most 2 bytes", "3 bytes: abc...", longest_id=2)
    refused(write("a b 1"), "longest_id", "at least 1", "0", longest_id=0, error=InvalidArgumentError)


def test_ids_that_memory_does_not_hold_at_one_width(write, monkeypatch):
    monkeypatch.setattr("lightning_tgnn.files.memory.available_memory", lambda: 100_000)
    path = write("".join(f"a{i} b{i} 1\n" for i in range(50)) + f"a {'x' * 400} 1\n")
    refused(
        path,
        "ids must be small enough for memory",
        "102 ids, the longest of 400 letters: 489.6 kB, 100.0 kB free",
        "shorten",
    )


def test_an_empty_last_column_is_no_short_row(write):
    assert edges(read_events(write("src,dst,time,note\n1,2,3,\n1,2,4,x\n"))) == [(1, 2, 3.0), (1, 2, 4.0)]


def test_a_quote_that_is_never_closed(write):
    refused(write('src,dst,time\na,b,1\n"a,b,2\na,b,3\n'), "events, line 3", "quote", "close the quote")
    long = "".join(f"a,b,{i}\n" for i in range(40_000))
    refused(write('src,dst,time\na,b,1\n"a,b,2\n' + long), "events, line 3", "close the quotes")


def test_a_quote_that_is_never_closed_in_the_header(write):
    refused(write('src,dst,"time\n1,2,3\n'), "line 1 must be a whole header", "close the quotes")


def test_a_carriage_return_before_a_comment_costs_no_event(write):
    assert edges(read_events(write("\r% comment\n1 2 3\n4 5 6\n"))) == [(1, 2, 3.0), (4, 5, 6.0)]


def test_labels_that_float64_does_not_tell_apart_are_no_classes(write):
    labels = [read_events(write(JODIE_HEADER + f"1,2,3,{2**53 + more},1\n")).labels for more in (-1, 0, 1)]
    assert [label.dtype for label in labels] == [torch.int64, torch.float64, torch.float64]
    assert labels[0].item() == 2**53 - 1


def test_a_long_first_line_is_read_and_an_endless_field_is_refused(write):
    numbers = [f"{'0' * 130}{i}" for i in range(1000)]
    snap = read_events(write(f"a b 1 {' '.join(numbers)}\n"), format="snap")
    header = ",".join(f"{'f' * 130}{i}" for i in range(1000))
    path = write(f"src,dst,time,{header}\n1,2,3,{','.join(numbers)}\n")
    csv = read_events(path, columns={**POSITIONS, "edge_features": "rest"})
    assert snap.edge_features.tolist() == csv.edge_features.tolist() == [list(range(1000))]
    refused(write("x" * 200_000 + ",dst,time\n1,2,3\n"), "line 1 must be a header or an event", "field larger than")
    refused(write("x" * 200_000 + "\n"), "line 1 must be src dst time")
    refused(write('"' + "x" * 200_000 + ",dst,time\n1,2,3\n"), "line 1 must be", "close the quotes")


@pytest.mark.parametrize("content", [b"\0", b"1 2 3\n4 5 ", b"\r1 2 3\r\nx"])
def test_text_without_an_end_of_line_is_refused_at_the_longest(write, content):
    number = 1 + content.count(b"\n")
    path = write(gzip.compress(content + content[-1:] * (1 << 26), 1))
    refused(
        path, f"events, line {number} must be of at most 16,777,216 bytes", repr(content[-1:] * 3)[2:5], "a line per"
    )


def test_old_line_ends_are_no_long_line(write):
    rows = "1 2 3\r" * 3_000_000  # 18 MB
    assert len(read_events(write(rows))) == 3_000_000


def test_pipes_and_devices_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (tmp_path / "link", "a pipe"), (Path("/dev/zero"), "a device")):
        refused(path, f"{path} must be a file", kind, "write what it gives to a file first")
        refused(path, f"{path} must be a file", kind, format="csv")


@pytest.mark.parametrize(("cut", "flip"), [(50, None), (-4, None), (9, None), (None, 200), (None, -6)])
def test_a_damaged_gzip_file(write, cut, flip):
    text = "".join(f"{random.Random(i).random()} {i} {i}\n" for i in range(200))
    packed = bytearray(gzip.compress(text.encode()))[:cut]
    if flip is not None:
        packed[flip] ^= 0xFF
    refused(write(bytes(packed)), "events must be a complete gzip file", "copy or download it again")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"PK\x03\x04abc", ("a zip archive", "unpack")),
        (b"PAR1abc", ("a complete Parquet file", "cut short")),
        ("1 2 3".encode("utf-16"), ("UTF-16 text", "UTF-8")),
        (b"\xef\xbb\xbf1 2 3\n\xef\xbb\xbf1 2 4\n", ("line 2 must be text without a byte order mark", "take it out")),
        (gzip.compress(b"1 2 3\n\n\0\0\x01", mtime=0), ("line 3 must be text", "binary data", "give a text file")),
        ("1 2 3\n1 2 4\nü b 5\n".encode("latin1"), ("line 3 must be UTF-8 text", r"b'\xfc'", "iconv")),
    ],
)
def test_no_text(write, content, parts):
    refused(write(content), "events", *parts)


def test_the_line_of_a_foreign_letter_beyond_the_first_block(write):
    text = b"1 2 3\n" * 400_000 + "ü 2 3\n".encode("latin1")
    refused(write(text), "events, line 400001 must be UTF-8")


def test_columns_that_are_not_there(write):
    path = write("a,b,c\n1,2,3\n")
    refused(path, "columns['time']", "'t'", "['a', 'b', 'c']", columns={"src": "a", "dst": "b", "time": "t"})
    refused(path, "columns['time']", "below 3", "3", "['a', 'b', 'c']", columns={**POSITIONS, "time": 3})
    refused(write("1 2 3", "bare"), "columns['time']", "below 3", "without a header", columns={**POSITIONS, "time": 3})
    refused(path, "one usual name for src", "source", "none in ['a', 'b', 'c']", "columns={'src': 'a'")
    several = write("user,user_id,item,time\n1,2,3,4\n", "several")
    refused(
        several, "one usual name for src", "several in ['user', 'user_id', 'item', 'time']", "columns={'src': 'user'"
    )
    timeless = write("src,dst,when\n1,2,3\n")
    refused(timeless, "one usual name for time", "none in ['src', 'dst', 'when']", "columns={'time': 'when'")


def test_columns_that_are_shared_or_twice(write):
    path = write("a,b,c,c\n1,2,3,4\n")
    shared = {"src": "a", "dst": "a", "time": 2}
    refused(path, "columns must be a mapping to distinct", "'a' for src and dst", "each column once", columns=shared)
    shared = {"src": 0, "dst": "b", "time": 2, "edge_features": ["b"]}
    refused(path, "columns must be", "'b' for dst and edge_features", columns=shared)
    twice = {"src": "a", "dst": "b", "time": "c"}
    refused(path, "columns['time']", "occurs once", "'c'", "positions [2, 3]", columns=twice)
    assert edges(read_events(path, columns={**twice, "time": 3})) == [(1, 2, 4.0)]


def test_a_label_that_is_a_feature_too(write):
    header = JODIE_HEADER.replace("comma_separated_list_of_features", "state_label")
    refused(write(header + "1,2,3,0,0\n"), "state_label once each", "['state_label'] twice", "leave out the column")


def test_no_header(write):
    refused(write("1,2,3\n4,5,6\n"), "line 1 must be a header", "'1,2,3'", "columns={'src': 0")
    names = {"src": "a", "dst": "b", "time": "c"}
    refused(write("1,2,3\n4,5,6\n"), "line 1 must be a header", "'1,2,3'", "positions", columns=names)
    refused(write("1,2,3,0\n"), "line 1 must be JODIE's header", "user_id,item_id", format="jodie")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("1,2,1x\n1,2,3\n", {"columns": POSITIONS}),
        ("ann,bob,1x\nann,bob,3\n", {"columns": POSITIONS}),
        ("ann,bob,\nann,bob,3\n", {"columns": POSITIONS}),
        ("1,2,soon\n1,2,3\n", {"columns": POSITIONS}),
        ("ann,bob,2020-13-01\nann,bob,2020-12-01\n", {"columns": POSITIONS}),
        ("ann,bob,soon,1\nann,bob,3,1\n", {"columns": {**POSITIONS, "label": 3}}),
        ("src\tdst\t12\n1\t2\t3\n", {}),
        ("Source destination 12\n1 2 3\n", {}),
        ("src dst 12\n1 2 3\n", {"columns": POSITIONS}),
        ("user_id,item_id,12\n1,2,3\n", {"columns": POSITIONS}),
    ],
)
def test_a_first_row_that_is_neither_header_nor_event(write, text, arguments):
    refused(write(text), "events, line 1 must be a header or an event", text[:3], "repair", **arguments)


def test_a_damaged_first_row_is_no_header_of_jodie(write):
    for row in ("x0,0,0.0,0,1\n", "0x,0,0.0,0,1\n", "u,i,0.0,y\n"):
        refused(write(row + "1,0,36.0,0,1\n"), "line 1 must be JODIE's header", format="jodie")


def test_snap_without_times_or_with_a_bare_heading(write):
    refused(write("# c\n1 2\n"), "line 2 must be src dst time", "2 column(s): 1 2", "not a stream")
    refused(write("src dst time\n1 2 3\n"), "line 1: time", "'time'", "start a heading with #")


def test_konect_is_not_taken_for_snap(write):
    refused(write("% sym weighted\n1 2 1 100\n"), "src dst time", "KONECT", "'edge_features': [2], 'time': 3}")
    refused(write("% bip unweighted\n1 2 1 100\n"), "KONECT", "'time': 3}, bipartite=True")


@pytest.mark.parametrize("rows", ["3.0,4.0,1\n", "3,4.0,1\n4,3.0,2\n"])
def test_integers_written_as_floats_are_not_split_into_two_nodes(write, rows):
    refused(write("src,dst,time\n" + rows), "line 2: ", "an integer or a name", ".0'", "Int64")


words = st.text(st.sampled_from("abü#% ,;\"'NA1-."), min_size=1, max_size=6).map(str.strip).filter(bool)
identifiers = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6),
    st.lists(words.filter(lambda word: not re.fullmatch(r"-?\d+(\.0)?", word)), min_size=1, max_size=6),
)
numbers = st.floats(-1e12, 1e12, allow_nan=False)


@st.composite
def streams(draw):
    ids = st.sampled_from(draw(identifiers))
    width = draw(st.integers(0, 2))
    row = st.tuples(ids, ids, numbers, st.lists(st.floats(-1e6, 1e6, width=32), min_size=width, max_size=width))
    return draw(st.permutations(draw(st.lists(row, min_size=1, max_size=20))))


def plain_numbers(rows, apart):
    """Number the ids with sets and lists only."""
    if not apart:
        ids = sorted({row[0] for row in rows} | {row[1] for row in rows})
        return ids, [ids.index(row[0]) for row in rows], [ids.index(row[1]) for row in rows]
    users, items = sorted({row[0] for row in rows}), sorted({row[1] for row in rows})
    return users + items, [users.index(row[0]) for row in rows], [len(users) + items.index(row[1]) for row in rows]


@pytest.mark.filterwarnings("ignore:events were not sorted")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=streams(), form=st.sampled_from(["csv", "snap"]), apart=st.booleans(), size=st.sampled_from([1, 8, 1000]))
def test_equals_a_plain_reading(tmp_path, monkeypatch, rows, form, apart, size):
    monkeypatch.setattr(parse_module, "_cells", in_pieces(size))
    if form == "snap":
        rows = [(*(re.sub(r"[ #%]", "_", i) if isinstance(i, str) else i for i in row[:2]), *row[2:]) for row in rows]
    path = tmp_path / "events"
    with path.open("w", newline="") as file:
        if form == "csv":
            csv.writer(file).writerows([["src", "dst", "time", *(f"f{i}" for i in range(len(rows[0][3])))]])
            csv.writer(file).writerows([*row[:3], *row[3]] for row in rows)
        else:
            file.writelines(" ".join(map(str, [*row[:3], *row[3]])) + "\n" for row in rows)
    columns = {"src": "src", "dst": "dst", "time": "time", "edge_features": "rest"} if form == "csv" else None
    store = read_events(path, format=form, columns=columns, bipartite=apart)

    rows = sorted(rows, key=lambda row: row[2])
    ids, src, dst = plain_numbers(rows, apart)
    assert store.node_ids.tolist() == ids
    assert (store.src.tolist(), store.dst.tolist()) == (src, dst)
    assert store.time.tolist() == [row[2] for row in rows]
    features = [[] for _ in rows] if store.edge_features is None else store.edge_features.tolist()
    assert features == [row[3] for row in rows]
