"""Snapshots of an event stream, held against a filter event by event."""

import math

import pytest
import torch
from hypothesis import given, seed
from hypothesis import strategies as st

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.snapshots.cuts import Cut

times = st.lists(st.integers(0, 40), min_size=2, max_size=40).map(
    lambda values: torch.tensor(sorted(values), dtype=torch.float64)
)


@seed(0)
@given(times, st.sampled_from([2.0, 3.5, 7.0, 50.0]), st.sampled_from([None, 1.0, 5.0, math.inf]))
def test_windows_have_the_events_of_their_time(time, window, lifetime):
    cut = Cut(window=window, lifetime=lifetime)
    span = float(time[-1] - time[0])
    number = math.floor(span / window) + 1
    if number > len(time):
        with pytest.raises(InvalidArgumentError, match=r"window must be such that .* no more snapshots than events"):
            cut.ranges(time)
        return
    begins, ends, until = cut.ranges(time)
    assert len(begins) == number
    for snapshot, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        closes = float(time[0]) + (snapshot + 1) * window
        opens = closes - (window if lifetime is None else lifetime)
        # The window has its first moment, not its last; an edge is there for less than its life time.
        there = [at for at, when in enumerate(time.tolist()) if when < closes and when >= opens]
        if lifetime is not None:
            there = [at for at in there if time[at] > opens]
        assert list(range(begin, end)) == there
        assert until[snapshot] == closes


@seed(1)
@given(times, st.integers(1, 12), st.sampled_from([0.0, 0.3, 0.5]))
def test_windows_of_equal_length_cover_the_stream(time, number, overlap):
    if number > len(time) or (number > 1 and time[0] == time[-1]):
        return
    begins, ends, until = Cut(num_snapshots=number, overlap=overlap).ranges(time)
    assert len(begins) == number
    assert (begins[0], ends[-1]) == (0, len(time))
    assert (begins[1:] <= ends[:-1]).all()
    if not overlap:
        assert (begins[1:] == ends[:-1]).all()
    length = float(until[0] - time[0])
    assert until.diff().numpy() == pytest.approx([length * (1 - overlap)] * (number - 1))


@seed(2)
@given(times, st.integers(1, 50), st.sampled_from([0.0, 0.25, 0.5, 0.9]))
def test_windows_of_equal_numbers_of_events(time, size, overlap):
    begins, ends, until = Cut(events_per_snapshot=size, overlap=overlap).ranges(time)
    step = max(round(size * (1 - overlap)), 1)
    expected = [(0, min(size, len(time)))]
    while expected[-1][1] < len(time):
        begin = expected[-1][0] + step
        expected.append((begin, min(begin + size, len(time))))
    assert list(zip(begins.tolist(), ends.tolist(), strict=True)) == expected
    assert (until.diff() > 0).all()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "num_snapshots, window, events_per_snapshot must be one of them given, got None; say"),
        ({"num_snapshots": 3, "window": 2.0}, "one of them given, got {'num_snapshots': 3, 'window': 2.0}"),
        ({"num_snapshots": 0}, "num_snapshots must be an integer of at least 1, got 0"),
        ({"window": -1.0}, "window must be a finite number above 0, got -1.0"),
        ({"events_per_snapshot": 1.5}, "events_per_snapshot must be an integer of at least 1, got 1.5"),
        ({"window": 1.0, "overlap": 1.0}, r"overlap must be a number in \[0, 1\), got 1.0"),
        ({"window": 1.0, "lifetime": 0}, "lifetime must be a finite number above 0, got 0"),
        ({"window": 1.0, "lifetime": 2.0, "overlap": 0.5}, "overlap must be 0 with a lifetime, got 0.5"),
    ],
)
def test_what_cannot_cut_a_stream_is_refused(given, told):
    with pytest.raises(InvalidArgumentError, match=told):
        Cut(**given)


def test_a_stream_of_one_moment_has_no_windows():
    time = torch.zeros(5, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"the stream must be events of several times, got 0.0; give events_per"):
        Cut(num_snapshots=2).ranges(time)
    assert [bounds.tolist() for bounds in Cut(events_per_snapshot=3).ranges(time)[:2]] == [[0, 3], [3, 5]]
