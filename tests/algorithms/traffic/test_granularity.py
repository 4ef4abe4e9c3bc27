import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_tgnn.algorithms.traffic.granularity_tuner import choose_granularity, fit_redundancy

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
