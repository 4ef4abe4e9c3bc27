"""What a table means: what is not sure is asked for, what is assumed is said, kept and used by `predict`."""

import warnings

import numpy as np
import pandas as pd
import pytest

from lightning_tgnn import EventStore, LinkPrediction, Predictor
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import DataError
from lightning_tgnn.data.sources.convert import convert_events
from lightning_tgnn.data.sources.open_events import read_source
from tests.serving.runs import SMALL, data_module, fitted


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="e.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write_file


def every_way(path, **options):
    """Yield what each reader makes of a CSV."""
    yield read_source(path, **options)
    yield read_source(pd.read_csv(path), **options)
    yield convert_events(path, path.parent / f"store{len(list(path.parent.iterdir()))}", **options)


@pytest.mark.parametrize(
    ("header", "apart"), [("user_id,item_id", True), ("User,Item", True), ("source,target", False)]
)
def test_kinds_of_nodes_go_by_names_that_say_them(write, header, apart):
    path = write(f"{header},timestamp\n7,7,1\n8,7,2\n7,9,3\n")
    for store in every_way(path):
        assert store.num_nodes == (4 if apart else 3)
        assert bool((store.src == store.dst).any()) != apart
        assert store.origin.apart == apart
        assert ("two kinds of nodes" if apart else "one kind of node") in str(store.origin)


def test_kinds_of_nodes_are_asked_for_where_it_matters(write):
    columns = {"src": "customer", "dst": "product", "time": "when"}
    path = write("customer,product,when\n7,7,1\n8,7,2\n")
    for read in (
        lambda: read_source(path, columns=columns),
        lambda: read_source(pd.read_csv(path), columns=columns),
        lambda: convert_events(path, path.parent / "store", columns=columns),
    ):
        with pytest.raises(
            DataError, match=r"bipartite for .* with 'customer' and 'product' must be given, .* such as 7"
        ):
            read()
    for apart in (True, False):
        for store in every_way(path, columns=columns, bipartite=apart):
            assert store.num_nodes == (3 if apart else 2)
    path = write("customer,product,when\n7,17,1\n8,17,2\n")
    assert all(store.num_nodes == 3 for store in every_way(path, columns=columns))


@pytest.mark.parametrize(
    "rows",
    [
        ["20150218235959", "20150219000000", "20150219000001"],
        ["20240131", "20240201", "20240202"],
        ["201502182359", "201502190000"],
        ["2024013123", "2024020100"],
        ["202401", "202402", "202403", "202404"],
    ],
)
def test_a_calendar_in_digits_is_no_number(write, rows):
    path = write("src,dst,time\n" + "".join(f"{i},{i + 1},{t}\n" for i, t in enumerate(rows)))
    for read in (
        lambda: read_source(path),
        lambda: read_source(pd.read_csv(path)),
        lambda: convert_events(path, path.parent / "store"),
        lambda: EventStore.from_arrays([0] * len(rows), [1] * len(rows), np.array(rows, np.int64)),
    ):
        with pytest.raises(DataError, match=f"time must be numbers or dates, got '{rows[0]}, as all are a calendar"):
            read()


@pytest.mark.parametrize(
    "times", [[20240130, 20240199], [1700000000, 1700000060], [202401, 202402], [20240131] * 3, [0, 5]]
)
def test_numbers_that_are_no_calendar_are_numbers(times):
    assert len(EventStore.from_arrays([0] * len(times), [1] * len(times), times)) == len(times)


@pytest.mark.parametrize("other", ["100", "x100"])
def test_one_rule_of_ids_for_both_ends(write, other):
    path = write(f"src,dst,time\n007,{other},1\n7,{other},2\n0007,{other},3\n+7,{other},4\n")
    for store in (read_source(path), convert_events(path, path.parent / "store")):
        assert sorted(store.node_ids[store.src].tolist()) == ["+7", "0007", "007", "7"]
        assert store.origin.text_ids
        assert "ids are text" in str(store.origin)
    path = write(f"src,dst,time\n{other},0007,1\n{other},7,2\n")
    assert len(read_source(path).node_ids) == 3
    assert read_source(write("src,dst,time\n-7,0,1\n10,100,2\n")).node_ids.tolist() == [-7, 0, 10, 100]


def test_padding_far_into_a_large_file_is_seen(write):
    rows = [f"{i % 1000 + 1},{2000 + i % 7},{i}\n" for i in range(100_000)]
    path = write("src,dst,time\n" + "".join(rows))
    assert read_source(path).node_ids.dtype.kind == "i"
    path = write("src,dst,time\n" + "".join(rows) + "1,02001,100000\n")
    store = read_source(path)
    assert store.node_ids.dtype.kind == "U"
    assert "02001" in store.node_ids.tolist()


