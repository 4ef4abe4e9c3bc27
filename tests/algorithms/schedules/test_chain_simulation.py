"""The simulation of chains against a clock that ticks, and against the rates that it has to keep."""

import json

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules.chain_simulation import GroupParts, simulate_chain
from lightning_tgnn.algorithms.schedules.operator_order import ALONE, KINDS, Operator
from lightning_tgnn.algorithms.schedules.painter import chrome_trace, timeline_figure

SECONDS = st.integers(1, 5)
OPERATOR = st.builds(Operator, st.sampled_from(KINDS), SECONDS.map(float))
CONTENDED = ((0.5, 0.9), (0.8, 0.4))


def slowly(parts, state_lags, gradient_lags, open_groups):
    """Return when the last part ends, second by second; ``parts[i][r]`` is (forward, backward) or None."""
    ranks, groups = len(parts[0]), len(parts)
    has = [[i for i in range(groups) if parts[i][rank]] for rank in range(ranks)]
    forward_end, backward_end, free = {}, {}, [0] * ranks
    now = 0
    while len(backward_end) < sum(map(len, has)):
        started = {}
        for rank in range(ranks):
            if free[rank] > now:
                continue
            ahead = [i for i in has[rank] if (i, rank) not in forward_end]
            opened = [i for i in has[rank] if (i, rank) in forward_end and (i, rank) not in backward_end]
            ending = [i for i in opened if not any(parts[i][rank + 1 :])]
            # The backward of what ends here follows its forward; others wait until there are as many as may be open.
            if ending or (opened and (len(opened) == open_groups or not ahead)):
                group = (ending or opened)[0]
                others = [r for r in range(rank + 1, ranks) if parts[group][r]]
                came = backward_end.get((group, others[0]), np.inf) + gradient_lags[group][others[0]] if others else 0
                if came <= now:
                    started[group, rank] = backward_end, parts[group][rank][1]
            elif ahead:
                group = ahead[0]
                others = [r for r in range(rank) if parts[group][r]]
                came = forward_end.get((group, others[-1]), np.inf) + state_lags[group][others[-1]] if others else 0
                if came <= now:
                    started[group, rank] = forward_end, parts[group][rank][0]
        for (group, rank), (ends, seconds) in started.items():
            ends[group, rank] = free[rank] = now + seconds
        now += 1
    return max(backward_end.values(), default=0)


def one_operator(seconds):
    return (Operator("nn", float(seconds)),)


@st.composite
def chains(draw):
    ranks, groups = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    parts = []
    for _ in range(groups):
        first, whole = draw(st.integers(0, ranks)), draw(st.booleans())  # from `ranks` on nobody has it
        has = [rank == first if whole else rank >= first for rank in range(ranks)]
        parts.append([draw(st.tuples(SECONDS, SECONDS)) if here else None for here in has])
    lags = [[[draw(st.integers(0, 2)) for _ in range(ranks)] for _ in range(groups)] for _ in range(2)]
    return parts, *lags, draw(st.integers(1, 4))


@seed(16)
@settings(max_examples=150, deadline=None)
@given(chains())
def test_a_chain_ends_when_a_clock_says(chain):
    parts, state_lags, gradient_lags, open_groups = chain
    groups = [
        GroupParts(
            tuple(one_operator(part[0]) if part else () for part in own),
            tuple(one_operator(part[1]) if part else () for part in own),
            state,
            gradient,
        )
        for own, state, gradient in zip(parts, state_lags, gradient_lags, strict=True)
    ]
    assert simulate_chain(groups, open_groups=open_groups).seconds == slowly(*chain)


def kind_beside(timeline, bar, begin, end):
    """Return the kinds that the other process runs between two moments, each with its seconds."""
    found = np.zeros(2)
    for other in range(len(timeline)):
        if timeline.rank[other] != timeline.rank[bar]:
            shared = min(end, timeline.end[other]) - max(begin, timeline.begin[other])
            found[timeline.stage[other] % 2] += max(shared, 0.0)
    return found


@seed(16)
@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(*[st.lists(OPERATOR, min_size=1, max_size=3)] * 4), min_size=1, max_size=4))
def test_operators_run_at_the_rates_of_what_runs_beside_them(operators):
    groups = [GroupParts((a, b), (c, d)) for a, b, c, d in operators]
    found = simulate_chain(groups, rates=CONTENDED)
    timeline = found.timeline
    work = [one.seconds for a, b, c, d in operators for part in (a, c, b, d) for one in part]
    overlap = 0.0
    for bar in range(len(timeline)):
        begin, end, kind = timeline.begin[bar], timeline.end[bar], timeline.stage[bar] % 2
        beside = kind_beside(timeline, bar, begin, end)
        alone = end - begin - beside.sum()
        assert alone + beside @ np.array(CONTENDED[kind]) == pytest.approx(work[bar])
        overlap += beside[1 - kind] / 2
    assert found.overlap == pytest.approx(overlap / found.seconds)
    lasted = np.bincount(timeline.rank, timeline.end - timeline.begin)
    np.testing.assert_allclose(found.waiting, 1 - lasted / found.seconds)


def test_the_first_process_does_not_run_ahead_of_its_open_groups():
    one, long = one_operator(1), one_operator(10)
    groups = [GroupParts((one, long), (one, long))] * 4
    for open_groups in (1, 2, 3):
        timeline = simulate_chain(groups, rates=ALONE, open_groups=open_groups).timeline
        forward = (timeline.rank == 0) & (timeline.stage == 1)
        gradient_at = timeline.end[(timeline.rank == 1) & (timeline.stage == 3)]
        begins = timeline.begin[forward]
        assert (begins[:open_groups] == np.arange(open_groups)).all()
        assert (begins[open_groups:] >= gradient_at[: 4 - open_groups]).all()


def test_whole_groups_of_both_processes_wait_for_nobody():
    one, none = one_operator(3), ()
    groups = [GroupParts((none, one), (none, one)), GroupParts((one, none), (one, none))] * 2
    found = simulate_chain(groups, rates=ALONE)
    assert found.seconds == 12
    assert found.waiting.tolist() == [0, 0]


def test_the_backward_of_a_whole_group_comes_before_that_of_an_open_one():
    short, long, none = one_operator(1), one_operator(5), ()
    groups = [GroupParts((short, long), (short, long)), GroupParts((long, none), (long, none))]
    timeline = simulate_chain(groups, rates=ALONE).timeline
    first = timeline.rank == 0
    assert timeline.turn[first][np.argsort(timeline.begin[first])].tolist() == [0, 1, 1, 0]


def test_a_timeline_can_be_painted():
    parts = (Operator("graph", 1.0), Operator("nn", 2.0))
    timeline = simulate_chain([GroupParts((parts, parts), (parts, parts))] * 2).timeline
    assert timeline.stages == ("graph forward", "nn forward", "graph backward", "nn backward")
    assert sorted(set(timeline.turn.tolist())) == [0, 1]
    (axes,) = timeline_figure(timeline).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(timeline.stages)
    bars = [event for event in json.loads(json.dumps(chrome_trace(timeline)))["traceEvents"] if event["ph"] == "X"]
    assert len(bars) == 16


def test_nothing_takes_no_time():
    idle = simulate_chain([GroupParts(((), ()), ((), ()))], rates=ALONE)
    assert idle.seconds == 0
