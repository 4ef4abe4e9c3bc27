"""Distinct values of bytes are those of a dictionary."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_tgnn.algorithms.streams.distinct_rows import distinct_rows


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"", b"a", b"b", b"a" * 8, b"a" * 9, b"b" * 8 + b"a"]) | st.binary(max_size=16)))
def test_they_are_those_of_a_dictionary(values):
    column = np.array(values, "S16")
    numbers: dict[bytes, int] = {}
    expected = [numbers.setdefault(value, len(numbers)) for value in column.tolist()]
    codes, distinct = distinct_rows(column)
    assert codes.tolist() == expected
    assert distinct.tolist() == list(numbers)


def test_many_values_with_common_ends():
    column = np.array([f"user{i % 5000:032}" for i in range(20_000)], "S40")
    codes, distinct = distinct_rows(column)
    assert len(distinct) == 5000
    assert (distinct[codes] == column).all()
