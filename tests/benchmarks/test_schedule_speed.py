"""How long BLAD's schedule of 100 groups of 16 snapshots takes: splits, and the order of operators."""

import numpy as np
import pytest

from lightning_tgnn.algorithms.schedules.operator_order import GRAPH, NN, Operator, best_order, operator_order
from lightning_tgnn.algorithms.schedules.snapshot_splits import best_splits, groups_by_load, planned_splits

GROUPS, SNAPSHOTS = 100, 16


@pytest.fixture(scope="module")
def loads():
    drawn = np.exp(np.random.default_rng(0).uniform(0, np.log(7), GROUPS + SNAPSHOTS))
    forward = [drawn[place : place + SNAPSHOTS] for place in range(GROUPS)]
    return forward, [2 * own for own in forward]


@pytest.mark.parametrize("split", [planned_splits, best_splits])
def test_splits(benchmark, loads, split):
    split(*loads)  # compiles
    assert len(benchmark(split, *loads)) == GROUPS


def test_groups(benchmark, loads):
    assert len(benchmark(groups_by_load, [own.sum() for own in loads[0]], 4)) == 4


@pytest.mark.parametrize("order", [operator_order, best_order])
def test_order_of_one_group(benchmark, loads, order):
    layers = [
        (Operator(GRAPH, load, True, exchanged=(load / 2, load)), Operator(NN, load)) * 2
        for load in loads[0][0].tolist()
    ]
    first, second = (sum(own, ()) for own in (layers[: SNAPSHOTS // 2], layers[SNAPSHOTS // 2 :]))
    order(first, second)
    assert [len(chosen) for chosen in benchmark(order, first, second)] == [SNAPSHOTS, SNAPSHOTS]
