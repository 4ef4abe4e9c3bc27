"""The splits against exhaustive search, and the groups of devices against the best there is."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules.chain_simulation import GroupParts, simulate_chain
from lightning_tgnn.algorithms.schedules.operator_order import Operator
from lightning_tgnn.algorithms.schedules.snapshot_groups import groups_by_count
from lightning_tgnn.algorithms.schedules.snapshot_splits import (
    best_splits,
    even_bounds,
    groups_by_load,
    pair_seconds,
    planned_splits,
    splits_that_fit,
)

SNAPSHOT = st.tuples(st.integers(0, 9), st.integers(0, 9))
GROUPS = st.lists(st.lists(SNAPSHOT, min_size=1, max_size=4), min_size=1, max_size=4)


def loads_of(groups):
    both = [np.array(group, dtype=float) for group in groups]
    return [group[:, 0] for group in both], [group[:, 1] for group in both]


def all_splits(forward):
    return product(*(range(len(own) + 1) for own in forward))


def cost_of(forward, backward, splits):
    """Return the cost of Equation 2 with its limits put right, and what follows the last stage."""
    cost = forward[0][: splits[0]].sum()
    for i in range(1, len(forward)):
        p, q = splits[i], splits[i - 1]
        first = forward[i][:p].sum() + backward[i - 1][:q].sum()
        second = forward[i - 1][q:].sum() + backward[i - 1][q:].sum()
        cost += max(first, second)
    p = splits[-1]
    return cost + forward[-1][p:].sum() + backward[-1][p:].sum() + backward[-1][:p].sum()


def by_operators(forward, backward, splits, hand_over=0.0, **options):
    """Return the seconds of a pair whose every snapshot is an operator of its own."""

    def part(seconds):
        return tuple(Operator("nn", float(one)) for one in seconds)

    groups = [
        GroupParts((part(f[:p]), part(f[p:])), (part(b[:p]), part(b[p:])), hand_over, hand_over)
        for f, b, p in zip(forward, backward, splits, strict=True)
    ]
    return simulate_chain(groups, **options).seconds


@seed(16)
@settings(max_examples=100, deadline=None)
@given(GROUPS)
def test_no_splits_cost_less_than_the_planned_ones(groups):
    forward, backward = loads_of(groups)
    found = cost_of(forward, backward, planned_splits(forward, backward))
    assert found == min(cost_of(forward, backward, splits) for splits in all_splits(forward))


@seed(16)
@settings(max_examples=100, deadline=None)
@given(GROUPS, st.integers(1, 3), st.integers(0, 2), st.data())
def test_the_short_simulation_is_that_of_the_operators(groups, open_groups, hand_over, data):
    forward, backward = loads_of(groups)
    splits = data.draw(st.tuples(*(st.integers(0, len(own)) for own in forward)))
    found = pair_seconds(forward, backward, splits, open_groups=open_groups, hand_over=hand_over)
    assert found == by_operators(forward, backward, splits, float(hand_over), open_groups=open_groups)


def soonest_end(forward, backward, splits, open_groups, hand_over):
    """Return when a pair ends at the soonest, over all orders of the first process that keep to the open groups."""

    def after(number, waiting, first, second):  # the next group, and when the gradients of the open ones come
        ends = []
        if waiting:
            came, part = waiting[0]
            ends.append(after(number, waiting[1:], max(first, came) + part, second))
        if number < len(splits) and len(waiting) < open_groups:
            p = splits[number]
            ahead, back = forward[number], backward[number]
            rest = ahead[p:].sum() + back[p:].sum()
            if p == 0:
                ends.append(after(number + 1, waiting, first, second + rest))
            elif p == len(ahead):
                ends.append(after(number + 1, waiting, first + ahead.sum() + back.sum(), second))
            else:
                handed_on = first + ahead[:p].sum()
                served = max(second, handed_on + hand_over) + rest
                ends.append(after(number + 1, (*waiting, (served + hand_over, back[:p].sum())), handed_on, served))
        return min(ends) if ends else max(first, second)

    return after(0, (), 0.0, 0.0)


@seed(16)
@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(SNAPSHOT, min_size=1, max_size=4), min_size=1, max_size=6), st.integers(1, 3), st.data())
def test_no_order_within_the_open_groups_ends_sooner(groups, open_groups, data):
    forward, backward = loads_of(groups)
    splits = data.draw(st.tuples(*(st.integers(0, len(own)) for own in forward)))
    hand_over = data.draw(st.integers(0, 2))
    found = pair_seconds(forward, backward, splits, open_groups=open_groups, hand_over=hand_over)
    assert found == soonest_end(forward, backward, splits, open_groups, hand_over)


@seed(16)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(SNAPSHOT, min_size=1, max_size=8), min_size=1, max_size=12), st.integers(1, 3))
def test_the_best_splits_are_never_slower_than_the_even_or_the_planned_ones(groups, open_groups):
    forward, backward = loads_of(groups)
    found = best_splits(forward, backward, open_groups=open_groups)
    assert all(0 <= split <= len(own) for split, own in zip(found, forward, strict=True))
    seconds = by_operators(forward, backward, found, open_groups=open_groups)
    even = [even_bounds(len(own), 2)[1] for own in forward]
    assert seconds <= by_operators(forward, backward, even, open_groups=open_groups)
    planned = planned_splits(forward, backward)
    assert seconds <= by_operators(forward, backward, planned, open_groups=open_groups)


@seed(16)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(SNAPSHOT, min_size=1, max_size=6), min_size=1, max_size=2))
def test_the_best_splits_of_one_or_two_groups_are_the_best_there_are(groups):
    forward, backward = loads_of(groups)
    best = min(pair_seconds(forward, backward, splits) for splits in all_splits(forward))
    assert pair_seconds(forward, backward, best_splits(forward, backward)) == best


@seed(16)
@settings(max_examples=60, deadline=None)
@given(GROUPS, st.integers(1, 3), st.integers(0, 2))
def test_the_best_splits_of_more_groups_are_near_the_best_there_are(groups, open_groups, hand_over):
    forward, backward = loads_of(groups)
    options = {"open_groups": open_groups, "hand_over": hand_over}
    best = min(pair_seconds(forward, backward, splits, **options) for splits in all_splits(forward))
    assert pair_seconds(forward, backward, best_splits(forward, backward, **options), **options) <= 1.1 * best


@seed(16)
@settings(max_examples=60, deadline=None)
@given(GROUPS, st.data())
def test_splits_are_within_their_limits(groups, data):
    forward, backward = loads_of(groups)
    bound = [st.tuples(*[st.integers(0, len(own))] * 2).map(sorted).map(tuple) for own in forward]
    limits = data.draw(st.tuples(*bound))
    found = best_splits(forward, backward, limits=limits)
    assert all(fewest <= split <= most for split, (fewest, most) in zip(found, limits, strict=True))
    if len(groups) < 3:
        allowed = product(*(range(fewest, most + 1) for fewest, most in limits))
        best = min(pair_seconds(forward, backward, splits) for splits in allowed)
        assert pair_seconds(forward, backward, found) == best


@pytest.mark.parametrize("count", [2, 4, 5, 9])
def test_a_heavy_head_goes_to_either_process(count):
    # Nearly all of the work is in the head of a group, behind its last snapshot: no cut within groups balances it.
    forward = [np.array([1.0, 1.0, 1.0, 40.0])] * count
    seconds = pair_seconds(forward, forward, best_splits(forward, forward))
    total = 2 * sum(own.sum() for own in forward)
    kept = min(pair_seconds(forward, forward, [split] * count) for split in range(4))
    assert kept > 0.9 * total  # the last snapshots all on the second process
    assert seconds <= (total + count % 2 * 2 * 43) / 2  # whole groups, and an odd one more


def test_whole_groups_keep_both_processes_busy_from_the_start():
    groups = [np.ones(4)] * 4
    splits = best_splits(groups, groups)
    assert splits == (0, 4, 0, 4)
    assert pair_seconds(groups, groups, splits) == 16  # half of the work, and nobody waits


@seed(16)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(1, 3))
def test_splits_that_fit_are_those_of_which_both_processes_can_keep_their_part(shares, open_groups):
    kept = np.array(shares)
    sums = np.concatenate([[0.0], kept.cumsum()])
    fitting = [p for p in range(len(kept) + 1) if open_groups * sums[p] <= 1 and sums[-1] - sums[p] <= 1]
    if fitting:
        assert splits_that_fit(kept, open_groups) == (fitting[0], fitting[-1])


def test_uneven_loads_are_split_unevenly():
    # The work is in the first snapshot of each group, so an even split leaves the second process without any.
    forward = [np.array([4.0, 1.0, 1.0, 1.0])] * 20
    splits = best_splits(forward, forward)
    assert pair_seconds(forward, forward, splits) < 0.9 * pair_seconds(forward, forward, [2] * 20)


def test_groups_of_one_snapshot_go_to_both_processes():
    one = [np.ones(1)] * 3
    assert best_splits(one, one) == (0, 1, 0)
    assert best_splits([], []) == ()
    assert planned_splits([], []) == ()
    assert pair_seconds([], [], []) == 0.0


@seed(16)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=7), st.integers(1, 3))
def test_groups_by_load_are_near_the_best_there_is(seconds, devices):
    found = groups_by_load([float(one) for one in seconds], devices)
    assert len(found) == devices
    assert sorted(place for places in found for place in places) == list(range(len(seconds)))
    assert all(list(places) == sorted(places) for places in found)
    longest = max(sum(seconds[place] for place in places) for places in found)
    best = min(
        max(sum(s for s, own in zip(seconds, owners, strict=True) if own == device) for device in range(devices))
        for owners in product(range(devices), repeat=len(seconds))
    )
    assert 3 * devices * longest <= (4 * devices - 1) * best  # Graham's bound


@pytest.mark.parametrize(("count", "sizes"), [(7, [3, 2, 2]), (2, [1, 1, 0]), (0, [0, 0, 0])])
def test_groups_by_count_follow_each_other(count, sizes):
    found = groups_by_count(count, 3)
    assert [len(places) for places in found] == sizes
    assert [place for places in found for place in places] == list(range(count))


def test_equal_loads_go_round_the_devices():
    assert groups_by_load([1.0] * 5, 2) == ((0, 2, 4), (1, 3))
