"""In which order layers run beside each other, and how contention is measured."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import torch

from lightning_tgnn.algorithms.schedules.operator_order import ALONE, Operator, search_of
from lightning_tgnn.algorithms.schedules.snapshot_loads import Load, LoadModel
from lightning_tgnn.algorithms.schedules.snapshot_operators import orders_beside
from lightning_tgnn.models.recurrent.operators import SnapshotOperators
from lightning_tgnn.strategies.parts.load_meter import MeasuredLoads
from lightning_tgnn.strategies.parts.operator_choice import ChosenOperators, OrderChoice
from lightning_tgnn.strategies.parts.snapshot_memory import rates_of_processes

RATES = ((0.5, 1.0), (1.0, 0.5))
SIZES = np.array([10.0, 10.0, 10.0, 1000.0]), np.array([100.0, 100.0, 100.0, 0.0]), np.zeros(4)
# A product with the graph takes a second for 100 edges; with the weights, a second for 10 vertices.
LOADS = {f"graph {layer}": Load(0.0, 0.0, 0.01) for layer in (1, 2)} | {
    f"nn {layer}": Load(0.0, 0.1, 0.0) for layer in (1, 2)
}


def chosen_operators(widths=((4, 4), (4, 4)), **loads):
    operators = ChosenOperators(SnapshotOperators(reuse=False))
    operators.widths = dict(enumerate(widths))
    return operators, MeasuredLoads(LoadModel({**LOADS, **loads}))


def groups(*parts, size=2):
    """Return groups of snapshots, of which this rank has those given: ``(last, numbers)`` each."""
    return [
        SimpleNamespace(
            number=last, first=last + 1 - size, snapshots=[SimpleNamespace(number=number) for number in own]
        )
        for last, own in parts
    ]


def turned_in(place, parts, rates=RATES, widths=((4, 4), (4, 4))):
    """Return by group and snapshot which layers form H (X W), of a process of a pair or of both streams."""
    operators, loads = chosen_operators(widths)
    found = OrderChoice(operators, loads, SIZES, place, search_of(rates))(groups(*parts))
    return {key: [orders[layer] for layer in sorted(orders)] for key, orders in found.items()}


def test_equal_layers_get_opposite_orders_where_equal_operators_slow_each_other_down():
    first = turned_in(0, [(1, [0, 1]), (2, [])])  # each process has one of two groups
    second = turned_in(1, [(1, []), (2, [1, 2])])
    orders = [*first.values(), *second.values()]
    assert all(
        one != other
        for own, others in zip(first.values(), second.values(), strict=True)
        for one, other in zip(own, others, strict=True)
    ), orders
    assert turned_in(0, [(1, [0, 1]), (2, [])], ALONE) == {(1, 0): [False] * 2, (1, 1): [False] * 2}
    printed = turned_in(1, [(1, []), (2, [1, 2])], None)  # Algorithm 1 needs no rates
    assert printed == {(2, 1): [True] * 2, (2, 2): [True] * 2}


def test_two_streams_of_a_process_choose_as_two_processes():
    of_streams = turned_in(None, [(1, [0, 1]), (2, [1, 2])])
    assert of_streams == turned_in(0, [(1, [0, 1]), (2, [])]) | turned_in(1, [(1, []), (2, [1, 2])])


def test_orders_go_by_the_size_of_each_snapshot():
    # Beside a snapshot without edges, which only multiplies by weights, a layer multiplies by the graph all the time.
    found = turned_in(0, [(1, [0, 1]), (3, [])], widths=((4, 4), (4, 1)))
    other = turned_in(0, [(1, [0, 1]), (2, [])], widths=((4, 4), (4, 1)))
    assert found.keys() == other.keys()
    assert found != other


def test_an_order_that_widens_the_graph_operator_is_not_taken_for_its_overlap():
    assert all(
        orders == [False, False]
        for orders in turned_in(1, [(1, []), (2, [1, 2])], widths=((4, 400), (4, 400))).values()
    )


def test_layers_whose_products_are_kept_or_that_only_the_last_snapshot_has_stay():
    operators, loads = chosen_operators()
    operators.inner.reuse = True  # keeps the first layer's
    last = MeasuredLoads(LoadModel(loads.model.loads, frozenset({"head", "graph 2", "nn 2"})))
    kept = MeasuredLoads(loads.model, {"graph 1"})
    assert [*OrderChoice(operators, kept, SIZES, 0, search_of(RATES))(groups((1, [0, 1])))[1, 0]] == [1]
    assert [*OrderChoice(operators, last, SIZES, 0, search_of(RATES))(groups((1, [0, 1])))[1, 0]] == []


def test_operators_take_an_order_for_its_snapshot_alone():
    operators, loads = chosen_operators()
    operators.choice = OrderChoice(operators, loads, SIZES, 1, search_of(None))
    own = groups((1, []), (2, [1, 2]))
    operators.begin(own)
    assert not operators.weights_first(0, 4, 4)
    operators.come_to(own[1], own[1].snapshots[0])
    assert operators.weights_first(0, 4, 4)
    operators.come_to(own[1], None)
    assert not operators.weights_first(0, 4, 4)


def test_parts_meet_the_parts_that_run_at_the_same_time():
    seen = []

    def search(first, second):
        seen.append(([one.seconds for one in first], [one.seconds for one in second]))
        return (), ()

    def parts(*seconds):
        return [[Operator("nn", float(one))] if one else [] for one in seconds]

    orders_beside(parts(1, 2, 3), parts(4, 5, 6), search)  # all split: the second process follows
    assert seen == [([1], []), ([2], [4]), ([3], [5]), ([], [6])]
    seen.clear()
    orders_beside(parts(1, 0, 2, 0), parts(0, 3, 0, 4), search)  # whole groups: both begin at once
    assert seen == [([1], [3]), ([2], [4])]
    seen.clear()
    assert orders_beside([], [], search) == ([], [])
    assert seen == []


def test_rates_are_speeds_beside_each_other_over_speeds_alone():
    both, taken = threading.Barrier(2), threading.Lock()

    def graph():  # one at a time has the memory
        with taken:
            time.sleep(0.002)

    operators, found = {"graph": graph, "nn": lambda: time.sleep(0.002)}, [None, None]

    def of(place):
        found[place] = rates_of_processes(operators, both.wait, place, torch.device("cpu"))

    threads = [threading.Thread(target=of, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    mean = np.mean(found, axis=0)
    assert mean.shape == (2, 2)
    assert mean[0, 0] < 0.75 < mean[0, 1] <= 1
    assert mean[0, 0] < 0.75 < mean[1, 0] <= 1
    assert mean[0, 0] < 0.75 < mean[1, 1] <= 1
