"""Global batches in random order, and cut at random places."""

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules import DataParallel, RandomChunks, ShuffledBatches
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.data.batches.turn_checks import check_parts
from lightning_tgnn.types import Pass, RankLayout


def played(schedule, ranks, over):
    return [schedule.turns(RankLayout.of(ranks), rank, over) for rank in range(ranks)]


@seed(4)
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(4, 90), st.integers(1, 12), st.integers(0, 5), st.integers(1, 5))
def test_every_event_is_played_once_and_ranks_share_each_batch(ranks, events, size, epoch, chunks):
    over = Pass(events, size, epoch)
    for schedule in (ShuffledBatches(seed=1), RandomChunks(chunks=chunks, seed=1)):
        check_parts(schedule, RankLayout.of(ranks), over)
        turns = played(schedule, ranks, over)
        assert sorted(event for own in turns for turn in own for event in turn.events) == list(range(events))
        assert all(len({own[place].of for own in turns}) == 1 for place in range(len(turns[0])))
        assert all([turn.resets for turn in own] == [place == 0 for place in range(len(own))] for own in turns)
        assert [turn.of for turn in turns[0]] == [turn.of for turn in played(schedule, ranks, over)[0]]
        evaluated = Pass(events, size, None)
        assert list(played(schedule, ranks, evaluated)[0]) == list(played(DataParallel(), ranks, evaluated)[0])


def test_an_order_holds_for_an_epoch():
    turns = (played(ShuffledBatches(), 2, Pass(200, 5, epoch))[1] for epoch in range(4))
    orders = [tuple(turn.of.start for turn in own) for own in turns]
    assert len({*orders}) == 4
    assert all(sorted(order) == list(range(0, 200, 10)) for order in orders)


def test_batches_begin_at_chunks():
    starts = {played(RandomChunks(chunks=4), 1, Pass(100, 20, epoch))[0][0].of.stop for epoch in range(40)}
    assert starts == {5, 10, 15, 20}
    turns = played(RandomChunks(chunks=1), 1, Pass(100, 20, 3))[0]
    assert [turn.of for turn in turns] == [turn.of for turn in played(DataParallel(), 1, Pass(100, 20, 3))[0]]
    with pytest.raises(InvalidArgumentError, match="chunks must be an integer of at least 1, got 0"):
        RandomChunks(chunks=0)


@pytest.mark.parametrize("schedule", [ShuffledBatches(), RandomChunks()])
def test_other_ranks_cannot_go_on_in_the_middle_of_an_epoch(schedule):
    with pytest.raises(InvalidArgumentError, match="ranks must be as many as before in the middle of an epoch whose"):
        schedule.turns(RankLayout.of(1), 0, Pass(100, 20, 0, first=40))