def test_times_that_have_become_equal_are_told_of(write):
    times = [1700000000123456789, 1700000000123456790, 1700000000133456789, 1700000000143456789]
    frame = pd.DataFrame({"src": [1, 2, 3, 1], "dst": [2, 3, 1, 3], "time": times})
    frame.to_csv(path := write("", "ns.csv"), index=False)
    frame.to_parquet(parquet := path.with_suffix(".parquet"))
    arrays = [frame[name].to_numpy() for name in frame]
    for read in (
        lambda: read_source(path),
        lambda: read_source(frame),
        lambda: read_source(parquet),
        lambda: convert_events(path, path.parent / "store"),
        lambda: EventStore.from_arrays(*arrays),
    ):
        with pytest.warns(UserWarning, match="float64 does not tell all times of the size of 1.7e"):
            read()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_source(frame.assign(time=[times[0], times[0], times[2], times[3]]))


def test_more_than_three_columns_between_blanks_have_to_be_named(write):
    path = write("1 2 1 1082040961\n2 3 1 1082040962\n", "e.txt")
    with pytest.raises(
        DataError, match=r"columns of .* must be given for more than src, dst and time.* say which is the time"
    ):
        read_source(path)
    assert read_source(path, format="snap").edge_feature_dim == 1
    assert read_source(path, columns={"src": 0, "dst": 1, "time": 3}).time.tolist() == [1082040961, 1082040962]


def test_dates_as_text_and_ids_of_two_types_are_read_as_a_csv_of_them_is(write):
    frame = pd.DataFrame(
        {"src": [7, 8, 7], "dst": ["a", "b", "7"], "time": ["2024-02-29", "2024-02-29T12:30Z", "2024-03-01"]}
    )
    frame.to_csv(path := write("", "d.csv"), index=False)
    csv, table = read_source(path), read_source(frame)
    assert csv.fingerprint == table.fingerprint
    assert csv.node_ids.tolist() == table.node_ids.tolist() == ["7", "8", "a", "b"]
    assert csv.origin == table.origin
    assert csv.origin.dates
    with pytest.raises(DataError, match=r"time .* must be dates of ISO 8601 in every row, got \"'soon' in row 2"):
        read_source(frame.assign(time=[*frame["time"][:2], "soon"]))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a folder with a stream of dates, with names of its own, and a model of it."""
    folder = tmp_path_factory.mktemp("dated")
    times = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(200), "h")
    frame = pd.DataFrame(
        {"customer": [f"c{i % 7}" for i in range(200)], "product": [f"p{i * 3 % 5}" for i in range(200)]}
    )
    frame.assign(when=times).to_csv(folder / "e.csv", index=False)
    columns = {"src": "customer", "dst": "product", "time": "when"}
    fitted(folder / "a.ckpt", data_module(folder / "e.csv", columns=columns))
    return folder


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predict_takes_the_names_of_training_and_gives_dates_back(run, tmp_path, saved, ending):
    path = run / "a.ckpt"
    if saved:
        path = tmp_path / "live.pt"
        Predictor.from_checkpoint(run / "a.ckpt").save(path)
    asked = pd.DataFrame({"customer": ["c1", "c2", "zz"], "product": ["p0", "p1", "p0"]})
    asked = asked.assign(when=["2024-01-20T12:00:00"] * 3)
    asked.to_csv(tmp_path / "q.csv", index=False)
    out = tmp_path / f"out.{ending}"
    main(["predict", f"--ckpt_path={path}", f"--score={tmp_path / 'q.csv'}", f"--output={out}"])
    answers = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
    assert list(answers.columns) == ["customer", "product", "when", "probability", "status"]
    assert (pd.to_datetime(answers["when"], utc=True) == pd.Timestamp("2024-01-20T12:00:00Z")).all()
    assert answers["status"][:2].tolist() == ["ok", "ok"]
    asked.rename(columns={"customer": "src"})[["src"]].to_csv(tmp_path / "top.csv", index=False)
    main(["predict", f"--ckpt_path={path}", f"--top_k={tmp_path / 'top.csv'}", "--k=2", f"--output={out}"])
    answers = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
    assert list(answers.columns)[:2] == ["src", "time"]
    assert pd.to_datetime(answers["time"], utc=True)[0] == pd.Timestamp("2024-01-09T07:00:00Z")


def test_inspect_fit_and_a_store_say_what_was_assumed(run, tmp_path, capsys, caplog):
    line = "read as src 'customer' and dst 'product' (one kind of node, ids are text), time 'when' (dates, as seconds"
    columns = {"src": "customer", "dst": "product", "time": "when"}
    with caplog.at_level("INFO"):
        data = data_module(run / "e.csv", columns=columns)
        data.setup()
    assert line in caplog.text
    opened = EventStore.open(data.store.save(tmp_path / "store"))
    assert opened.origin == data.store.origin
    main(["data", "inspect", f"--source={tmp_path / 'store'}", f"--output={tmp_path / 'look'}"])
    printed = " ".join(capsys.readouterr().out.split())
    assert line in printed
    assert "2024-01-01 00:00:00+00:00" in printed
    assert LinkPrediction.load_from_checkpoint(run / "a.ckpt").info.column_names == ("customer", "product", "when")
    assert SMALL["memory_dim"] == 8
