import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_tgnn.algorithms.traffic.granularity import choose_granularity, fit_redundancy
from lightning_tgnn.checks import InvalidArgumentError

profiles = st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 1)), min_size=2, max_size=8)


@given(profiles)
def test_fit_equals_least_squares(profile):
    sizes, rates = zip(*profile, strict=True)
    inverse = 1 / np.array(sizes)
    assume(inverse.max() > 1.1 * inverse.min())
    expected = np.polynomial.polynomial.polyfit(inverse, rates, 1)
    np.testing.assert_allclose(fit_redundancy(sizes, rates), expected, rtol=1e-6, atol=1e-6)


@given(st.floats(0.3, 1), st.floats(-50, 0))
def test_fit_recovers_what_made_the_rates(a, b):
    sizes = [200, 600, 1200]
    fitted = fit_redundancy(sizes, [a + b / size for size in sizes])
    assert fitted == pytest.approx((a, b), abs=1e-6)


@given(st.floats(0, 1), st.floats(-1000, 1000), st.integers(1, 5000), st.floats(1, 5000))
def test_granularity_is_the_printed_formula_and_at_least_one(a, b, batch_size, speed):
    printed = math.floor((a * batch_size + b) / speed)
    assert choose_granularity(a, b, batch_size, speed) == (printed if printed > 1 else 1)


def test_granularity_by_hand():
    # Larger batches repeat more, so more has to be hidden: (0.9 bs - 40) / 300.
    assert [choose_granularity(0.9, -40.0, size, 300.0) for size in (10, 400, 1200, 2400)] == [1, 1, 3, 7]


@pytest.mark.parametrize(
    ("sizes", "rates", "message"),
    [
        ([100], [0.5, 0.6], "rates must be as many as batch sizes, 1, got 2; give one rate per batch size"),
        ([], [], "batch_sizes must be at least two different ones, got []; profile a second batch size"),
        (
            [100, 100],
            [0.5, 0.6],
            "batch_sizes must be at least two different ones, got [100, 100]; profile a second batch size",
        ),
        ([0, 100], [0.5, 0.6], "batch_sizes must be an integer of at least 1, got 0; give events per batch"),
        (
            [100, 200],
            [0.5, 1.5],
            "rates must be a number in [0, 1], got 1.5; give the share of entries that repeat another",
        ),
        (
            [100, 200],
            [0.5, math.nan],
            "rates must be a number in [0, 1], got nan; give the share of entries that repeat another",
        ),
    ],
)
def test_profiles_that_cannot_be_fitted_are_refused(sizes, rates, message):
    with pytest.raises(InvalidArgumentError) as refused:
        fit_redundancy(sizes, rates)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.0, 0, 1.0), "batch_size must be an integer of at least 1, got 0; give events per batch"),
        ((1.0, 0.0, 9, 0.0), "speed must be a finite number above 0, got 0.0; measure the transfer rate first"),
        ((math.nan, 0.0, 9, 1.0), "a must be a finite number, got nan; take it from fit_redundancy"),
        ((1.0, math.inf, 9, 1.0), "b must be a finite number, got inf; take it from fit_redundancy"),
    ],
)
def test_granularities_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(InvalidArgumentError) as refused:
        choose_granularity(*arguments)
    assert str(refused.value) == message
