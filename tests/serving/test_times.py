"""Times of questions: dates mean what they mean in a DataFrame to train on, in whatever form they come."""

from datetime import datetime, timezone
from functools import cache

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn import Predictor
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import DataError
from lightning_tgnn.data.readers.frame import frame_table
from lightning_tgnn.data.readers.frame_columns import time_column
from lightning_tgnn.serving.node_numbers import StreamClock
from tests.serving.runs import data_module, fitted

TIMES = pd.DatetimeIndex(["2024-03-10 01:30:00", "2024-03-10 12:00:00.250"])
SECONDS = [1710034200.0, 1710072000.25]


@pytest.mark.parametrize(
    "times",
    [
        TIMES,
        *(TIMES.as_unit(unit).to_numpy() for unit in ("ms", "us", "ns")),
        TIMES.tz_localize("UTC").tz_convert("America/New_York"),
        pd.Series(TIMES.tz_localize("UTC").tz_convert("Asia/Tokyo")),
        pd.Series(TIMES, dtype="timestamp[us][pyarrow]"),
        list(TIMES),
        [time.to_pydatetime() for time in TIMES],
        [time.to_pydatetime().replace(tzinfo=timezone.utc) for time in TIMES],
        np.array(list(TIMES), dtype=object),
        pl.Series(list(TIMES.to_pydatetime())),
        pl.Series(list(TIMES.to_pydatetime())).dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"),
        SECONDS,
        np.array(SECONDS),
        torch.tensor(SECONDS, dtype=torch.float64),
        pd.Series(SECONDS, dtype="Float64"),
    ],
)
def test_every_form_gives_the_times_of_a_frame(times):
    assert time_column("time", times).tolist() == SECONDS
    if isinstance(times, pd.Series | pd.DatetimeIndex):
        frame = pd.DataFrame({"src": [0, 1], "dst": [1, 0], "time": times})
        assert frame_table(frame).store().time.tolist() == SECONDS


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (TIMES[1], SECONDS[1]),
        (datetime(2024, 3, 10, 12, 0, 0, 250_000), SECONDS[1]),
        (np.datetime64("2024-03-10T12"), 1710072000.0),
        (np.datetime64("2024-03-10"), 1710028800.0),
        (17, 17.0),
    ],
)
def test_one_time(time, seconds):
    assert time_column("time", time).tolist() == [seconds]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([TIMES[0], None], "time must be a value in every row, got 'none in row 1, counted from 0'"),
        (np.array(["2024-01-01", "NaT"], "datetime64[s]"), "time must be a value in every row, got 'none in row 1"),
        (["10.3.2024"], "time must be numbers or dates, got 'String'; convert it; in pandas, pd.to_datetime"),
        ([True], "time must be numbers or dates, got 'Boolean'"),
        ([TIMES[0], 5.0], "time must be of one type, got 'Timestamp in row 0 and float in row 1'"),
        ([1.0, np.inf], r"time\[1\] must be finite"),
        ([[1.0]], r"time must be of shape \[E\]"),
        (TIMES.to_numpy().reshape(1, 2), "time must be numbers, every row as long"),
    ],
)
def test_what_is_no_time_is_refused(times, message):
    with pytest.raises(DataError, match=message):
        time_column("time", times)


FLOATS = st.floats(-(2.0**60), 2.0**60) | st.sampled_from([0.1, 1.1e9 + 0.1, 2.0**53 - 1, 2.0**53, 2.0**53 + 2])


