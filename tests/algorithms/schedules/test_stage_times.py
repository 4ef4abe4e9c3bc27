from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules.stage_times import Mark, segments, stage_seconds

# What happens in a step: a stage begins, the innermost ends, or the rank waits; each after some time.
HAPPENINGS = st.lists(st.tuples(st.sampled_from(["fetch", "embed", "step", None, "wait"]), st.integers(0, 9)))


def marks_and_reference(happenings):
    """Marks of a step as they would be recorded, and its seconds counted second by second."""
    marks, seconds, within = [Mark("other", 0, 0)], {}, ["other"]
    now = waited = 0
    for what, length in happenings:
        for _ in range(length):
            owner = "wait" if what == "wait" else within[-1]
            seconds[owner] = seconds.get(owner, 0) + 1
        now += length
        if what == "wait":
            waited += length
        elif what is not None:
            within.append(what)
            marks.append(Mark(what, now, waited))
        elif len(within) > 1:
            within.pop()
            marks.append(Mark(None, now, waited))
    marks += [Mark(None, now, waited)] * len(within)
    return marks, seconds


@given(HAPPENINGS)
def test_each_second_goes_to_the_innermost_stage_or_to_waiting(happenings):
    marks, expected = marks_and_reference(happenings)
    assert {stage: spent for stage, spent in stage_seconds(marks).items() if spent} == expected


@given(HAPPENINGS)
def test_segments_follow_each_other_and_are_those_that_are_added_up(happenings):
    marks, expected = marks_and_reference(happenings)
    found = list(segments(marks))
    moments = [moment for _, begin, end in found for moment in (begin, end)]
    assert moments == sorted(moments)
    assert all(end == begin for (_, _, end), (_, begin, _) in pairwise(found))
    assert not found or (moments[0], moments[-1]) == (marks[0].moment, marks[-1].moment)
    seconds = {}
    for stage, begin, end in found:
        seconds[stage] = seconds.get(stage, 0) + end - begin
    assert {stage: spent for stage, spent in seconds.items() if spent} == expected


def test_what_lies_between_steps_is_not_counted():
    first, second = [Mark("other", 0, 0), Mark(None, 2, 0)], [Mark("other", 100, 50), Mark(None, 103, 50)]
    assert stage_seconds(first + second) == {"other": 5}


def test_waiting_that_the_clock_has_not_seen_takes_nothing_away():
    assert stage_seconds([Mark("fetch", 0, 0), Mark(None, 1, 4)]) == {"fetch": 0, "wait": 1}


def test_nothing_took_no_time():
    assert stage_seconds([]) == {}
    with pytest.raises(IndexError):
        stage_seconds([Mark(None, 0, 0)])
