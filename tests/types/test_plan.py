"""A plan takes parts that fit together, in their places, and says why others do not."""

from itertools import product

import pytest

from lightning_tgnn.algorithms.schedules import DataParallel, WholeGraph
from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.strategies.parts import (
    InOrder,
    MeanGradients,
    Pipelined,
    Replicated,
    Sharded,
    UpdatedByOwners,
    VertexCut,
    WholeStep,
)
from lightning_tgnn.types import Plan, PlannedPart, RankLayout

SCHEDULES, STORES = (DataParallel, WholeGraph), (Sharded, Replicated, VertexCut)
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
        {"order": WholeStep},
        "order must be one that fits DataParallel, Sharded, MeanGradients: none of them offers sums, got 'WholeStep'; "
        "take the store VertexCut, or parts for event streams",
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
        "take the store VertexCut, or parts for event streams",
    ),
]


@pytest.mark.parametrize(("parts", "message"), REASONS)
def test_the_reason_names_what_is_lacking_and_who_has_it(parts, message):
    with pytest.raises(InvalidArgumentError) as refused:
        plan(**parts)
    assert str(refused.value) == message


def test_a_part_may_need_words_of_its_own():
    class Ring(MeanGradients):
        needs = frozenset({"ring", "turns"})

    class RoundTrips(DataParallel):
        offers = frozenset({"events", "ring", "turns"})

    with pytest.raises(InvalidArgumentError, match=r"updates must be .* offers ring and turns.*; take another part"):
        plan(updates=Ring)
    assert isinstance(plan(schedule=RoundTrips, updates=Ring).updates, Ring)


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
