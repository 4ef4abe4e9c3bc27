"""Right programs have no fault; each way to break them is named."""

from dataclasses import replace

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules.pipetgl import PipeTGLOutline
from lightning_tgnn.algorithms.schedules.validator import faults, programs
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import Pass
from lightning_tgnn.types.outline import After, Reads
from tests.algorithms.schedules.example_outlines import CUT, DATA_PARALLEL, PIPELINES, SERVED, copies


@pytest.mark.parametrize("outline", DATA_PARALLEL, ids=lambda outline: outline.name)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_plans_of_shared_batches_have_no_fault(outline, ranks):
    assert faults(programs(outline, ranks, 4), outline, ranks) == []


@pytest.mark.parametrize("length", [1, 2, 3])
def test_pipelines_have_no_fault_whatever_is_on(length):
    for pipeline in PIPELINES:
        ranks = length * pipeline.groups
        outline = pipeline.of(ranks)
        assert outline.staleness == length - 1
        assert faults(programs(outline, ranks, 3), outline, ranks) == [], pipeline


@pytest.mark.parametrize("served", SERVED)
def test_served_copies_have_no_fault(served):
    outline, ranks = served.outline(), served.layout.ranks
    assert faults(programs(outline, ranks, 5), outline, ranks) == []


@pytest.mark.parametrize(("cut", "shares"), CUT)
def test_copies_that_are_cut_have_no_fault(cut, shares):
    """Rows and writes travel among the ranks of a copy, gradients among all; ranks of all lanes take part."""
    outline, ranks = cut.outline("disttgl", shares), cut.layout.ranks
    written = programs(outline, ranks, 5)
    assert faults(written, outline, ranks) == []
    sharing = len(cut.layout.copies[0])
    for action in written[ranks - 1, "links"]:
        others = range(ranks) if action.stage == "gradients" else range(ranks - sharing, ranks)
        assert action.meets == tuple(others)
    assert len(written[0, "links"]) == 5 * (4 if shares.ahead else 3)


@pytest.mark.parametrize("served", SERVED[::2])
def test_the_process_of_a_copy_has_what_the_schedule_says_in_its_order(served):
    """(R0 ... R[i-1]) (W0 ... W[i-1]) of the lane that begins a batch, turn by turn."""
    layout, over, epoch = served.layout, Pass(100, 2, epoch=0), served.schedule.epoch
    ranks = layout.ranks
    written = programs(served.outline(), ranks, 4 * epoch)
    turns = [served.schedule.turns(layout, rank, over) for rank in range(ranks)]
    for sharing in layout.copies:
        expected = []
        for number in range(4 * epoch):
            expected += [("serve", rank, number) for rank in sharing if turns[rank][number].reads]
            expected += [("store", rank, number) for rank in sharing if turns[rank][number].writes]
        found = [(action.stage, action.rank, action.turn) for action in written[sharing[0], "server"]]
        assert found == expected


def test_gradients_may_be_less_late_than_the_pipeline_is_long():
    for staleness in range(4):
        outline = PipeTGLOutline(staleness=staleness).of(4)
        assert faults(programs(outline, 4, 4), outline, 4) == []


def with_stage(outline, name, **changes):
    stages = tuple(replace(stage, **changes) if stage.name == name else stage for stage in outline.stages)
    return replace(outline, stages=stages)


def without_wait(outline, name, awaited):
    (stage,) = (stage for stage in outline.stages if stage.name == name)
    left = tuple(after for after in stage.after if after.stage != awaited)
    assert len(left) < len(stage.after)
    return with_stage(outline, name, after=left)


def moved(outline, name, behind):
    stages = [stage for stage in outline.stages if stage.name != name]
    place = [stage.name for stage in stages].index(behind) + 1
    return replace(outline, stages=(*stages[:place], outline.stages[outline.place(name)], *stages[place:]))


PIPE = PipeTGLOutline(pass_on=True)
THROUGH_THE_STORE = PipeTGLOutline()
AT_ONCE = PipeTGLOutline(targets_first=False)
IN_TURN = PipeTGLOutline(sends="weights_and_moments")
TWO = PipeTGLOutline(groups=2)
SVEN = next(outline for outline in DATA_PARALLEL if outline.name == "sven" and outline.staleness)
AHEAD = next(outline for outline in DATA_PARALLEL if any(stage.name == "ahead" for stage in outline.stages))
COPIES = copies(2, 2, 1).outline()
CUT_COPIES = copies(1, 2, 2, sharded=True).outline()
DEPCACHE = DATA_PARALLEL[0]


