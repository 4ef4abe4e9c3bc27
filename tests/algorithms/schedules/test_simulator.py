"""The simulator against one that goes action by action, and against Theorem 4.1 of PipeTGL."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules.links import Link, Links
from lightning_tgnn.algorithms.schedules.outlines import data_parallel, in_order, mean_gradients
from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline
from lightning_tgnn.algorithms.schedules.simulator import Costs, simulate
from lightning_tgnn.algorithms.traffic.gradient_compression import COMPRESSIONS
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import RankLayout
from lightning_tgnn.types.outline import USUAL_SHARES, After, Outline, Stage
from tests.algorithms.schedules.example_outlines import CUT, DATA_PARALLEL, PIPELINES, SERVED, copies
from tests.algorithms.schedules.slow_simulator import slowly

AT_ONCE = Links(Link(0, 1e30), Link(0, 1e30))
FAST = Links(Link(0, 1e9), Link(0, 1e9))
WITHIN, BETWEEN = Link(2.0, 8.0), Link(5.0, 4.0)
THEOREM = {"sends": "weights_and_moments", "sampling": "ahead"}
TABLE_2 = {
    "wikipedia": (13.4, 19.4, 11.4, 9.5, 37.1, 9.2),
    "mooc": (13.1, 16.3, 10, 11.3, 39.4, 9.9),
    "reddit": (12.4, 19.1, 13.5, 8.6, 37.2, 9.2),
    "lastfm": (13.5, 17.3, 10.9, 8.1, 40.5, 9.7),
    "gdelt": (19.5, 19.9, 10.6, 10.4, 31.4, 8.2),
}


def in_the_words_of_the_paper(sample, gather, t_mem, s_mem, backward, model):
    given = {"sample": sample, "gather": gather, "targets": t_mem, "support": s_mem, "backward": backward}
    return Costs({**given, "step": model}, {}, AT_ONCE)


def message_seconds(layout, travel, length):
    """Return the seconds of a transfer, from the definition, rank by rank."""

    def between(first, second):
        return WITHIN if layout.hosts[first] == layout.hosts[second] else BETWEEN

    def transfer(travel, ranks, sent):
        if isinstance(ranks, dict):
            return meeting(travel, ranks, sent)
        if isinstance(ranks, int):
            start = ranks // length * length
            others = [rank for rank in range(start, start + length) if rank != ranks]
            following = [start + (ranks - start + 1) % length] if others else []
            return sum(sent / between(ranks, other).bandwidth for other in (following if travel == "next" else others))
        raise AssertionError(travel)

    def meeting(travel, own, beside):
        count, ranks = len(own), list(own)
        if count == 1:
            return 0.0
        slowest = min((between(ranks[0], rank) for rank in ranks), key=lambda link: link.bandwidth)
        latency = max(between(ranks[0], rank).latency for rank in ranks)
        if travel == "all_reduce":
            return 2 * (count - 1) * (latency + max(own.values()) / count / slowest.bandwidth)
        out, inside = defaultdict(float), [0.0]
        for group in (own, *beside):
            for rank, size in group.items():
                each, near = size if travel == "all_gather" else size / max(count - 1, 1), 0.0
                for other in group:
                    if other != rank and between(rank, other) is BETWEEN:
                        out[layout.hosts[rank]] += each / BETWEEN.bandwidth
                    elif other != rank:
                        near += each / WITHIN.bandwidth
                if group is own:
                    inside.append(near)
        leaving = [out[layout.hosts[rank]] for rank in ranks] if slowest is BETWEEN else []
        return latency + max([*inside, *leaving])

    def latency(first, second):
        return between(first, second).latency

    return transfer, latency


@seed(14)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_moment_is_that_of_a_simulation_action_by_action(data):
    kind = data.draw(st.integers(0, 3))
    if kind == 0:
        outline, ranks = data.draw(st.sampled_from(DATA_PARALLEL)), data.draw(st.integers(1, 5))
    elif kind < 3:
        plan, shares = data.draw(st.sampled_from(([(plan, USUAL_SHARES) for plan in SERVED], CUT)[kind - 1]))
        outline, ranks = plan.outline("disttgl", shares), plan.layout.ranks
    else:
        pipeline = data.draw(st.sampled_from(PIPELINES))
        ranks = pipeline.groups * data.draw(st.integers(1, 3))
        outline = pipeline.of(ranks)
    turns, length = data.draw(st.integers(1, 4)), outline.length(ranks)
    layout = RankLayout.of(ranks, per_host=data.draw(st.integers(1, ranks)))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))

    def costs_of(travelling):
        names = outline.costs(travelling=travelling)
        return {name: random.integers(0, 64, (turns, ranks)).astype(float) for name in names}

    costs = Costs(costs_of(travelling=False), costs_of(travelling=True), Links(WITHIN, BETWEEN))
    found = simulate(outline, layout, costs, turns)
    transfer, latency = message_seconds(layout, None, length)

    def seconds(stage, rank, turn):
        takes_part = not stage.first_pass or outline.begins_batch(turn, rank, ranks)
        return float(costs.of(stage, turns, ranks)[turn, rank]) * takes_part

    begin, end = slowly(outline, layout, turns, seconds=seconds, transfer=transfer, latency=latency)
    for stage in outline.stages:
        known = [(turn, rank) for turn in range(turns) for rank in range(ranks) if (stage.name, rank, turn) in begin]
        for moments, slow in ((found.begin(stage.name), begin), (found.end(stage.name), end)):
            assert [moments[place] for place in known] == pytest.approx(
                [slow[stage.name, rank, turn] for turn, rank in known]
            )
    assert found.seconds == pytest.approx(max(end.values()))
    check_sums(found, outline)


def check_sums(found, outline):
    """Time is computing or idle, idle time has causes, and the critical path is as long as what hangs on it."""
    computing = [stage.name for stage in outline.stages if stage.on == "compute"]
    busy = sum(found.end(name) - found.begin(name) for name in computing).sum(axis=0)
    last = found.end(computing[-1])[-1]
    assert found.idle.sum(axis=0) + busy == pytest.approx(last)
    waited = sum(found.waiting().values(), np.zeros(found.ranks))
    assert waited == pytest.approx(found.idle.sum(axis=0))
    assert sum(found.critical_path().values()) <= found.seconds * (1 + 1e-9)


TIMES = st.integers(0, 40)


@seed(14)
@settings(max_examples=120, deadline=None)
@given(st.integers(1, 16), TIMES, TIMES, st.integers(1, 40), TIMES, TIMES, TIMES)
def test_the_bubble_is_that_of_theorem_4_1(length, sample, gather, t_mem, s_mem, backward, model):
    """And, where the chain of weight updates is the longest, the theorem's with that in the place of t_mem_op."""
    t_1 = sample + t_mem + s_mem + backward + model + sample
    t_2 = sample + length * t_mem
    computed = t_1 - sample
    gather = min(gather, computed - sample)  # the theorem lets it be hidden
    costs = in_the_words_of_the_paper(sample, gather, t_mem, s_mem, backward, model)
    found = simulate(PipeTGLOutline(**THEOREM).of(length), RankLayout.of(length), costs, 12)
    bubble = max(t_2 - t_1, 0)
    if length * model > max(computed, length * t_mem):
        assert max(length * model - computed, 0) > bubble
        bubble = length * model - computed
    assert found.idle[6:] == pytest.approx(np.full((6, length), bubble))
    assert found.period == pytest.approx(max(computed, length * t_mem, length * model))


