"""Groups of snapshots dealt out to devices, and cut over the processes of each."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules import SharedGroups, SnapshotGroups
from lightning_tgnn.algorithms.schedules.snapshot_splits import even_bounds
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.types import RankLayout, SnapshotPass


@st.composite
def passes(draw):
    count, size = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    order = tuple(draw(st.permutations(range(count))))
    over = SnapshotPass(count, draw(st.integers(1, 4)), epoch=0, order=order, group_size=size)
    if draw(st.booleans()):
        return over
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    lengths = [len(over.snapshots_of(group)) for group in order]
    forward, backward = (tuple(rng.random(length) for length in lengths) for _ in range(2))
    kept = tuple(np.full(length, 0.15) for length in lengths) if draw(st.booleans()) else None
    return SnapshotPass(**vars(over) | {"forward": forward, "backward": backward, "kept": kept})


@settings(deadline=None, max_examples=60, derandomize=True)
@given(over=passes(), devices=st.integers(1, 3), processes=st.integers(1, 3), balance=st.sampled_from(["load", "even"]))
def test_every_snapshot_of_every_group_is_computed_once_in_order(over, devices, processes, balance):
    layout, schedule = RankLayout.of(devices * processes), SnapshotGroups(processes, balance)
    schedule.check(layout, over.num_events)
    turns = [schedule.turns(layout, rank, over) for rank in range(layout.ranks)]
    assert len({len(of_rank) for of_rank in turns}) == 1
    assert len(turns[0]) == -(-over.num_events // schedule.global_batch_size(layout, over.batch_size))
    played = []
    for at_once in zip(*turns, strict=True):
        assert len({turn.groups for turn in at_once}) == 1
        groups = []
        for device in range(devices):
            pipeline = at_once[device * processes : (device + 1) * processes]
            for parts in zip(*(turn.parts for turn in pipeline), strict=True):  # the same groups, in the same order
                assert len({part.group for part in parts}) == 1
                whole = over.snapshots_of(parts[0].group)
                assert [number for part in parts for number in part.snapshots] == list(whole)
                assert sum(parts[0].group in part.snapshots for part in parts) == 1  # who has the loss
                if processes == 2 and over.kept is not None and balance == "load":
                    assert 2 * 0.15 * len(parts[0].snapshots) <= 1  # of two open groups
                groups.append(parts[0].group)
        assert len(groups) == at_once[0].groups
        played += sorted(groups, key=over.order.index)
    assert played == list(over.order)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(over=passes(), first=st.integers(0, 3))
def test_a_pass_goes_on_where_it_was(over, first):
    layout, schedule = RankLayout.of(4), SnapshotGroups(2, "even")
    size = schedule.global_batch_size(layout, over.batch_size)
    later = SnapshotPass(**vars(over) | {"first": min(first * size, over.num_events)})
    assert list(schedule.turns(layout, 3, later)) == list(schedule.turns(layout, 3, over))[first:]


def test_groups_of_unequal_load_are_dealt_out_by_load():
    heavy, light = np.full(2, 4.0), np.full(2, 1.0)
    seconds = (heavy, light, light, light, light)
    order = SnapshotPass(5, 5, epoch=0, order=(1, 2, 3, 4, 5), group_size=2, forward=seconds, backward=seconds)
    layout = RankLayout.of(2)
    by_load = [SnapshotGroups(1).turns(layout, rank, order)[0] for rank in (0, 1)]
    assert [[part.group for part in turn.parts] for turn in by_load] == [[1], [2, 3, 4, 5]]
    by_count = [SnapshotGroups(1, "even").turns(layout, rank, order)[0] for rank in (0, 1)]
    assert [len(turn.parts) for turn in by_count] == [3, 2]


def test_whole_groups_go_to_either_process_of_a_device():
    light = (1.0, 1.0, 1.0, 30.0)  # the head is heavy
    seconds = (np.array(light),) * 4
    given = {"order": (4, 5, 6, 7), "group_size": 4, "forward": seconds, "backward": seconds}
    over = SnapshotPass(4, 4, epoch=0, **given)

    def lengths(over, **options):
        schedule = SnapshotGroups(2, **options)
        turns = (schedule.turns(RankLayout.of(2), rank, over)[0] for rank in (0, 1))
        return [[len(part.snapshots) for part in turn.parts] for turn in turns]

    assert lengths(over) == [[0, 4, 0, 4], [4, 0, 4, 0]]
    assert lengths(over, balance="even") == [[2] * 4] * 2
    # A process can keep four snapshots: the first those of one whole group, or of two open ones with two each.
    kept = SnapshotPass(4, 4, epoch=0, kept=(np.full(4, 0.25),) * 4, **given)
    assert max(lengths(kept)[0]) <= 2
    assert lengths(kept, open_groups=1) == [[0, 4, 0, 4], [4, 0, 4, 0]]
    # More than two processes have as many snapshots each, and the last of them the last one.
    turns = [SnapshotGroups(3).turns(RankLayout.of(3), rank, over)[0] for rank in range(3)]
    assert [[len(part.snapshots) for part in turn.parts] for turn in turns] == [[1] * 4, [1] * 4, [2] * 4]


@given(length=st.integers(1, 9), processes=st.integers(1, 9))
def test_even_parts_differ_by_one_snapshot_at_most(length, processes):
    bounds = even_bounds(length, processes)
    sizes = [end - first for first, end in pairwise(bounds)]
    assert len(sizes) == processes
    assert sum(sizes) == length
    working = [size for size in sizes if size]
    assert sizes[-len(working) :] == working
    assert max(working) - min(working) <= 1


def test_vertices_are_cut_of_all_groups_on_all_ranks():
    over = SnapshotPass(5, 2, epoch=0, order=(4, 3, 2, 1, 0), group_size=3)
    layout = RankLayout.of(3)
    turns = [SharedGroups().turns(layout, rank, over) for rank in range(3)]
    assert turns[0] == turns[1] == turns[2]
    assert [[part.group for part in turn.parts] for turn in turns[0]] == [[4, 3], [2, 1], [0]]
    assert [list(part.snapshots) for part in turns[0][0].parts] == [[2, 3, 4], [1, 2, 3]]


def test_ranks_have_to_be_those_of_whole_devices():
    with pytest.raises(InvalidArgumentError, match=r"devices.*multiple of.*2.*3.*processes_per_device"):
        SnapshotGroups(2).check(RankLayout.of(3), 4)
    with pytest.raises(InvalidArgumentError, match=r"balance.*even.*load"):
        SnapshotGroups(2, "fair")