@pytest.mark.parametrize(
    ("broken", "ranks", "named"),
    [
        (
            without_wait(THROUGH_THE_STORE.of(3), "targets", "write"),
            3,
            "state: targets of rank 1 in turn 0 may miss write of rank 0 in turn 0",
        ),
        (without_wait(AT_ONCE.of(3), "targets", "write"), 3, "state: targets of rank 2 in turn 0 may miss write of"),
        (without_wait(PIPE.of(3), "others", "write"), 3, "state: others of rank 2 in turn 0 may miss write of rank 0"),
        (without_wait(PIPE.of(3), "targets", "hand"), 3, "state: targets of rank 1 in turn 0 may miss hand of rank 0"),
        (without_wait(PIPE.of(3), "late", "write"), 3, "state: late of rank 1 in turn 0 may miss write of rank 0"),
        (moved(PIPE.of(3), "late", "write"), 3, "state: late of rank 0 in turn 0 may see write of rank 0 in turn 0"),
        (moved(PIPE.of(3), "late", "support"), 3, "state: late of rank 0 in turn 0 may see write of rank 1 in turn 0"),
        (moved(THROUGH_THE_STORE.of(3), "others", "write"), 3, "state: others of rank 0 in turn 0 may see write of"),
        (moved(PIPE.of(3), "step", "targets_update"), 3, "weights: targets_update of rank 0 in turn 1 has 0 updates"),
        (moved(PIPE.of(3), "step", "backward"), 3, "weights: backward of rank 0 in turn 1 has 0 updates and must"),
        (
            without_wait(PIPE.of(3), "step", "gradients"),
            3,
            "weights: step of rank 0 in turn 2 does not wait for the gradient of backward of rank 1 in turn 0",
        ),
        (with_stage(PIPE.of(3), "step", applies=(4, 3)), 3, "weights: step of rank 0 in turn 2 makes the update of"),
        (
            replace(PIPE.of(3), staleness=1),
            3,
            "weights: targets_update of rank 2 in turn 0 has 0 updates and must have 1",
        ),
        (without_wait(IN_TURN.of(3), "step", "weights"), 3, "weights: step of rank 1 in turn 0 makes the update of"),
        (
            without_wait(TWO.of(4), "mean", "backward"),
            4,
            "weights: step of rank 0 in turn 1 does not wait for the grad",
        ),
        (
            with_stage(SVEN, "rows", reads=(Reads("updates", 0),)),
            2,
            "state: rows of rank 1 in turn 2 may miss updates of",
        ),
        (
            with_stage(AHEAD, "ahead", reads=(Reads("updates", 1),)),
            2,
            "state: ahead of rank 0 in turn 1 may see updates",
        ),
        (
            without_wait(DEPCACHE, "step", "gradients"),
            2,
            "weights: step of rank 0 in turn 0 does not wait for the grad",
        ),
        (replace(SVEN, staleness=0), 2, "weights: update of rank 0 in turn 1 has 0 updates and must have 1"),
        (
            with_stage(PIPE.of(3), "targets", after=(After("targets", batches=-1),)),
            3,
            "deadlock: targets of rank",
        ),
        (
            with_stage(COPIES, "store", on="worker"),
            4,
            "state: serve of rank 2 in turn 1 may miss store of rank 0 in turn 0",
        ),
        (moved(COPIES, "serve", "store"), 4, "deadlock: "),
        (
            with_stage(CUT_COPIES, "gradients", in_copy=True),
            4,
            "weights: step of rank 0 in turn 0 does not wait for the gradient of backward of rank 2 in turn 0",
        ),
        (
            with_stage(PIPE.of(2), "others", after=(After("write", turns=0),)),
            2,
            "others of rank 0 in turn 0 waits for write of rank 0 in turn 0",
        ),
    ],
)
def test_a_broken_outline_is_named(broken, ranks, named):
    found = faults(programs(broken, ranks, 4), broken, ranks)
    assert any(named in fault for fault in found), found[:5]


def messages_of(written, what):
    return [
        (key, place, message)
        for key, actions in sorted(written.items())
        for place, action in enumerate(actions)
        for message in getattr(action, what)
    ]


SHARED = [(outline, 2) for outline in DATA_PARALLEL]
PIPED = [(pipe.of(3 * pipe.groups), 3 * pipe.groups) for pipe in PIPELINES]