@pytest.mark.parametrize("stream", TABLE_2)
def test_the_shares_of_the_paper_give_no_bubble_up_to_its_ranks(stream):
    shares = TABLE_2[stream]
    free = int((sum(shares) - shares[1]) // max(shares[2], shares[5]))
    assert free == {"wikipedia": 7, "mooc": 8, "reddit": 5, "lastfm": 7, "gdelt": 7}[stream]
    for length in range(1, 11):
        costs = in_the_words_of_the_paper(*shares)
        found = simulate(PipeTGLOutline(**THEOREM).of(length), RankLayout.of(length), costs, 12)
        assert (found.idle[1:].max() > 1e-9) == (length > free), length


def test_what_the_theorem_leaves_out_where_gradients_travel():
    """Every rank makes all updates: M of them a turn, which the theorem takes for one."""
    shares = in_the_words_of_the_paper(*TABLE_2["wikipedia"])
    turns = {}
    for sends in ("weights_and_moments", "gradients"):
        outline = PipeTGLOutline(**{**THEOREM, "sends": sends}).of(4)
        turns[sends] = simulate(outline, RankLayout.of(4), shares, 12).period
    assert turns["weights_and_moments"] == pytest.approx(80.6)
    assert turns["gradients"] == pytest.approx(80.6 + 3 * 9.2)


def test_reordering_and_direct_transfer_shorten_the_chain():
    seconds = {"fetch": 8.0, "update": 4.0, "write": 2.0, "backward": 6.0}
    period = {}
    for targets_first, pass_on in ((False, False), (True, False), (True, True)):
        outline = PipeTGLOutline(targets_first=targets_first, pass_on=pass_on, targets=0.5, repeated=0.5).of(8)
        period[targets_first, pass_on] = simulate(outline, RankLayout.of(8), Costs(seconds, {}, AT_ONCE), 12).period
    assert period[False, False] == pytest.approx(8 * (8 + 4 + 2))
    assert period[True, False] == pytest.approx(8 * (4 + 2 + 2))
    # The rows that wait for the batch before the last are now the longest chain: 4 + 2 + 2 + 2 + 1 every two batches.
    assert period[True, True] == pytest.approx(8 * 5.5)


def test_the_process_that_serves_a_copy_is_what_many_lanes_hang_on():
    """By hand: of each turn it has the reads of two ranks, 2 each and 4/3 times that for 2 passes, and two writes."""
    outline, layout = copies(2, 2, 1).outline(), RankLayout.of(4)
    costs = {"serve": 2.0, "store": 3.0, "backward": 1.0}
    assert simulate(outline, layout, Costs(costs, links=AT_ONCE), 16).period == pytest.approx(2 * 2 * 4 / 3 + 2 * 3)
    costs["backward"] = 20.0  # reads and writes of a lane have two turns
    assert simulate(outline, layout, Costs(costs, links=AT_ONCE), 16).period == pytest.approx(20)


def test_copies_that_are_cut_meet_among_their_own_ranks():
    """By hand: of each turn the lane of one rank asks for 4/3 of 30 bytes and sends 12, at one byte a second."""
    slow = Links(Link(0, 1e30), Link(0, 1.0))
    outline, sent = copies(1, 2, 2, sharded=True).outline(), {"rows": 30.0, "updates": 12.0}
    apart = RankLayout((0, 1, 0, 1))  # each copy over both hosts, whose links carry those of both copies
    assert simulate(outline, apart, Costs({}, sent, slow), 8).period == pytest.approx(2 * (40 + 12))
    beside = RankLayout.of(4, per_host=2)
    assert simulate(outline, beside, Costs({}, sent, slow), 8).period == pytest.approx(0)
    late = np.array([0.0, 0.0, 5.0, 5.0])  # the first copy does not wait for the second one's rows
    found = simulate(outline, beside, Costs({"fetch": late}, {}, AT_ONCE), 1)
    assert found.begin("rows")[0] == pytest.approx(late)
    assert found.begin("gradients")[0] == pytest.approx([5.0] * 4)


@pytest.mark.parametrize("compression", [None, *COMPRESSIONS])
def test_gradients_take_as_long_in_a_turn_as_the_meetings_of_their_compression(compression):
    order, layout, links = in_order(), RankLayout((0, 0, 0, 1)), Links(WITHIN, BETWEEN)
    outline = data_parallel("sums", order, mean_gradients(order, 0, compression), delay=0)
    sent = (
        {"gradients": 48.0, "gradient sums": 48.0 / 4} if compression in ("bfloat16", "int8") else {"gradients": 48.0}
    )
    if "gradient sums" in sent:
        sent["gradients"] *= 3 / 4  # three of four pieces leave a rank
    # By hand: a host with three of four ranks has the busiest link, a ring crosses it once in each of six rounds.
    expected = {None: 6 * (5 + 12 / 4), "powersgd": 18 * 5 + 6 * 12 / 4}
    expected |= dict.fromkeys(("bfloat16", "int8"), 2 * (5 + 3 * 12 / 4))
    found = simulate(outline, layout, Costs({}, sent, links), 8)
    assert found.period == pytest.approx(expected[compression] + 5.0)  # and updates


def test_thousands_of_ranks_give_one_figure_per_rank_and_turn():
    outline = PipeTGLOutline(pass_on=True, groups=512).of(4096)
    layout = RankLayout.of(4096, per_host=8)
    costs = Costs({"sample": 1e-3, "fetch": 1e-2, "backward": 3e-2, "step": 1e-3}, {"gradients": 1e6, "hand": 1e5})
    found = simulate(outline, layout, costs, 6)
    assert found.bubble.shape == (4096,)
    assert found.bubble == pytest.approx(np.tile(found.bubble[:8], 512))  # pipelines are alike
    assert found.events_per_second(600) == pytest.approx(4096 * 600 / found.period)


def test_a_small_staleness_makes_ranks_wait():
    """By hand: gradients are there 10 after their rows, and a rank can begin with the next ones every 2."""
    seconds = {"targets": 2.0, "backward": 8.0}
    costs, layout = Costs(seconds, {}, AT_ONCE), RankLayout.of(8)
    outlines = [PipeTGLOutline(targets=0.0, staleness=k).of(8) for k in range(8)]
    periods = [simulate(outline, layout, costs, 24).period / 8 for outline in outlines]
    assert periods == pytest.approx([10 / (k + 1) if k < 4 else 2.0 for k in range(8)])


def test_what_a_rank_has_waited_for_is_named():
    seconds = {"targets": 5.0, "backward": 5.0}
    found = simulate(PipeTGLOutline().of(4), RankLayout.of(4), Costs(seconds, {}, AT_ONCE), 10)
    assert list(found.waiting(found.steady)) == ["write"]
    assert found.bubble == pytest.approx(0.5)
    assert found.critical_path() == pytest.approx({"targets": 200.0, "backward": 5.0})


def test_timelines_have_a_bar_for_all_that_takes_time():
    found = simulate(DATA_PARALLEL[0], RankLayout.of(2), Costs({"embed": 2.0}, {"gradients": 1e9}, FAST), 3)
    timeline = found.timeline()
    assert len(timeline) == 2 * 3 * 2
    assert {timeline.stages[stage] for stage in timeline.stage} == {"embed", "gradients"}
    assert timeline.seconds == pytest.approx(found.seconds)
    assert set(timeline.of(ranks=[1], turns=[2]).rank) == {1}
    assert len(timeline.of(ranks=[1], turns=[0, 2])) == 4


@pytest.mark.parametrize(
    ("seconds", "sent", "refused"),
    [
        ({"embd": 1.0}, {}, "got 'embd'; did you mean 'embed'?"),
        ({"gradients": 1.0}, {}, "seconds must be one of"),
        ({}, {"gradient": 1.0}, "bytes must be one of 'gradients', 'updates', got 'gradient'; did you mean"),
        ({"embed": -1.0}, {}, "seconds['embed'] must be finite and at least 0, got -1.0; give what was measured"),
        ({"embed": [1.0, float("nan")]}, {}, "seconds['embed'] must be finite and at least 0, got nan"),
        ({"embed": [1.0] * 5}, {}, "must be a number, or an array [3 turns, 2 ranks], got 'an array [5]'; give one"),
        ({}, {"updates": "many"}, "bytes['updates'] must be a number, or an array [3 turns, 2 ranks], got 'many'"),
    ],
)
def test_costs_that_no_stage_has_are_refused(seconds, sent, refused):
    with pytest.raises(InvalidArgumentError) as error:
        simulate(DATA_PARALLEL[0], RankLayout.of(2), Costs(seconds, sent), 3)
    assert refused in str(error.value)


def test_circles_and_numbers_out_of_range_are_refused():
    circle = Outline("circle", (Stage("first", after=(After("second"),)), Stage("second")))
    with pytest.raises(
        InvalidArgumentError, match="outline must be stages that do not wait for each other in a circle"
    ):
        simulate(circle, RankLayout.of(1), Costs({}), 2)
    with pytest.raises(InvalidArgumentError, match="turns must be an integer of at least 1, got 0"):
        simulate(DATA_PARALLEL[0], RankLayout.of(1), Costs({}), 0)
    with pytest.raises(InvalidArgumentError, match="bandwidth must be a finite number above 0, got 0"):
        Link(0, 0)
    with pytest.raises(InvalidArgumentError, match="latency must be a finite number of at least 0"):
        Link(-1, 1)
