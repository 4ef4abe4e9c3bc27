"""A strategy of parts that a user chooses: what it takes, and what it refuses before there is a task."""

import pytest

from lightning_tgnn.algorithms.schedules import DataParallel, WholeGraph
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.strategies.parts import InOrder, MeanGradients, Pipelined, Replicated, Sharded, VertexCut, WholeStep
from lightning_tgnn.strategies.planned import PlannedStrategy

OF_EVENTS = {"schedule": DataParallel(), "store": Sharded(), "order": Pipelined(), "updates": MeanGradients(1)}
OF_A_GRAPH = {"schedule": WholeGraph(), "store": VertexCut(), "order": WholeStep()}


def test_the_plan_is_of_the_parts():
    strategy = PlannedStrategy(**OF_EVENTS, prefetch_batches=3)
    plan = strategy.plan(None, None)
    assert [plan.schedule, plan.store, plan.order, plan.updates] == list(OF_EVENTS.values())
    assert plan.layout == strategy.layout
    assert strategy.prefetch_batches == 3
    assert strategy.shares_node_state
    assert strategy.plan(None, None).store is plan.store


def test_weights_change_at_once_unless_something_else_is_said():
    strategy = PlannedStrategy(**OF_A_GRAPH)
    assert strategy.plan(None, None).updates == MeanGradients(0)
    assert strategy.prefetch_batches is None
    assert not strategy.shares_node_state


@pytest.mark.parametrize("name", OF_EVENTS)
@pytest.mark.parametrize(
    ("part", "shown"), [("sven", "'sven'"), (7, "7"), (Sharded, "Sharded"), (object(), "object"), ([], r"\[\]")]
)
def test_what_is_no_part_is_refused(name, part, shown):
    with pytest.raises(InvalidArgumentError, match=f"{name} must be the {name} of a plan, got .*{shown}.*; take "):
        PlannedStrategy(**{**OF_EVENTS, name: part})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"store": Replicated()}, "order must be one that fits DataParallel, Replicated, MeanGradients"),
        ({"schedule": WholeGraph()}, "schedule must be one that fits Sharded, Pipelined, MeanGradients"),
        ({"schedule": Sharded(), "store": DataParallel()}, "schedule must be the schedule of a plan, got 'Sharded'"),
        ({"order": MeanGradients(), "updates": InOrder()}, "order must be the order of a plan, got 'MeanGradients'"),
    ],
)
def test_parts_that_do_not_fit_are_refused_at_once(parts, message):
    with pytest.raises(InvalidArgumentError, match=message):
        PlannedStrategy(**{**OF_EVENTS, **parts})


def test_an_option_that_there_is_not_is_refused():
    requirement = "one of schedule, store, order, updates, hosts, prefetch_batches, or an option of DDPStrategy"
    with pytest.raises(InvalidArgumentError, match=f"option of PlannedStrategy must be {requirement}, got 'staleness'"):
        PlannedStrategy(**OF_EVENTS, staleness=1)


@pytest.mark.parametrize("missing", ["schedule", "store", "order"])
def test_a_part_that_is_not_given_is_missed(missing):
    with pytest.raises(TypeError, match=missing):
        PlannedStrategy(**{name: part for name, part in OF_EVENTS.items() if name != missing})
