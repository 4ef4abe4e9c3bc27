"""A plan takes parts that fit together, in their places, and says why others do not."""

import re
from functools import partial
from itertools import product

import pytest

from lightning_tgnn.algorithms.schedules import (
    DataParallel,
    EpochsAndCopies,
    RoundRobin,
    SharedGroups,
    SnapshotGroups,
    WholeGraph,
)
from lightning_tgnn.algorithms.schedules.links import Link, Links
from lightning_tgnn.algorithms.schedules.simulator import Costs, simulate
from lightning_tgnn.algorithms.schedules.validator import faults, programs
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.simulate.plans import SimulatedPlan
from lightning_tgnn.strategies.parts import (
    GroupPipeline,
    HostMemory,
    InOrder,
    MeanGradients,
    Pipelined,
    ReadOnce,
    Replicated,
    RingUpdates,
    Served,
    Sharded,
    SnapshotMemory,
    TargetsFirst,
    UpdatedByOwners,
    VertexCut,
    VertexShares,
    WholeStep,
)
from lightning_tgnn.types import OrderPart, Plan, PlannedPart, RankLayout, UpdatesPart
from lightning_tgnn.types.layout import families_of

SCHEDULES, STORES = (DataParallel, RoundRobin, WholeGraph), (Sharded, Replicated, VertexCut)
ORDERS = (InOrder, Pipelined, UpdatedByOwners, WholeStep)
FIT = {
    (DataParallel, Sharded, InOrder),
    (DataParallel, Sharded, Pipelined),
    (DataParallel, Sharded, UpdatedByOwners),
    (DataParallel, Replicated, InOrder),
    (WholeGraph, VertexCut, WholeStep),
}


def plan(schedule=DataParallel, store=Sharded, order=InOrder, updates=MeanGradients):
    return Plan(RankLayout.of(2), schedule(), store(), order(), updates())


@pytest.mark.parametrize(
    "parts", list(product(SCHEDULES, STORES, ORDERS)), ids=lambda of: " ".join(p.__name__ for p in of)
)
@pytest.mark.parametrize("delay", [0, 1])
def test_parts_fit_or_are_refused(parts, delay):
    made = [part() for part in parts]
    assert all(isinstance(part, PlannedPart) for part in made)
    if parts in FIT:
        assert Plan(RankLayout.of(2), *made, MeanGradients(delay)).store is made[1]
        return
    with pytest.raises(
        InvalidArgumentError, match=r"(schedule|store|order) must be one that fits .* got '?\w+'?; take "
    ):
        Plan(RankLayout.of(2), *made, MeanGradients(delay))


REASONS = [
    (
        {"schedule": RoundRobin},
        "store must be one that fits RoundRobin, InOrder, MeanGradients: none of them offers shared batches, got "
        "'Sharded'; take the schedule DataParallel, or the store HostMemory",
    ),
    (
        {"order": WholeStep},
        "order must be one that fits DataParallel, Sharded, MeanGradients: none of them offers sums, got 'WholeStep'; "
        "take the store VertexCut with the schedule WholeGraph, or parts for event streams",
    ),
    (
        {"store": Replicated, "order": Pipelined},
        "order must be one that fits DataParallel, Replicated, MeanGradients: none of them offers pieces, got "
        "'Pipelined'; take a store that hands out rows in pieces, such as Sharded, or the order InOrder",
    ),
    (
        {"store": Replicated, "order": UpdatedByOwners},
        "order must be one that fits DataParallel, Replicated, MeanGradients: none of them offers owners, got "
        "'UpdatedByOwners'; take a store whose rows have owners, such as Sharded, or the order InOrder",
    ),
    (
        {"store": VertexCut},
        "schedule must be one that fits VertexCut, InOrder, MeanGradients: none of them offers rows, got "
        "'DataParallel'; take a store of node state, such as Sharded or Replicated",
    ),
    (
        {"schedule": WholeGraph},
        "schedule must be one that fits Sharded, InOrder, MeanGradients: none of them offers sums, got 'WholeGraph'; "
        "take the store VertexCut with the schedule WholeGraph, or parts for event streams",
    ),
]


