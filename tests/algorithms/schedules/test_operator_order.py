"""The operator order against exhaustive search, and its reward against a clock that ticks."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules.chain_simulation import GroupParts, simulate_chain
from lightning_tgnn.algorithms.schedules.operator_order import (
    ALONE,
    GRAPH,
    NN,
    Operator,
    best_order,
    deployment_reward,
    operator_order,
    ordered,
)

RATES = ((0.6, 1.0), (1.0, 0.6))
SECONDS = st.integers(0, 6).map(float)


def seconds_together(first, second, exchanges=None, rates=RATES):
    """Return when two processes that begin at once have ended, by the simulation of the pair."""
    first, second = (
        (ordered(own, chosen) for own, chosen in zip((first, second), exchanges, strict=True))
        if exchanges
        else (first, second)
    )
    groups = [GroupParts((tuple(first), ()), ((), ())), GroupParts(((), tuple(second)), ((), ()))]
    return simulate_chain(groups, rates=rates).seconds


def all_exchanges(first, second):
    counts = [sum(one.commutes_with_next for one in own) for own in (first, second)]
    for chosen in product((False, True), repeat=sum(counts)):
        yield chosen[: counts[0]], chosen[counts[0] :]


def layers(count, rng):
    """Return layers of random sizes; half of the graph operators have another width after an exchange."""
    operators = []
    for _ in range(count):
        vertices, edges = rng.uniform(1, 7), rng.uniform(1, 7)
        width = rng.choice([0.5, 1.0, 1.0, 2.0])
        operators.append(Operator(GRAPH, edges, True, exchanged=(edges * width, vertices)))
        operators += [Operator(NN, vertices), Operator(NN, vertices / 2)]
    return operators


@st.composite
def operator_lists(draw):
    operators = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from([GRAPH, NN]))
        if draw(st.booleans()):
            turned = draw(st.none() | st.tuples(SECONDS, SECONDS))
            operators.append(Operator(kind, draw(SECONDS), True, exchanged=turned))
            operators.append(Operator(NN if kind == GRAPH else GRAPH, draw(SECONDS)))
        else:
            operators.append(Operator(kind, draw(SECONDS)))
    return operators


@seed(16)
@settings(max_examples=100, deadline=None)
@given(operator_lists(), operator_lists())
def test_the_reward_counts_the_ticks_in_which_kinds_differ(first, second):
    ticks = [[one.kind for one in own for _ in range(int(one.seconds))] for own in (first, second)]
    assert deployment_reward(first, second) == sum(one != two for one, two in zip(*ticks, strict=False))


@seed(16)
@settings(max_examples=100, deadline=None)
@given(operator_lists(), operator_lists())
def test_an_order_has_a_choice_for_each_pair(first, second):
    for found in (operator_order(first, second), best_order(first, second, RATES)):
        for own, chosen in zip((first, second), found, strict=True):
            run = ordered(own, chosen)
            assert sorted(one.kind for one in run) == sorted(one.kind for one in own)
            taken, place = iter(chosen), 0
            while place < len(own):
                one = own[place]
                if one.commutes_with_next:
                    two, turned = own[place + 1], next(taken)
                    last, head = one.exchanged or (one.seconds, two.seconds)
                    expected = (
                        [(two.kind, head), (one.kind, last)]
                        if turned
                        else [(one.kind, one.seconds), (two.kind, two.seconds)]
                    )
                else:
                    expected = [(one.kind, one.seconds)]
                assert [(done.kind, done.seconds) for done in run[place : place + len(expected)]] == expected
                place += len(expected)


@seed(16)
@settings(max_examples=60, deadline=None)
@given(operator_lists(), operator_lists())
def test_the_best_order_is_no_later_than_algorithm_1_or_none_or_all(first, second):
    found = seconds_together(first, second, best_order(first, second, RATES))
    pairs = [sum(one.commutes_with_next for one in own) for own in (first, second)]
    for others in (operator_order(first, second), *(tuple((turn,) * n for n in pairs) for turn in (False, True))):
        assert found <= seconds_together(first, second, others) + 1e-9


def test_algorithm_1_exchanges_every_pair_of_one_of_two_equal_processes():
    layer = [Operator(GRAPH, 2.0, True), Operator(NN, 2.0)]
    found = operator_order(layer * 3, layer * 3)
    assert found == ((False,) * 3, (True,) * 3)
    assert deployment_reward(*(ordered(layer * 3, chosen) for chosen in found)) == 12
    assert seconds_together(layer * 3, layer * 3, found) == 12
    assert seconds_together(layer * 3, layer * 3) == pytest.approx(20)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_up_to_ten_layers_are_ordered_as_well_as_can_be(count):
    rng = np.random.default_rng(count)
    for _ in range(6 if count < 5 else 2):
        first, second = layers(count, rng), layers(count, rng)
        least = min(seconds_together(first, second, chosen) for chosen in all_exchanges(first, second))
        assert seconds_together(first, second, best_order(first, second, RATES)) == pytest.approx(least)
        assert seconds_together(first, second, operator_order(first, second)) <= 1.2 * least


def test_algorithm_1_ends_earlier_where_it_knows_what_an_exchange_costs():
    rng = np.random.default_rng(0)
    knowing, printed = 0.0, 0.0
    for _ in range(40):
        first, second = layers(4, rng), layers(4, rng)
        knowing += seconds_together(first, second, operator_order(first, second))
        printed += seconds_together(first, second, operator_order(first, second, worth=np.inf))
    assert knowing < 0.98 * printed


def test_many_layers_are_ordered_nearly_as_well_as_can_be(monkeypatch):
    monkeypatch.setattr("lightning_tgnn.algorithms.schedules.operator_order._ALL_TRIED", -1)
    rng = np.random.default_rng(0)
    for _ in range(10):
        first, second = layers(3, rng), layers(4, rng)
        least = min(seconds_together(first, second, chosen) for chosen in all_exchanges(first, second))
        assert seconds_together(first, second, best_order(first, second, RATES)) <= 1.05 * least


def test_an_order_that_takes_longer_is_not_taken_for_its_overlap():
    # The exchange overlaps for 4 seconds, and costs 16: the graph operator works on a width five times as large.
    first, second = [Operator(GRAPH, 4.0, True, exchanged=(20.0, 4.0)), Operator(NN, 4.0)], [Operator(GRAPH, 4.0)]
    assert operator_order(second, first)[1] == (False,)
    assert operator_order(second, first, worth=np.inf)[1] == (True,)
    assert best_order(second, first, RATES)[1] == (False,)


def test_where_nobody_slows_the_other_down_the_faster_order_is_taken():
    slow, fast = Operator(GRAPH, 4.0, True, exchanged=(1.0, 4.0)), Operator(GRAPH, 1.0, True, exchanged=(4.0, 4.0))
    second = [slow, Operator(NN, 4.0), fast, Operator(NN, 4.0)]
    assert best_order(second, [], ALONE) == ((True, False), ())