def random_runs(function):
    return seed(14)(settings(max_examples=40, deadline=None)(given(st.data())(function)))


@random_runs
@pytest.mark.parametrize("side", ["sends", "receives"])
def test_a_message_that_one_side_forgets_is_named(side, data):
    outline, ranks = data.draw(st.sampled_from(PIPED))
    written = programs(outline, ranks, 3)
    key, place, message = data.draw(st.sampled_from(messages_of(written, side)))
    action = written[key][place]
    left = tuple(other for other in getattr(action, side) if other != message)
    written[key][place] = replace(action, **{side: left})
    what = "received and not sent" if side == "sends" else "sent and not received"
    named = f"{message.stage} of batch {message.batch} from rank {message.sender} to {message.into} of rank "
    assert any(named in fault and what in fault for fault in faults(written, outline, ranks))


@random_runs
@pytest.mark.parametrize("side", ["sends", "receives"])
def test_messages_that_overtake_each_other_are_named(side, data):
    outline, ranks = data.draw(st.sampled_from(PIPED))
    written = programs(outline, ranks, 4)
    key, place, message = data.draw(st.sampled_from(messages_of(written, side)))
    others = [held for held in messages_of(written, side) if held[2].channel == message.channel and held[1] != place]
    if not others:
        return
    _, other_place, other = data.draw(st.sampled_from(others))
    actions = written[key]
    for at, old, new in ((place, message, other), (other_place, other, message)):
        swapped = tuple(new if held == old else held for held in getattr(actions[at], side))
        actions[at] = replace(actions[at], **{side: swapped})
    found = faults(written, outline, ranks)
    assert any(fault.startswith("order: ") and message.stage in fault for fault in found), found


@random_runs
def test_two_turns_of_a_stage_in_the_wrong_order_are_named(data):
    outline, ranks = data.draw(st.sampled_from(PIPED))
    written = programs(outline, ranks, 3)
    key = data.draw(st.sampled_from([key for key in sorted(written) if key[1] == "compute"]))
    actions = written[key]
    name = data.draw(st.sampled_from(["targets", "targets_update", "write", "backward", "step"]))
    places = [place for place, action in enumerate(actions) if action.stage == name]
    first, second = places[:2]
    actions[first], actions[second] = actions[second], actions[first]
    assert faults(written, outline, ranks)


@random_runs
def test_ranks_that_meet_in_another_order_are_named(data):
    outline, ranks = data.draw(st.sampled_from(SHARED))
    written = programs(outline, ranks, 3)
    actions = written[data.draw(st.integers(0, 1)), "links"]
    first, second = sorted(data.draw(st.lists(st.integers(0, len(actions) - 1), min_size=2, max_size=2, unique=True)))
    actions[first], actions[second] = actions[second], actions[first]
    found = faults(written, outline, ranks)
    assert "order: ranks 0 and 1 do not meet for the same stages in the same order" in found


@random_runs
def test_a_rank_that_stays_away_from_a_meeting_is_named(data):
    outline, ranks = data.draw(st.sampled_from(SHARED))
    written = programs(outline, ranks, 3)
    actions = written[1, "links"]
    del actions[data.draw(st.integers(0, len(actions) - 1))]
    found = faults(written, outline, ranks)
    assert "order: ranks 0 and 1 do not meet for the same stages in the same order" in found


def test_what_cannot_be_an_outline_is_refused():
    with pytest.raises(InvalidArgumentError, match="stage 'fetch' must be after one of sample, other, fetch"):
        with_stage(DEPCACHE, "fetch", after=(After("sampl"),))
    with pytest.raises(InvalidArgumentError, match="stages must be each given once, got 'embed'; rename one"):
        replace(DEPCACHE, stages=(*DEPCACHE.stages, DEPCACHE.stages[DEPCACHE.place("embed")]))
    with pytest.raises(InvalidArgumentError, match="stage 'embed' must be on compute, a worker or a server, or on li"):
        with_stage(DEPCACHE, "embed", on="links")
    with pytest.raises(InvalidArgumentError, match="ranks must be a multiple of the 2 pipelines, got 3; let groups"):
        TWO.of(3)
    with pytest.raises(InvalidArgumentError, match="staleness must be at most 1 in a pipeline of 2, got 2; take more"):
        PipeTGLOutline(staleness=2).of(2)
    with pytest.raises(InvalidArgumentError, match="ranks must be a multiple of 2 copies times 1 lanes, got 3; let ep"):
        copies(1, 1, 2).outline().length(3)
