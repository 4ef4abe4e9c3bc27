"""The rules of DistTGL's section 3.2.4, against all factors there are."""

from itertools import product

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.schedules.parallelism import Parallelism, parallelisms, sharing_ranks
from lightning_tgnn.checks import InvalidArgumentError


def test_the_example_of_the_paper():
    """4 machines of 8, a largest batch of 3,200, devices saturated at 1,600, two copies fit a machine."""
    sharing = sharing_ranks(3200, 1600)
    assert parallelisms(4, 8, sharing=sharing, copies=2)[0] == Parallelism(minibatch=2, epoch=2, memory=8)
    assert parallelisms(4, 8, sharing=sharing, copies=4)[0] == Parallelism(2, 1, 16)
    assert parallelisms(4, 8, sharing=1, copies=100)[0] == Parallelism(1, 1, 32)
    assert parallelisms(1, 8, sharing=100, copies=1)[0] == Parallelism(8, 1, 1)
    assert sharing_ranks(100, 1600) == 1


@seed(15)
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_first_is_the_best_of_all_factors(data):
    machines, devices, copies = (data.draw(st.integers(1, 12)) for _ in range(3))
    sharing, across = data.draw(st.integers(1, 16)), data.draw(st.booleans())

    def is_whole(ranks):
        return devices % ranks == 0 or (across and ranks % devices == 0 and machines % (ranks // devices) == 0)

    names = data.draw(st.sets(st.sampled_from(["minibatch", "epoch", "memory"])))
    given_values = {name: data.draw(st.integers(1, 6)) * (machines if name == "memory" else 1) for name in names}
    ranks = machines * devices
    every = (
        [
            Parallelism(i, j, k)
            for i, j, k in product(range(1, ranks + 1), repeat=3)
            if i * j * k == ranks
            and is_whole(i * j)
            and k <= copies * machines
            and all(getattr(Parallelism(i, j, k), name) == value for name, value in given_values.items())
        ]
        if ranks <= 24
        else None
    )
    if every is None:
        return
    if not every:
        with pytest.raises(InvalidArgumentError, match="must be"):
            parallelisms(machines, devices, sharing=sharing, copies=copies, across=across, **given_values)
        return
    found = parallelisms(machines, devices, sharing=sharing, copies=copies, across=across, **given_values)
    least = min(one.minibatch for one in every)
    allowed = [one for one in every if one.minibatch <= max(sharing, least)]
    assert set(found) == set(allowed)
    assert found[0] == max(allowed, key=lambda one: (one.minibatch, one.memory))


def test_machines_may_share_a_copy_that_is_cut():
    found = [str(one) for one in parallelisms(4, 2, sharing=8, copies=0.5, across=True)]
    assert found == ["8 x 1 x 1", "4 x 1 x 2", "4 x 2 x 1", "2 x 2 x 2", "2 x 4 x 1", "1 x 4 x 2", "1 x 8 x 1"]
    assert str(parallelisms(4, 2, sharing=2, copies=0.25, across=True)[0]) == "2 x 4 x 1"
    assert parallelisms(49, 1, sharing=49, copies=1 / 49, across=True)[0] == Parallelism(49, 1, 1)
    with pytest.raises(
        InvalidArgumentError, match=r"0.2 copies of node memory fit, got '0.25 copies on each machine'; a"
    ):
        parallelisms(4, 2, sharing=1, copies=0.2, across=True)


@pytest.mark.parametrize(
    ("given_values", "copies", "message"),
    [
        ({"epoch": 3}, 8, "minibatch, epoch, memory must be factors of 2 machines times 4 devices, .*, got 'epoch=3'"),
        ({"memory": 3}, 8, "memory a multiple of machines"),
        ({"memory": 8}, 2, "memory must be so many that a machine holds them: 2 copies of node memory fit, got '4 co"),
        ({}, 0, "0 copies of node memory fit, got '1 copies on each machine'; take strategy='sven' or"),
        ({"memory": 2, "epoch": 8}, 8, "memory a multiple of machines$"),
    ],
)
def test_what_does_not_fit_is_refused(given_values, copies, message):
    with pytest.raises(InvalidArgumentError, match=message):
        parallelisms(2, 4, sharing=1, copies=copies, **given_values)


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
def test_batches_have_events(numbers):
    with pytest.raises(InvalidArgumentError, match="must be an integer of at least 1, got 0"):
        sharing_ranks(*numbers)