@pytest.mark.parametrize(("parts", "message"), REASONS)
def test_the_reason_names_what_is_lacking_and_who_has_it(parts, message):
    with pytest.raises(InvalidArgumentError) as refused:
        plan(**parts)
    assert str(refused.value) == message


OF_SNAPSHOTS = (GroupPipeline, VertexShares)
EVERY = {
    "schedule": [DataParallel, RoundRobin, EpochsAndCopies, WholeGraph, SnapshotGroups, SharedGroups],
    "store": [Sharded, Replicated, HostMemory, Served, VertexCut, SnapshotMemory],
    "order": [InOrder, Pipelined, UpdatedByOwners, TargetsFirst, ReadOnce, WholeStep, *OF_SNAPSHOTS],
    "updates": [MeanGradients, RingUpdates],
}


def leads_to_a_plan(parts, seen=()):
    """Return whether parts fit, or some advice of the refusal leads to parts that do."""
    try:
        return bool(plan(*parts))
    except InvalidArgumentError as refused:
        cure = str(refused).split("; take ")[1].partition(" and a store other than")[0]
    if parts in seen:
        return False
    for advice in re.split(r"\bor\b", cure):
        kinds = {
            name: kind for name, kinds in EVERY.items() for kind in kinds if re.search(rf"\b{kind.__name__}\b", advice)
        }
        other = tuple(kinds.get(name, part) for name, part in zip(EVERY, parts, strict=True))
        if kinds and leads_to_a_plan(other, (*seen, parts)):
            return True
    return False


@pytest.mark.parametrize("schedule", EVERY["schedule"])
def test_who_does_what_refusals_say_comes_to_a_plan(schedule):
    others = [EVERY[name] for name in ("store", "order", "updates")]
    assert [parts for parts in product([schedule], *others) if not leads_to_a_plan(parts)] == []


@pytest.mark.parametrize(
    ("schedule", "order", "message"),
    [
        (SnapshotGroups, VertexShares, "take the schedule SharedGroups, or the order GroupPipeline"),
        (SharedGroups, GroupPipeline, "take the order VertexShares, or the schedule SnapshotGroups"),
    ],
)
def test_an_order_of_snapshots_computes_what_the_schedule_deals_out(schedule, order, message):
    with pytest.raises(InvalidArgumentError, match=message):
        plan(schedule, SnapshotMemory, order)


def test_a_part_may_need_words_of_its_own():
    class Ring(MeanGradients):
        needs = frozenset({"ring", "turns"})

    class RoundTrips(DataParallel):
        offers = frozenset({"events", "shared batches", "ring", "turns"})

    with pytest.raises(InvalidArgumentError, match=r"updates must be .* offers ring and turns.*; take another part"):
        plan(updates=Ring)
    assert isinstance(plan(schedule=RoundTrips, updates=Ring).updates, Ring)


def test_a_schedule_that_does_not_say_what_it_offers_is_told_to():
    class Silent(DataParallel):
        offers = frozenset()

    with pytest.raises(InvalidArgumentError, match=r"or set `offers` of Silent, which is empty$"):
        plan(schedule=Silent)


PLACES = {"schedule": DataParallel, "store": Sharded, "order": InOrder, "updates": MeanGradients}


@pytest.mark.parametrize(("one", "other"), [(a, b) for a in PLACES for b in PLACES if a != b])
def test_a_part_in_the_place_of_another_is_refused(one, other):
    """Both parts change places, so that all that is needed is offered."""
    with pytest.raises(InvalidArgumentError, match=r"(\w+) must be the \1 of a plan, got '\w+'; take .*\(\)"):
        plan(**{one: PLACES[other], other: PLACES[one]})


@pytest.mark.parametrize(("place", "part"), [(a, b) for a in PLACES for b in PLACES if a != b])
def test_a_part_that_is_there_twice_is_refused(place, part):
    received = PLACES[part].__name__
    with pytest.raises(InvalidArgumentError, match=f"{place} must be the {place} of a plan, got '{received}'; take"):
        plan(**{place: PLACES[part]})


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        ({"order": Pipelined, "updates": partial(MeanGradients, 1)}, "sven"),
        ({"order": partial(Pipelined, 3), "updates": MeanGradients}, "sven:staleness=0:micro_batches=3"),
        ({"order": UpdatedByOwners}, "depcomm"),
        ({"store": Replicated}, "depcache"),
        ({"store": Replicated, "updates": partial(MeanGradients, 1)}, "depcache:staleness=1"),
    ],
)
def test_the_command_simulates_what_a_plan_says_of_its_turns(parts, written):
    simulated = SimulatedPlan.of(written)
    outline = plan(**parts).outline(simulated.name)
    assert outline == simulated.outline(2)
    assert faults(programs(outline, 2, 4), outline, 2) == []