@seed(0)
@settings(deadline=None)
@example(origin=0.1, times=[1.1e9 + 0.1, np.nextafter(1.1e9 + 0.1, np.inf)])
@example(origin=0.3, times=[2.0**53 - 1, 2.0**53, 2.0**53 + 2])
@given(origin=FLOATS, times=st.lists(FLOATS, min_size=1, max_size=6))
def test_the_latest_time_is_the_one_that_was_given(origin, times):
    clock = StreamClock(origin, -np.inf)
    for time in sorted(times):
        clock.latest = clock.event_times([time], 1)[1]
        assert clock.latest == time  # the origin taken off and added again may be another number
        clock.query_times([clock.latest], 1)  # not refused as earlier than itself
        with pytest.raises(DataError, match=r"time\[0\] must be at least"):
            clock.query_times([np.nextafter(time, -np.inf)], 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rng = np.random.default_rng(0)
    dates = pd.date_range("1969-12-01 00:00:00.1", periods=200, freq="h")  # times around 0 are finer than the origin
    frame = pd.DataFrame({"src": rng.integers(0, 9, 200), "dst": rng.integers(9, 18, 200), "time": dates})
    folder = tmp_path_factory.mktemp("run")
    frame.to_parquet(folder / "stream.parquet")
    fitted(folder / "a.ckpt", data_module(folder / "stream.parquet"))
    return folder, dates[-1]


def test_a_predictor_takes_dates(run):
    folder, end = run
    next_hour = end + pd.Timedelta("1h")
    dated, numbered = (Predictor.from_checkpoint(folder / "a.ckpt") for _ in range(2))
    dated.observe([1], [11], pd.Series([next_hour]))
    numbered.observe([1], [11], [next_hour.timestamp()])
    assert dated.latest_time == numbered.latest_time == next_hour.timestamp()
    for time in (next_hour, [next_hour] * 2, np.array([next_hour.to_datetime64()] * 2)):
        expected = numbered.score([1, 2], [11, 12], next_hour.timestamp())
        assert (dated.score([1, 2], [11, 12], time) == expected).all()
    with pytest.raises(DataError, match=r"time\[0\] must be at least"):
        dated.score([1], [11], end)


INSTANTS = st.integers(0, 10**18).map(lambda count: pd.Timestamp("1969-12-20") + pd.Timedelta(count))


@seed(0)
@settings(deadline=None, max_examples=12)
@example(times=[0.1, 1.1e9 + 0.1, np.nextafter(1.1e9 + 0.1, np.inf)])
@example(times=[2.0**53 - 1, 2.0**53, 2.0**53 + 2])
@given(times=st.lists(st.floats(-1e6, 2.0**54), min_size=1, max_size=4) | st.lists(INSTANTS, min_size=1, max_size=4))
def test_the_latest_time_is_kept_to_the_last_bit(run, tmp_path_factory, times):
    folder, _ = run
    path = tmp_path_factory.getbasetemp() / "latest.pt"
    predictor = _dated(folder)
    predictor.reset()
    times = sorted(times)
    exact = time_column("time", times).tolist()
    for time, expected in zip(times, exact, strict=True):
        predictor.observe([1], [11], [time])
        predictor.save(path)
        predictor = Predictor.load(path)
        assert predictor.latest_time == expected
        assert predictor.score([1], [11], predictor.latest_time).shape == (1,)
        with pytest.raises(DataError, match=r"time\[0\] must be at least"):
            predictor.observe([1], [11], [np.nextafter(expected, -np.inf)])


@cache
def _dated(folder):
    return Predictor.from_checkpoint(folder / "a.ckpt")


def test_tables_take_dates(run, tmp_path):
    folder, end = run
    times = end + pd.to_timedelta([1, 2], "h")
    write = {name: tmp_path / f"{name}.parquet" for name in ("events", "pairs", "out")}
    pd.DataFrame({"src": [1], "dst": [11], "time": times[:1]}).to_parquet(write["events"])
    pd.DataFrame({"src": [1, 2], "dst": [11, 12], "time": times.tz_localize("UTC")}).to_parquet(write["pairs"])
    main(["predict", f"--ckpt_path={folder / 'a.ckpt'}", f"--events={write['events']}", f"--score={write['pairs']}",
          f"--output={write['out']}"])  # fmt: skip
    answers = pd.read_parquet(write["out"])
    seconds = [time.timestamp() for time in times]
    assert [time.timestamp() for time in answers["time"]] == seconds
    predictor = Predictor.from_checkpoint(folder / "a.ckpt")
    predictor.observe([1], [11], seconds[:1])
    np.testing.assert_allclose(answers["probability"], predictor.score([1, 2], [11, 12], seconds), atol=1e-6)
