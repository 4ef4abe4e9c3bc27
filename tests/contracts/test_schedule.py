"""The contract of `Schedule`, against plain lists."""

from collections import defaultdict
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules import (
    DataParallel,
    EpochsAndCopies,
    RoundRobin,
    SharedGroups,
    SnapshotGroups,
    WholeGraph,
)
from lightning_tgnn.algorithms.schedules.data_parallel import in_split_order, rank_of
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.batches.turn_checks import check_parts, check_resumable, check_turn
from lightning_tgnn.types import Pass, PlannedPart, RankLayout, Turn
from lightning_tgnn.types.layout import families_of


def check_is_right(schedule, layout, over):
    """Hold a schedule to what a loader refuses of schedules, training or evaluating, also where a run goes on."""
    for whole in (over, replace(over, epoch=None)):
        check_parts(schedule, layout, whole)
        later = replace(whole, first=schedule.global_batch_size(layout, over.batch_size))
        for passed in (whole, later) if later.first < whole.num_events else (whole,):
            for rank in range(layout.ranks):
                for turn in check_resumable(schedule.turns(layout, rank, passed), passed):
                    check_turn(turn, schedule, layout.copy_of(rank)[0], training=passed.epoch is not None)


def data_parallel(ranks, over):
    """Return the turns of all ranks: of each chunk of the events the first ranks get one more where it is uneven."""
    events, size, table = list(range(over.num_events)), over.batch_size * ranks, [[] for _ in range(ranks)]
    for number, start in enumerate(range(0, len(events), size)):
        whole = events[start : start + size]
        remaining = list(whole)
        for rank in range(ranks):
            own = [remaining.pop(0) for _ in range(len(whole) // ranks + (rank < len(whole) % ranks))]
            resets = number == 0 and over.epoch is not None
            table[rank].append({"events": own, "of": whole, "draw": over.epoch, "ranks": ranks, "resets": resets})
    return table


def round_robin(ranks, over):
    """Return the turns of all ranks: batches are dealt like cards; who gets none in the last round looks on."""
    events, size = list(range(over.num_events)), over.batch_size
    batches = [events[start : start + size] for start in range(0, len(events), size)]
    table = [[] for _ in range(ranks)]
    for first in range(0, len(batches), ranks):
        for rank in range(ranks):
            own = batches[first + rank] if first + rank < len(batches) else []
            resets = first == 0 and over.epoch is not None
            of = own or batches[-1]
            table[rank].append({"events": own, "of": of, "draw": over.epoch, "ranks": 1, "resets": resets})
    return table


def whole_graph(ranks, over):
    return [[{"events": [], "of": [], "draw": over.epoch, "ranks": ranks, "resets": False}] for _ in range(ranks)]


# A new schedule is added here in a line: its turns as plain lists, and how often an epoch trains each event.
SCHEDULES = {
    DataParallel(): (data_parallel, 1),
    DataParallel("destination"): (data_parallel, 1),
    RoundRobin(): (round_robin, 1),
    WholeGraph(): (whole_graph, 0),
}
OF_EVENTS = [schedule for schedule, (_, times) in SCHEDULES.items() if times]

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
of_events = pytest.mark.parametrize("schedule", OF_EVENTS, ids=lambda schedule: type(schedule).__name__)


@st.composite
def runs(draw):
    """Ranks, as a layout, and a pass over at least as many events."""
    ranks = draw(st.integers(1, 6))
    over = Pass(draw(st.integers(ranks, 60)), draw(st.integers(1, 9)), draw(st.none() | st.integers(0, 3)))
    return RankLayout.of(ranks, per_host=draw(st.integers(1, ranks))), over


def all_turns(schedule, layout, over):
    return [indexed(schedule.turns(layout, rank, over)) for rank in range(layout.ranks)]


def indexed(turns):
    return [turns[index] for index in range(len(turns))]


def check(function):
    """Hold a property in random runs, the same each time."""
    return seed(13)(settings(max_examples=60, deadline=None)(given(run=runs())(function)))


@every_schedule
@check
def test_turns_are_those_of_plain_lists(schedule, run):
    layout, over = run
    schedule.check(layout, over.num_events)
    assert isinstance(schedule, PlannedPart)
    found = [[as_lists(turn) for turn in turns] for turns in all_turns(schedule, layout, over)]
    assert found == SCHEDULES[schedule][0](layout.ranks, over)


def as_lists(turn):
    shown = {name: getattr(turn, name) for name in ("draw", "ranks", "resets")}
    return {"events": list(turn.events), "of": list(turn.of), **shown}


@of_events
@check
def test_what_is_right_is_not_refused(schedule, run):
    check_is_right(schedule, *run)


@every_schedule
@check
def test_all_ranks_have_as_many_turns(schedule, run):
    assert len({len(turns) for turns in all_turns(schedule, *run)}) == 1


@of_events
@check
def test_every_event_is_trained_as_often_as_it_says_and_written_once_a_copy(schedule, run):
    layout, over = run
    table, trained, written = all_turns(schedule, layout, over), defaultdict(int), defaultdict(list)
    for index in range(len(table[0])):
        for turns in table:
            for event in turns[index].events:
                trained[event] += 1
            if turns[index].writes:
                written[turns[index].copy] += turns[index].events
    assert trained == dict.fromkeys(range(over.num_events), SCHEDULES[schedule][1])
    assert all(events == list(range(over.num_events)) for events in written.values())


@of_events
@check
def test_global_batches_follow_each_other(schedule, run):
    layout, over = run
    in_order = [turn for at_once in zip(*all_turns(schedule, layout, over), strict=True) for turn in at_once]
    assert [event for of, _ in groupby(turn.of for turn in in_order) for event in of] == list(range(over.num_events))
    assert all(len(turn.of) <= schedule.global_batch_size(layout, over.batch_size) for turn in in_order)
    assert all(set(turn.events) <= set(turn.of) for turn in in_order)


@of_events
@check
def test_shares_make_the_mean_of_the_global_batch(schedule, run):
    layout, over = run
    values = [float((7 * event) % 11) for event in range(over.num_events)]

    def mean(events):
        return sum(values[event] for event in events) / len(events) if events else 0.0

    at_once = zip(*all_turns(schedule, layout, over), strict=True)
    for of, sharing in (found for turns in at_once for found in groupby(turns, attrgetter("of"))):
        turns = list(sharing)
        ranks = turns[0].ranks
        assert all(turn.ranks == ranks for turn in turns)
        shares = [turn.share for turn in turns]
        assert sum(shares) / ranks == pytest.approx(1)
        found = sum(mean(turn.events) * share for turn, share in zip(turns, shares, strict=True)) / ranks
        assert found == pytest.approx(mean(of))


@every_schedule
@check
def test_state_is_emptied_before_the_first_turn_of_training_only(schedule, run):
    layout, over = run
    for turns in all_turns(schedule, layout, over):
        assert not any(turn.resets for turn in turns[1:])
        assert not (turns[0].resets and over.epoch is None)
        assert turns[0].resets or schedule not in OF_EVENTS or over.epoch is None
        assert {turn.draw for turn in turns} == {over.epoch}
    if over.epoch is not None:
        assert all(list(schedule.draws(layout, rank, over.epoch)) == [over.epoch] for rank in range(layout.ranks))


@every_schedule
@check
def test_turns_are_a_sequence_from_which_a_run_goes_on_anywhere(schedule, run):
    layout, over = run
    for rank in range(layout.ranks):
        turns = schedule.turns(layout, rank, over)
        known, count = indexed(turns), len(turns)
        assert list(islice(turns, count + 1)) == known
        assert [turns[index] for index in range(-count, 0)] == known
        for place in range(count + 1):
            resumed = schedule.turns(layout, rank, over)
            assert [resumed[index] for index in range(place, count)] == list(resumed[place:]) == known[place:]
        for piece in (slice(None, None, -1), slice(1, None, 2), slice(-2, None), slice(3, 1), slice(count, count + 5)):
            assert list(turns[piece]) == known[piece]
        assert list(reversed(turns)) == known[::-1]
        for outside in (count, -count - 1):
            with pytest.raises(IndexError):
                turns[outside]


@of_events
def test_turns_are_made_when_they_are_asked_for(schedule):
    turns = schedule.turns(RankLayout.of(4), 3, Pass(10**12, 1, epoch=0))
    assert isinstance(turns[10**11], Turn)
    assert turns[-1].of[-1] == 10**12 - 1


@of_events
@pytest.mark.parametrize("ranks", [2, 5])
def test_more_ranks_than_events_are_refused(schedule, ranks):
    schedule.check(RankLayout.of(ranks), ranks)
    requirement = f"ranks must be at most the events of a split, {ranks - 1}, got {ranks}; use fewer ranks, one"
    with pytest.raises(InvalidArgumentError, match=requirement):
        schedule.check(RankLayout.of(ranks), ranks - 1)


@st.composite
def runs_of_copies(draw):
    """Several pipelines, each with a copy of node state, and a pass over the stream."""
    copies, length = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    layout = RankLayout.of(copies * length, families=families_of(copies * length, copies))
    over = Pass(draw(st.integers(layout.ranks, 60)), draw(st.integers(1, 9)), draw(st.none() | st.integers(0, 3)))
    return layout, over


def check_copies(function):
    return seed(14)(settings(max_examples=80, deadline=None)(given(run=runs_of_copies())(function)))


@check_copies
def test_copies_that_are_right_are_not_refused(run):
    check_is_right(RoundRobin(), *run)


@check_copies
def test_every_copy_goes_round_the_stream_from_a_segment_of_its_own(run):
    layout, over = run
    length = len(layout.copies[0])
    alone = round_robin(length, over)
    table = all_turns(RoundRobin(), layout, over)
    rounds = len(alone[0])
    for copy, ranks in enumerate(layout.copies):
        begin = copy * rounds // len(layout.copies)
        for place, rank in enumerate(ranks):
            assert {turn.copy for turn in table[rank]} == {copy}
            found = [list(turn.events) for turn in table[rank]]
            if over.epoch is None:
                assert found == ([turn["events"] for turn in alone[place]] if copy == 0 else [[]] * rounds)
                assert not any(turn.resets or turn.draw is not None for turn in table[rank])
                continue
            order = [(begin + number) % rounds for number in range(rounds)]
            assert found == [alone[place][number]["events"] for number in order]
            at_first = over.epoch == 0
            assert {turn.draw for turn in table[rank]} == set(RoundRobin().draws(layout, rank, over.epoch))
            resets = [number == 0 or (place == 0 and at_first) for place, number in enumerate(order)]
            assert [turn.resets for turn in table[rank]] == resets
            assert {turn.draw for turn in table[rank]} == {
                over.epoch * len(layout.copies) + copy
            }  # negatives of its own


@check_copies
def test_an_update_is_the_mean_over_the_events_of_all_copies(run):
    layout, over = run
    table = all_turns(RoundRobin(), layout, over)
    for number in range(len(table[0]) if over.epoch is not None else 0):
        for ranks in zip(*layout.copies, strict=True):
            turns = [table[rank][number] for rank in ranks]
            events = sum(len(turn.events) for turn in turns)
            for turn in turns:
                assert turn.share == pytest.approx(len(turn.events) * len(turns) / max(events, 1))
                assert sum(len(other) for other in turn.beside) == events - len(turn.events)


@check_copies
def test_the_first_copy_goes_on_after_batches_that_other_ranks_have_played(run):
    layout, over = run
    first = over.num_events // over.batch_size // 2
    rest = replace(over, first=first * over.batch_size, epoch=0)
    table = all_turns(RoundRobin(), layout, rest)
    played = [event for turns in zip(*table, strict=True) for turn in turns if not turn.copy for event in turn.events]
    assert played == list(range(first * over.batch_size, over.num_events))
    assert not any(turn.resets for rank in layout.copies[0] for turn in table[rank]) or not first
    assert len({len(turns) for turns in table}) == 1


@seed(17)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 9))
def test_ranks_have_consecutive_events_in_the_order_of_the_split(destinations, ranks, batch_size):
    count, size = len(destinations), ranks * batch_size
    batch = torch.arange(count) // size
    sizes = torch.bincount(batch)
    for split in ("time", "destination"):
        order = in_split_order(split, torch.tensor(destinations), batch).tolist()
        keys = {event: (event // size, destinations[event] if split == "destination" else 0) for event in range(count)}
        assert order == sorted(range(count), key=keys.get)
    place = torch.arange(count) % size
    found = rank_of(place, sizes[batch], ranks).tolist()
    if count >= ranks:
        for rank in range(ranks):
            turns = DataParallel().turns(RankLayout.of(ranks), rank, Pass(count, batch_size))
            assert [event for event in range(count) if found[event] == rank] == [
                e for turn in turns for e in turn.events
            ]


def test_an_order_that_there_is_not_is_refused():
    with pytest.raises(InvalidArgumentError, match="split_batch must be one of 'destination', 'time', got 'source'"):
        DataParallel("source")


@pytest.mark.parametrize("schedule", [DataParallel(), WholeGraph(), SnapshotGroups(1), SharedGroups()])
def test_schedules_of_one_copy_refuse_several(schedule):
    with pytest.raises(InvalidArgumentError, match=r"groups must be 1 under \w+, whose ranks share one copy"):
        schedule.check(RankLayout.of(4, families=families_of(4, 2)), 100)


def test_copies_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(InvalidArgumentError, match="groups must be a divisor of the 4 ranks, got 3; let groups divide"):
        families_of(4, 3)


def epochs_and_copies(plan, over):
    """Return what each lane of each copy plays, turn by turn: (batch, number of the pass), or None; and the resets."""
    size = over.batch_size * plan.minibatch
    batches = [list(range(over.num_events))[start : start + size] for start in range(0, over.num_events, size)]
    lanes, resets = {}, {}
    for copy in range(plan.memory):
        begin = copy * len(batches) // plan.memory
        waiting = list(range(len(batches)))[begin:] + list(range(begin))
        playing, turns, emptied = [None] * plan.epoch, [[] for _ in range(plan.epoch)], []
        for turn in range(len(batches) + plan.epoch - 1):
            entering = waiting.pop(0) if waiting else None
            emptied.append(entering == 0 or (turn == 0 and over.epoch == 0))
            if entering is not None:
                playing[turn % plan.epoch] = [entering, -1]
            for lane, of_lane in enumerate(turns):
                if playing[lane] is not None:
                    playing[lane][1] += 1
                    if playing[lane][1] == plan.epoch:
                        playing[lane] = None
                of_lane.append(None if playing[lane] is None else tuple(playing[lane]))
        lanes |= {(copy, lane): of_lane for lane, of_lane in enumerate(turns)}
        resets[copy] = emptied
    return batches, lanes, resets


@st.composite
def runs_of_epochs(draw):
    i, j, k = (draw(st.integers(1, 3)) for _ in range(3))
    sets = draw(st.none() | st.integers(j, 5))
    layout = RankLayout.of(i * j * k, families=families_of(i * j * k, k))
    over = Pass(draw(st.integers(layout.ranks, 60)), draw(st.integers(1, 9)), draw(st.integers(0, 3)))
    return EpochsAndCopies(i, j, k, sets), layout, over


@seed(15)
@settings(max_examples=80, deadline=None)
@given(run=runs_of_epochs())
def test_lanes_that_are_right_are_not_refused(run):
    check_is_right(*run)


@seed(15)
@settings(max_examples=80, deadline=None)
@given(run=runs_of_epochs())
def test_lanes_play_each_batch_in_consecutive_passes_and_one_begins_a_turn(run):
    plan, layout, over = run
    plan.check(layout, over.num_events)
    batches, lanes, resets = epochs_and_copies(plan, over)
    table = all_turns(plan, layout, over)
    assert len({len(turns) for turns in table}) == 1
    trained, draws = defaultdict(list), defaultdict(list)
    for number in range(len(table[0])):
        shares = 0.0
        for (copy, lane), turns in lanes.items():
            at_first = (of_lane[number] for (other, _), of_lane in lanes.items() if other == copy)
            begun = next((found[0] for found in at_first if found is not None and found[1] == 0), None)
            ranks = layout.copies[copy][lane * plan.minibatch : (lane + 1) * plan.minibatch]
            own = [table[rank][number] for rank in ranks]
            played = turns[number]
            assert [event for turn in own for event in turn.events] == ([] if played is None else batches[played[0]])
            for turn in own:
                assert turn.resets == resets[copy][number]
                assert turn.reads == turn.writes == (played is not None and played[1] == 0)
                if begun is not None and plan.epoch > 1:
                    assert list(turn.written) == batches[begun]
                assert (turn.copy, turn.ranks) == (copy, plan.minibatch)
                shares += turn.share
            if played is not None:
                trained[copy] += [played[0]]
                draws[copy, played[0]] += [own[0].draw]
                assert len({turn.draw for turn in own}) == 1
        assert shares == pytest.approx(layout.ranks)  # they make the mean over all events of the update
    for copy in range(plan.memory):
        assert sorted(trained[copy]) == sorted(list(range(len(batches))) * plan.epoch)
    for rank, turns in enumerate(table):
        assert {turn.draw for turn in turns} <= set(plan.draws(layout, rank, over.epoch))
    for of_batch in draws.values():
        assert len(set(of_batch)) == plan.epoch  # each pass with other negatives
        assert plan.negative_sets is None or set(of_batch) <= set(range(plan.negative_sets))


@seed(16)
@settings(max_examples=40, deadline=None)
@given(run=runs_of_epochs())
def test_the_ranks_of_the_first_copy_evaluate_every_event_once(run):
    plan, layout, over = run
    table = all_turns(plan, layout, replace(over, epoch=None))
    played = [turn for turns in zip(*table, strict=True) for turn in turns]
    assert [event for turn in played for event in turn.events] == list(range(over.num_events))
    assert not any(turn.resets or turn.draw is not None for turn in played)
    assert all(turn.reads and turn.writes for turn in played)
    assert all(len(turn.of) <= over.batch_size * plan.minibatch for turn in played)
    assert {rank for rank, turns in enumerate(table) for turn in turns if turn.events} <= set(layout.copies[0])


def test_epochs_and_copies_alone_are_data_parallel():
    layout, over = RankLayout.of(3, families=families_of(3)), Pass(50, 4, 2)
    alike = [[replace(turn, cut=()) for turn in of_rank] for of_rank in all_turns(DataParallel(), layout, over)]
    assert all_turns(EpochsAndCopies(minibatch=3), layout, over) == alike


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (2, 1, 1),
            "three factors whose product is the 4 ranks, got '2 x 1 x 1'.*, or take DistTGLStrategy.minibatch='auto'",
        ),
        ((4, 1, 1), "memory must be the 2 copies of node state that the ranks share, got 1; let groups be the same"),
        ((0, 1, 1), "minibatch must be an integer of at least 1, got 0"),
        ((1, 3, 1, 2), "negative_sets must be an integer of at least 3, got 2; give one for each pass at least"),
    ],
)
def test_epochs_and_copies_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        EpochsAndCopies(*arguments).check(RankLayout.of(4, families=families_of(4, 2)), 100)