def test_the_command_simulates_what_a_plan_of_copies_says_of_its_turns():
    layout = RankLayout.of(8, families=families_of(8, 2))
    parts = EpochsAndCopies(2, 2, 2), Served(), ReadOnce(fetch_ahead=False), MeanGradients()
    simulated = SimulatedPlan.of("disttgl:minibatch=2:epoch=2:fetch_ahead=false")
    assert Plan(layout, *parts).outline("disttgl") == simulated.outline(8)
    with pytest.raises(InvalidArgumentError, match="schedule must be a schedule under which served node state can be"):
        Plan(layout, RoundRobin(), *parts[1:3], RingUpdates()).outline()


@pytest.mark.parametrize(
    ("factors", "order", "written"),
    [
        ((2, 2, 2), ReadOnce(), "minibatch=2:epoch=2"),
        ((1, 8, 1), ReadOnce(fetch_ahead=False), "epoch=8:memory=1:fetch_ahead=false"),
        ((4, 1, 2), Pipelined(), "minibatch=4"),
    ],
)
def test_the_command_simulates_what_a_plan_of_cut_copies_says_of_its_turns(factors, order, written):
    layout = RankLayout.of(8, families=families_of(8, factors[2]))
    outline = Plan(layout, EpochsAndCopies(*factors), Sharded(), order, MeanGradients()).outline("disttgl")
    assert outline == SimulatedPlan.of(f"disttgl:store=sharded:{written}").outline(8)
    assert faults(programs(outline, 8, 4), outline, 8) == []
    with pytest.raises(InvalidArgumentError, match="order must be a part that says its stages, to be simulated"):
        Plan(layout, EpochsAndCopies(*factors), Replicated(), ReadOnce(), MeanGradients()).outline()


def test_rows_of_a_store_that_is_cut_travel_in_order_too():
    stages = {stage.name: stage for stage in plan(store=Sharded, order=InOrder).outline().stages}
    assert (stages["rows"].travel, stages["updates"].travel) == ("all_to_all", "all_to_all")


@pytest.mark.parametrize(
    ("parts", "computing"),
    [
        ((WholeGraph, VertexCut, WholeStep), ["forward", "backward", "step"]),
        ((SnapshotGroups, SnapshotMemory, GroupPipeline), ["groups", "backward", "step"]),
        ((SharedGroups, SnapshotMemory, VertexShares), ["groups", "backward", "step"]),
    ],
)
def test_plans_on_graphs_and_snapshots_are_simulated_too(parts, computing):
    outline = plan(*parts).outline()
    assert faults(programs(outline, 2, 4), outline, 2) == []
    assert [stage.name for stage in outline.stages if not stage.travel] == computing
    sent = {"gradients": 10.0} | ({"sums": 30.0} if parts[0] is WholeGraph else {})
    links = Links(within=Link(0.0, 10.0))
    found = simulate(outline, RankLayout.of(2), Costs(dict.fromkeys(computing, 2.0), sent, links), 3)
    assert found.seconds == pytest.approx(3 * (2.0 * len(computing) + sum(sent.values()) / 10))


def test_parts_that_do_not_say_their_stages_are_not_simulated():
    class OwnOrder(InOrder):
        stages = OrderPart.stages

    refused = "order must be a part that says its stages, to be simulated, got 'OwnOrder'; give OwnOrder a"
    with pytest.raises(InvalidArgumentError, match=refused):
        plan(order=OwnOrder).outline()

    class OwnUpdates(UpdatesPart):
        def open(self, run, *, may_be_unused=False):
            raise NotImplementedError

    with pytest.raises(InvalidArgumentError, match="updates must be a part that says its stages, to be simulated"):
        plan(updates=OwnUpdates).outline()
